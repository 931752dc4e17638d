//! Opens files of stored images, from which deltas and chunks make the layers of new images.
//!
//! A delta names a file by the number of an old image and a path in it. The path is resolved in the merged view of the
//! image's layers (`image_tree.rs`), so it never leaves them. Only regular files are opened. A symlink in the last
//! component is refused: a delta names the tar entry that has the content, and that is never a symlink. Symlinks to
//! directories are resolved inside the view, because a tar may name a file through one.
//!
//! An image of the operating system contains an ostree repository. A node that runs this version has the same objects
//! in its own repository, under the same names. So if the image itself is not in the store, or lacks a file, paths below
//! [`OSTREE_OBJECTS`] are opened there.
//!
//! Other programs may remove an image, or damage its files, while they are read. The diffID of the new layer proves that
//! the right bytes were read.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::error::StoreError;
use super::escaped_name::EscapedName;
use super::image_tree::Tree;
use super::inventory::Inventory;
use super::stage::Stage;
use super::store::Store;
use super::unpack::SpaceBudget;
use crate::delta::{DeltaSource, ScratchFile, SourceError, SourceFile, Sources};
use crate::oci::{ImageId, LayerId};

/// The objects of the ostree repository inside an image of the operating system.
const OSTREE_OBJECTS: &str = "sysroot/ostree/repo/objects";

/// The longest path that is looked up; the kernel accepts no longer ones.
const MAX_PATH: usize = 4095;

/// The old images of one delta, by their numbers.
pub struct OldImageFiles {
    store: Arc<Store>,
    /// Where scratch files are, and their space; none if only files are read.
    scratch: Option<(Arc<Stage>, Arc<SpaceBudget>)>,
    images: Vec<LocalSource>,
    /// The tree that was read last. Only one is open, because each has a descriptor for every layer.
    open: RefCell<Option<(TreeName, Tree)>>,
}

/// An old image, as far as this node has it.
struct LocalSource {
    /// Its layers, base layer first; `None` if the store does not have all of them.
    layers: Option<Vec<LayerId>>,
    /// The objects of the node's ostree repository, if they are also in the image.
    ostree_objects: Option<PathBuf>,
}

impl LocalSource {
    fn in_store(inventory: &Inventory, source: &DeltaSource) -> Self {
        let image = inventory.image(&ImageId::of_config(source.config));
        Self {
            layers: image.and_then(|image| inventory.chain_of(image)),
            ostree_objects: None,
        }
    }
}

/// Which tree is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TreeName {
    Image(usize),
    OstreeOf(usize),
}

impl OldImageFiles {
    /// The files of `sources`, as far as `inventory` contains them. `ostree_objects` is the directory of objects in the
    /// node's ostree repository. `stage` gets the scratch files, as long as `budget` has space for them.
    pub fn new(
        store: Arc<Store>,
        inventory: &Inventory,
        stage: Arc<Stage>,
        budget: Arc<SpaceBudget>,
        ostree_objects: &Path,
        sources: &[DeltaSource],
    ) -> Self {
        let locate = |source: &DeltaSource| LocalSource {
            ostree_objects: source.ostree_commit.is_some().then(|| ostree_objects.to_owned()),
            ..LocalSource::in_store(inventory, source)
        };
        Self {
            store,
            scratch: Some((stage, budget)),
            images: sources.iter().map(locate).collect(),
            open: RefCell::new(None),
        }
    }

    /// The files of these images in the store, for reading only.
    pub fn in_store(store: Arc<Store>, inventory: &Inventory, sources: &[DeltaSource]) -> Self {
        let locate = |source| LocalSource::in_store(inventory, source);
        Self {
            store,
            scratch: None,
            images: sources.iter().map(locate).collect(),
            open: RefCell::new(None),
        }
    }

    /// The regular file at `path` of the image of this number. None if there is no such file, or if it cannot be opened.
    pub fn file(&self, image: usize, path: &[u8]) -> Option<File> {
        self.find(image, &plain(path)?).ok().flatten()
    }

