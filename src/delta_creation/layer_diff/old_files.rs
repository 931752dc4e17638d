//! Finds and reads the regular files of the old images, as they are after all layers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layer_files::{LayerFile, LayerFiles, Node, ancestors, remove_below};
use crate::delta::{ScratchFile, SourceError, SourceFile, Sources};
use crate::scratch_file;

/// The longest path in a delta; other programs refuse longer ones.
const MAX_PATH: usize = 4096;

/// The files of the old images whose layers a delta may read. Image 0 is the predecessor of the new image.
#[derive(Clone, Debug)]
pub struct OldFiles(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    images: Vec<OldImage>,
    scratch: PathBuf,
}

/// The files of one old image.
#[derive(Debug)]
pub(super) struct OldImage {
    layers: Vec<Arc<LayerFiles>>,
    /// All visible regular files with all their names.
    pub(super) paths: BTreeMap<Arc<[u8]>, OldFile>,
}

/// A regular file in a layer of an old image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct OldFile {
    /// Index of the layer in the image.
    pub(super) layer: usize,
    /// Index of the file in the layer.
    pub(super) file: usize,
}

impl OldFiles {
    /// The files of these images. Each image is the list of its layers, base first; images may share layers. Scratch
    /// files are created in the directory `scratch`, without a name.
    pub fn new(images: Vec<Vec<Arc<LayerFiles>>>, scratch: PathBuf) -> Self {
        let images = images.into_iter().map(OldImage::new).collect();
        Self(Arc::new(Inner { images, scratch }))
    }

    pub(super) fn images(&self) -> &[OldImage] {
        &self.0.images
    }

    /// The directory of scratch files, for messages.
    pub(super) fn scratch(&self) -> &Path {
        &self.0.scratch
    }
}

impl OldImage {
    fn new(layers: Vec<Arc<LayerFiles>>) -> Self {
        let mut paths = BTreeMap::new();
        for (index, layer) in layers.iter().enumerate() {
            stack(&mut paths, index, layer);
        }
        // Existing programs refuse other paths.
        paths.retain(|path, _| path.len() <= MAX_PATH && std::str::from_utf8(path).is_ok());
        Self { layers, paths }
    }

    pub(super) fn layer(&self, file: OldFile) -> &Arc<LayerFiles> {
        &self.layers[file.layer]
    }

    pub(super) fn size(&self, file: OldFile) -> u64 {
        self.layer(file).files[file.file].size
    }

    /// The path by which a delta opens this file, which is visible as `path`: the entry with the data if that is
    /// visible too, because a node may have only that one (an object of an ostree repository).
    pub(super) fn source_path<'a>(&'a self, path: &'a [u8], file: OldFile) -> &'a [u8] {
        let own = &self.layer(file).files[file.file].path;
        if self.paths.get(own) == Some(&file) {
            own
        } else {
            path
        }
    }
}

/// Applies a layer to the files of the layers below.
fn stack(paths: &mut BTreeMap<Arc<[u8]>, OldFile>, index: usize, layer: &LayerFiles) {
    for path in &layer.whiteouts {
        paths.remove(path.as_slice());
        remove_below(paths, path);
    }
    for directory in &layer.opaque {
        remove_below(paths, directory);
    }
    for (path, node) in &layer.nodes {
        paths.remove(path);
        for ancestor in ancestors(path) {
            paths.remove(ancestor);
        }
        if *node != Node::Directory {
            remove_below(paths, path);
        }
    }
    for (path, node) in &layer.nodes {
        if let Node::File(file) = *node {
            paths.insert(Arc::clone(path), OldFile { layer: index, file });
        }
    }
}

impl Sources for OldFiles {
    fn open(&self, image: usize, path: &[u8]) -> Result<Box<dyn SourceFile>, SourceError> {
        let shown = || String::from_utf8_lossy(path).into_owned();
        let image = self
            .images()
            .get(image)
            .ok_or_else(|| SourceError::Missing(shown()))?;
        let file = *image
            .paths
            .get(path)
            .ok_or_else(|| SourceError::Missing(shown()))?;
        let layer = Arc::clone(image.layer(file));
        Ok(Box::new(TarRange {
            layer,
            file: file.file,
        }))
    }

    fn scratch_file(&self, _: u64) -> io::Result<ScratchFile> {
        Ok(self.empty_scratch_file()?.into())
    }
}

impl OldFiles {
    /// An empty file without a name in the scratch directory.
    pub fn empty_scratch_file(&self) -> io::Result<File> {
        scratch_file::create(File::open(&self.0.scratch)?)
    }
}

/// A file's data in the tar of its layer.
struct TarRange {
    layer: Arc<LayerFiles>,
    file: usize,
}

impl SourceFile for TarRange {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let LayerFile {
            offset: start, size, ..
        } = self.layer.files[self.file];
        let left = size.saturating_sub(offset);
        let length = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        FileExt::read_at(self.layer.file(), &mut buffer[..length], start + offset)
    }
}
