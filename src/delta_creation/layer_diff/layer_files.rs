//! Lists the regular files of one layer with the positions of their data in the layer's uncompressed tar.
//!
//! Nothing is unpacked: a file is read from the tar. What a path means follows from the entries in their order, as for
//! unpacking: a later entry replaces an earlier one, and a hard link is another name of the same data.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::content::Content;
use super::error::DiffError;
use crate::cancel::Cancel;
use crate::oci::{DiffId, Digest, Hasher};
use crate::store::Compression;
use crate::store::unpack::{ListedEntry, ListedKind, UnpackLimits, list};

/// The files of a layer. Several images may share it. The tar stays open.
#[derive(Debug)]
pub struct LayerFiles {
    tar: PathBuf,
    file: File,
    diff_id: DiffId,
    size: u64,
    pub(super) nodes: BTreeMap<Arc<[u8]>, Node>,
    pub(super) files: Vec<LayerFile>,
    /// Paths that the layer removes from the layers below.
    pub(super) whiteouts: Vec<Vec<u8>>,
    /// Directories that the layer empties of what the layers below have.
    pub(super) opaque: Vec<Vec<u8>>,
}

/// What a path is in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A name of the file with this index.
    File(usize),
    Directory,
    Other,
}

/// A regular file with all its hard links.
#[derive(Debug)]
pub(super) struct LayerFile {
    /// The name of its entry with the data; hard links are its other names.
    pub(super) path: Arc<[u8]>,
    /// Names of the hard links to it.
    pub(super) aliases: Vec<Arc<[u8]>>,
    /// Bytes of the tar before its data.
    pub(super) offset: u64,
    pub(super) size: u64,
    digest: OnceLock<Digest>,
}

impl LayerFile {
    /// Its names, that of the entry with the data first.
    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.path)
            .chain(&self.aliases)
            .map(|name| &**name)
    }
}

impl LayerFiles {
    /// Reads the entries of the uncompressed tar of a layer.
    pub fn read(tar: &Path, cancel: &Cancel) -> Result<Self, DiffError> {
        let file = File::open(tar).map_err(DiffError::host("open", tar))?;
        let length = file.metadata().map_err(DiffError::host("examine", tar))?.len();
        let input = file.try_clone().map_err(DiffError::host("open", tar))?;
        let mut layer = Self {
            tar: tar.to_owned(),
            file,
            diff_id: DiffId(Digest::of(b"")),
            size: length,
            nodes: BTreeMap::new(),
            files: Vec::new(),
            whiteouts: Vec::new(),
            opaque: Vec::new(),
        };
        let limits = UnpackLimits::for_blob(length);
        let listed = list(input, limits, cancel, |entry| layer.add(entry)).map_err(DiffError::tar(tar))?;
        if listed.compression != Compression::Uncompressed {
            return Err(DiffError::Compressed(tar.to_owned()));
        }
        (layer.diff_id, layer.size) = (listed.diff_id, listed.size);
        Ok(layer)
    }

    /// SHA-256 of the tar.
    pub fn diff_id(&self) -> DiffId {
        self.diff_id
    }

    /// Length of the tar.
    pub fn tar_size(&self) -> u64 {
        self.size
    }

    /// Where the tar is.
    pub fn tar(&self) -> &Path {
        &self.tar
    }

    /// A range of the tar.
    pub(super) fn content(&self, range: Range<u64>) -> Content<'_> {
        Content::new(&self.file, &self.tar, range)
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// SHA-256 of a file's data; computed once.
    pub(super) fn digest(&self, index: usize, cancel: &Cancel) -> Result<Digest, DiffError> {
        let file = &self.files[index];
        if let Some(digest) = file.digest.get() {
            return Ok(*digest);
        }
        let mut hasher = Hasher::default();
        let content = self.content(file.offset..file.offset + file.size);
        content.chunks(0..file.size, |chunk| {
            hasher.update(chunk);
            Ok(cancel.check()?)
        })?;
        Ok(*file.digest.get_or_init(|| hasher.finish()))
    }

    fn add(&mut self, entry: ListedEntry) {
        let path: Arc<[u8]> = entry.path.into();
        let node = match entry.kind {
            ListedKind::Whiteout => {
                self.remove(&path);
                return self.whiteouts.push(path.to_vec());
            }
            ListedKind::Opaque => return self.opaque.push(path.to_vec()),
            ListedKind::Directory => Node::Directory,
            ListedKind::Symlink(_) | ListedKind::Other => Node::Other,
            ListedKind::HardLink(target) => match self.nodes.get(target.as_slice()) {
                Some(&Node::File(index)) => {
                    self.files[index].aliases.push(Arc::clone(&path));
                    Node::File(index)
                }
                _ => Node::Other,
            },
            ListedKind::File { offset, size } => {
                self.files.push(LayerFile {
                    path: Arc::clone(&path),
                    aliases: Vec::new(),
                    offset,
                    size,
                    digest: OnceLock::new(),
                });
                Node::File(self.files.len() - 1)
            }
        };
        if path.is_empty() {
            return;
        }
        if node != Node::Directory {
            self.remove(&path);
        }
        // Below a symbolic link, the entry creates a file elsewhere.
        let is_displaced = ancestors(&path)
            .any(|ancestor| matches!(self.nodes.get(ancestor), Some(Node::File(_) | Node::Other)));
        if !is_displaced {
            self.nodes.insert(path, node);
        }
    }

    fn remove(&mut self, path: &[u8]) {
        self.nodes.remove(path);
        remove_below(&mut self.nodes, path);
    }
}

/// The directories that contain `path`, innermost first, without the root.
pub(super) fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    (0..path.len())
        .rev()
        .filter(|&at| path[at] == b'/')
        .map(|slash| &path[..slash])
}

/// Removes all paths below `directory`; the empty path is the root.
pub(super) fn remove_below<T>(paths: &mut BTreeMap<Arc<[u8]>, T>, directory: &[u8]) {
    if directory.is_empty() {
        return paths.clear();
    }
    let prefix = [directory, b"/"].concat();
    let from = (
        std::ops::Bound::Excluded(prefix.as_slice()),
        std::ops::Bound::Unbounded,
    );
    let below: Vec<Arc<[u8]>> = paths
        .range::<[u8], _>(from)
        .map(|(path, _)| path)
        .take_while(|path| path.starts_with(&prefix))
        .cloned()
        .collect();
    for path in below {
        paths.remove(&path);
    }
}