    fn find(&self, number: usize, path: &Path) -> Result<Option<File>, StoreError> {
        let Some(image) = self.images.get(number) else {
            return Ok(None);
        };
        if let Some(layers) = &image.layers {
            let tree = || self.store.tree(layers);
            if let Some(file) = self.find_in(TreeName::Image(number), tree, path)? {
                return Ok(Some(file));
            }
        }
        match (&image.ostree_objects, path.strip_prefix(OSTREE_OBJECTS)) {
            (Some(objects), Ok(object)) => {
                let tree = || Tree::of_directories(&[objects]);
                self.find_in(TreeName::OstreeOf(number), tree, object)
            }
            _ => Ok(None),
        }
    }

    fn find_in(
        &self,
        name: TreeName,
        tree: impl FnOnce() -> Result<Tree, StoreError>,
        path: &Path,
    ) -> Result<Option<File>, StoreError> {
        let mut open = self.open.borrow_mut();
        let (_, tree) = match open.take() {
            Some(known) if known.0 == name => open.insert(known),
            _ => match tree() {
                Ok(tree) => open.insert((name, tree)),
                Err(error) if is_missing(&error) => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        match tree.open_file(path) {
            Err(error) if is_missing(&error) => Ok(None),
            found => found,
        }
    }
}

impl Sources for OldImageFiles {
    fn open(&self, image: usize, path: &[u8]) -> Result<Box<dyn SourceFile>, SourceError> {
        let name = || EscapedName::new(path).to_string();
        let relative = plain(path).ok_or_else(|| SourceError::Missing(name()))?;
        match self.find(image, &relative) {
            Ok(Some(file)) => Ok(Box::new(file)),
            Ok(None) => Err(SourceError::Missing(name())),
            Err(StoreError::Io { source, .. }) => Err(SourceError::Host {
                path: name(),
                error: source,
            }),
            Err(error) => Err(SourceError::Host {
                path: name(),
                error: io::Error::other(error),
            }),
        }
    }

    fn scratch_file(&self, length: u64) -> io::Result<ScratchFile> {
        let (stage, budget) = self.scratch.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let space = budget.take(length).ok_or(io::ErrorKind::StorageFull)?;
        Ok(ScratchFile::new(stage.scratch_file()?, space))
    }
}

/// The path relative to the image's root. `None` for a path that no tar entry has after it is cleaned.
fn plain(path: &[u8]) -> Option<PathBuf> {
    if path.len() > MAX_PATH || path.contains(&0) {
        return None;
    }
    let mut relative = PathBuf::new();
    for component in Path::new(OsStr::from_bytes(path)).components() {
        match component {
            Component::Normal(name) => relative.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    (!relative.as_os_str().is_empty()).then_some(relative)
}

/// Whether the file, or a whole layer, does not exist or cannot exist under this path.
fn is_missing(error: &StoreError) -> bool {
    match error {
        StoreError::Io { source, .. } => matches!(
            source.raw_os_error(),
            Some(
                libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG | libc::EXDEV | libc::ESTALE
            )
        ),
        StoreError::Unreadable { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_inside_the_image_are_looked_up() {
        for (path, expected) in [
            (&b"usr/bin/a"[..], Some("usr/bin/a")),
            (b"./usr//bin/./a", Some("usr/bin/a")),
            (b"/usr/bin/a", Some("usr/bin/a")),
            (b"usr/bin/a/", Some("usr/bin/a")),
            (b"../etc/shadow", None),
            (b"usr/../../etc/shadow", None),
            (b"", None),
            (b"/", None),
            (b"a\0b", None),
            (&[b'a'; MAX_PATH + 1], None),
        ] {
            let name = EscapedName::new(path);
            assert_eq!(plain(path).as_deref(), expected.map(Path::new), "{name}");
        }
    }
}
