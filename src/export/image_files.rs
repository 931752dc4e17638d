//! Unpacks the files below a few paths of an image into a temporary directory, without a store and without root.
//!
//! ```text
//! layers, base first ─ImageNodes→ what each path is in the image ─copy_ranges→ files below the directory ─→ Tree
//!                        └ a symlink leads elsewhere? once more, with its target
//! ```
//!
//! Nothing is written through a symlink: the directory is new and belongs to this user, directories and files are created
//! first, and symlinks last.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::error::ExportError;
use super::image_nodes::{ImageNodes, LayerBlob, Node};
use crate::cancel::Cancel;
use crate::store::Tree;
use crate::store::unpack::{UnpackLimits, copy_ranges};

/// The most bytes of all files together: ten times those of the largest catalog.
const MAX_BYTES: u64 = 8 << 30;

/// How the names of the directories begin.
const PREFIX: &str = "files-";

/// The files of an image below a temporary directory, which is removed with this value.
pub(super) struct ImageFiles {
    directory: PathBuf,
}

impl ImageFiles {
    /// Unpacks what is at or below `paths` into a new directory in `work_dir`.
    pub(super) fn unpack(
        layers: &[LayerBlob],
        paths: &[&str],
        work_dir: &Path,
        cancel: &Cancel,
    ) -> Result<Self, ExportError> {
        let nodes = ImageNodes::read(layers, paths, cancel)?;
        let directory = work_dir.join(format!("{PREFIX}{:016x}", rand::random::<u64>()));
        fs::create_dir(&directory).map_err(ExportError::host("create", &directory))?;
        let files = Self { directory };
        let bytes = nodes.bytes();
        if bytes > MAX_BYTES {
            let error = io::Error::other(format!("the image has {bytes} bytes there"));
            return Err(ExportError::host("unpack into", &files.directory)(error));
        }
        let written = files.write(layers, &nodes, cancel);
        written.map(|()| files)
    }

    /// The files as a container would see them.
    pub(super) fn tree(&self) -> Result<Tree, ExportError> {
        Ok(Tree::of_directories(&[&self.directory])?)
    }

    /// Removes what killed exports left in their work directory.
    pub(super) fn remove_leftovers(work_dir: &Path) -> Result<(), ExportError> {
        let entries = fs::read_dir(work_dir).map_err(ExportError::host("read", work_dir))?;
        for entry in entries.flatten() {
            if entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) {
                remove(&entry.path());
            }
        }
        Ok(())
    }

    fn write(&self, layers: &[LayerBlob], nodes: &ImageNodes, cancel: &Cancel) -> Result<(), ExportError> {
        let path = |name: &[u8]| self.directory.join(OsStr::from_bytes(name));
        for (name, node) in nodes.iter() {
            let path = path(name);
            let directory = match node {
                Node::Directory => Some(path.as_path()),
                _ => path.parent(),
            };
            if let Some(directory) = directory {
                tolerate(fs::create_dir_all(directory)).map_err(ExportError::host("create", directory))?;
            }
        }
        for (index, layer) in layers.iter().enumerate() {
            let mut contents: BTreeMap<u64, (Range<u64>, Vec<PathBuf>)> = BTreeMap::new();
            for (name, node) in nodes.iter() {
                match node {
                    Node::File(of, content) if *of == index => {
                        let (_, paths) = contents
                            .entry(content.start)
                            .or_insert_with(|| (content.clone(), Vec::new()));
                        paths.push(path(name));
                    }
                    _ => {}
                }
            }
            let (ranges, paths): (Vec<_>, Vec<_>) = contents.into_values().unzip();
            copy(layer, &ranges, &paths, cancel)?;
        }
        for (name, node) in nodes.iter() {
            if let Node::Symlink(target) = node {
                let (target, path) = (OsStr::from_bytes(target), path(name));
                tolerate(symlink(target, &path)).map_err(ExportError::host("create", &path))?;
            }
        }
        Ok(())
    }
}

/// Copies each range to the first of its paths, which its other paths are links to.
fn copy(
    layer: &LayerBlob,
    ranges: &[Range<u64>],
    paths: &[Vec<PathBuf>],
    cancel: &Cancel,
) -> Result<(), ExportError> {
    if ranges.is_empty() {
        return Ok(());
    }
    // A file without content has no chunk.
    for first in paths.iter().filter_map(|paths| paths.first()) {
        tolerate(File::create_new(first).map(drop)).map_err(ExportError::host("create", first))?;
    }
    let mut open: Option<(usize, File)> = None;
    let limits = UnpackLimits::for_blob(layer.reader.size());
    let copied = copy_ranges(layer.reader.clone(), ranges, limits, cancel, |index, chunk| {
        let is_open = open.as_ref().is_some_and(|(of, _)| *of == index);
        if !is_open && let Some(first) = paths[index].first() {
            let file = fs::OpenOptions::new().append(true).open(first)?;
            open = Some((index, file));
        }
        match &mut open {
            Some((_, file)) => file.write_all(chunk),
            None => Ok(()),
        }
    });
    copied.map_err(|source| ExportError::Layer {
        blob: layer.digest,
        source,
    })?;
    for paths in paths {
        let [first, others @ ..] = &paths[..] else {
            continue;
        };
        for other in others {
            tolerate(fs::hard_link(first, other)).map_err(ExportError::host("create", other))?;
        }
    }
    Ok(())
}

/// A path that is something else already is possible only if a layer has two entries of which one hides the other.
fn tolerate(result: io::Result<()>) -> io::Result<()> {
    use io::ErrorKind::{AlreadyExists, InvalidInput, NotADirectory};
    result.or_else(|error| match error.kind() {
        AlreadyExists | NotADirectory | InvalidInput => Ok(()),
        _ => Err(error),
    })
}

fn remove(directory: &Path) {
    if let Err(error) = fs::remove_dir_all(directory) {
        tracing::warn!("cannot remove `{}`: {error}", directory.display());
    }
}

impl Drop for ImageFiles {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}
