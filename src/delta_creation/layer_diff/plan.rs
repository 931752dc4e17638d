//! Decides which old file each file of a new layer is made from.
//!
//! In this order: the same content under the same path, the same content anywhere, the same path, a similar name. A large file
//! for which image 0 has nothing is searched in the other old images. The other names of a file are its hard links: the objects
//! of an ostree repository are named by their content, and only their links have names that stay.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use super::comparison;
use super::content::Content;
use super::error::DiffError;
use super::layer_files::{LayerFile, LayerFiles};
use super::name_index::NameIndex;
use super::old_files::{OldFile, OldFiles, OldImage};
use super::section_pair::MAX_CONTENT;
use crate::cancel::Cancel;
use crate::delta::SourceName;

/// What the delta of a layer is made from.
#[derive(Clone, Debug)]
pub struct LayerPlan {
    new: Arc<LayerFiles>,
    old: OldFiles,
    files: Arc<[PlannedFile]>,
}

/// A file of the new layer.
#[derive(Clone, Debug)]
pub(super) struct PlannedFile {
    /// Its data in the new layer's tar.
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) source: Option<Source>,
}

/// The old file that a new file is made from.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) name: SourceName,
    /// The layer that has it.
    pub(super) layer: Arc<LayerFiles>,
    /// Its data in that layer's tar.
    pub(super) offset: u64,
    pub(super) size: u64,
    /// The content is the same.
    pub(super) is_equal: bool,
}

/// A smaller file is cheaper as data than the name of its source, although both are compressed.
const MIN_COPY: u64 = 48;

/// A smaller file that changed is cheaper as data.
const MIN_CHANGED: u64 = 256;

/// A smaller file is not read from another image than the predecessor: a node that lacks this image could not use the delta.
const MIN_FURTHER: u64 = 64 << 10;

/// Smaller programs have no sections that are worth the operations.
const MIN_ELF: u64 = 4 << 10;

/// Memory of a thread that writes: zstd at level 19 with a window of 8 MiB, and buffers.
const WRITING: u64 = 128 << 20;

impl LayerPlan {
    /// Chooses a source for each file. Hashes files whose size occurs both in the new layer and in an old image.
    pub fn new(new: Arc<LayerFiles>, old: OldFiles, cancel: &Cancel) -> Result<Self, DiffError> {
        let sizes: HashSet<u64> = new.files.iter().map(|file| file.size).collect();
        let images: Vec<SearchedImage<'_>> = old
            .images()
            .iter()
            .enumerate()
            .map(|(number, image)| SearchedImage::new(number, image, &sizes))
            .collect();
        let mut files = Vec::with_capacity(new.files.len());
        for (index, file) in new.files.iter().enumerate() {
            cancel.check()?;
            files.push(PlannedFile {
                offset: file.offset,
                size: file.size,
                source: choose(&images, &new, index, cancel)?,
            });
        }
        drop(images);
        let files = files.into();
        Ok(Self { new, old, files })
    }

    /// The memory with which one thread can examine and compare the largest pair of files as a whole, or one for each variant
    /// can write.
    pub fn memory_needed(&self) -> u64 {
        let needed = |file: &PlannedFile| file.comparison_memory().max(file.examination_memory());
        let mut sources = self.files.iter().filter_map(|file| file.source.as_ref());
        let writers = if sources.any(Source::is_further) { 3 } else { 2 };
        let comparing = self.files.iter().map(needed).max().unwrap_or(0);
        comparing.max(writers * WRITING)
    }

    /// Bytes of the files that are worth reading from another image than the predecessor, and have no source.
    pub fn without_source(&self) -> u64 {
        let files = self.files.iter().filter(|file| file.source.is_none());
        files
            .map(|file| file.size)
            .filter(|size| *size >= MIN_FURTHER)
            .sum()
    }

    pub(super) fn new_layer(&self) -> &Arc<LayerFiles> {
        &self.new
    }

    pub(super) fn old_files(&self) -> &OldFiles {
        &self.old
    }

    pub(super) fn files(&self) -> &[PlannedFile] {
        &self.files
    }

    /// The data of one of the files.
    pub(super) fn content_of(&self, file: &PlannedFile) -> Content<'_> {
        self.new.content(file.offset..file.offset + file.size)
    }
}

impl PlannedFile {
    /// Whether there is nothing to compare: the content is that of the source.
    pub(super) fn is_equal(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.is_equal)
    }

    fn old_size(&self) -> u64 {
        self.source.as_ref().map_or(0, |source| source.size)
    }

    /// For comparing it with its source as a whole.
    pub(super) fn comparison_memory(&self) -> u64 {
        match &self.source {
            Some(source) if !source.is_equal => comparison::memory_needed(source.size, self.size),
            _ => 0,
        }
    }

    /// For finding its debug sections: both files, and the content of one section.
    pub(super) fn examination_memory(&self) -> u64 {
        if self.is_equal() || self.size < MIN_ELF {
            return 0;
        }
        let content = self.size.max(self.old_size()).saturating_mul(4).min(MAX_CONTENT);
        self.size.saturating_add(self.old_size()).saturating_add(content)
    }
}

impl Source {
    /// Whether it is in another image than the predecessor.
    pub(super) fn is_further(&self) -> bool {
        self.name.image != 0
    }

    pub(super) fn content(&self) -> Content<'_> {
        self.layer.content(self.offset..self.offset + self.size)
    }
}

/// An old image with its indexes.
struct SearchedImage<'a> {
    number: usize,
    image: &'a OldImage,
    /// Files by size, for the sizes that occur in the new layer; each with one of its names.
    by_size: HashMap<u64, BTreeMap<OldFile, &'a Arc<[u8]>>>,
    names: OnceLock<NameIndex>,
}

impl<'a> SearchedImage<'a> {
    fn new(number: usize, image: &'a OldImage, sizes: &HashSet<u64>) -> Self {
        let mut by_size: HashMap<u64, BTreeMap<OldFile, &Arc<[u8]>>> = HashMap::new();
        for (path, &file) in &image.paths {
            let size = image.size(file);
            if sizes.contains(&size) {
                by_size.entry(size).or_default().entry(file).or_insert(path);
            }
        }
        let names = OnceLock::new();
        Self {
            number,
            image,
            by_size,
            names,
        }
    }

    fn names(&self) -> &NameIndex {
        self.names
            .get_or_init(|| NameIndex::new(&self.image.paths, |file| self.image.size(file)))
    }

    /// A file with the content of the file with this index.
    fn equal(&self, layer: &LayerFiles, index: usize, cancel: &Cancel) -> Result<Option<Source>, DiffError> {
        let new = &layer.files[index];
        let here = self.at_path(new);
        let same_size = self.by_size.get(&new.size).into_iter().flatten();
        let elsewhere = same_size.map(|(&file, &path)| (path, file));
        for (path, file) in here.into_iter().chain(elsewhere) {
            let old = self.image.layer(file);
            if old.files[file.file].size == new.size
                && old.digest(file.file, cancel)? == layer.digest(index, cancel)?
            {
                return Ok(Some(self.source((path, file), true)));
            }
        }
        Ok(None)
    }

    /// The file from which the new one was probably changed.
    fn changed(&self, new: &LayerFile) -> Option<Source> {
        let here = self.at_path(new).filter(|(_, file)| self.image.size(*file) > 0);
        let found = here.or_else(|| self.similar(new))?;
        Some(self.source(found, false))
    }

    fn at_path(&self, new: &LayerFile) -> Option<(&Arc<[u8]>, OldFile)> {
        let found = new.names().find_map(|name| self.image.paths.get_key_value(name));
        found.map(|(path, &file)| (path, file))
    }

    fn similar(&self, new: &LayerFile) -> Option<(&Arc<[u8]>, OldFile)> {
        let found = new
            .names()
            .find_map(|name| self.names().most_similar(name, new.size));
        found.map(|named| (&named.path, named.file))
    }

    fn source(&self, (path, file): (&Arc<[u8]>, OldFile), is_equal: bool) -> Source {
        let layer = self.image.layer(file);
        let data = &layer.files[file.file];
        let path = self.image.source_path(path, file);
        Source {
            name: SourceName::file_in(self.number as u64, path),
            layer: Arc::clone(layer),
            offset: data.offset,
            size: data.size,
            is_equal,
        }
    }
}

/// The source of the file with this index in the new layer.
fn choose(
    images: &[SearchedImage<'_>],
    layer: &LayerFiles,
    index: usize,
    cancel: &Cancel,
) -> Result<Option<Source>, DiffError> {
    let new = &layer.files[index];
    if new.size < MIN_COPY {
        return Ok(None);
    }
    for searched in images {
        if searched.number > 0 && new.size < MIN_FURTHER {
            break;
        }
        if let Some(equal) = searched.equal(layer, index, cancel)? {
            return Ok(Some(equal));
        }
        if new.size >= MIN_CHANGED
            && let Some(changed) = searched.changed(new)
        {
            return Ok(Some(changed));
        }
    }
    Ok(None)
}
