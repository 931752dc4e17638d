//! Looks for the files of a layer in the images of the store.
//!
//! The store keeps no digests of files. So files of the same path and size are read and hashed, which is cheap next to a
//! slow link. Which images to search is decided by the largest files of the layer, by path and size alone. Images of the
//! same repository come first; another image with the same packages may have them too.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;

use crate::cancel::{Cancel, Stopped};
use crate::delta::DeltaSource;
use crate::oci::{Digest, Hasher, ImageId, Reference};
use crate::store::{Inventory, OldImageFiles, Store};
use crate::zstd_chunked::{ChunkedLayer, ChunkedOption, TocFile};

/// How many images of the store are considered for one layer: 0.5 s, if all have ten layers.
const MAX_CONSIDERED: usize = 128;

/// How many of them are searched for one layer.
const MAX_SEARCHED: usize = 3;

/// How many files decide which images are searched.
const SAMPLE: usize = 16;

/// Bytes that are read at once while a file is hashed.
const BUFFER: usize = 256 << 10;

/// The images of the store. Clones share it.
#[derive(Clone)]
pub(super) struct LocalFiles {
    store: Arc<Store>,
    inventory: Arc<Inventory>,
    images: Arc<Vec<Image>>,
}

/// An image of the store.
struct Image {
    source: DeltaSource,
    /// The repositories of its names.
    repositories: Vec<String>,
}

impl LocalFiles {
    /// Without `targets`, which are pulled.
    pub(super) fn new(store: &Arc<Store>, inventory: &Arc<Inventory>, targets: &HashSet<ImageId>) -> Self {
        let mut seen = HashSet::new();
        let images = inventory.all_images();
        let usable = images.filter(|image| !targets.contains(&image.id) && seen.insert(image.id));
        let images = usable.map(|image| {
            let names = image.names.iter().filter_map(|name| name.parse().ok());
            Image {
                source: DeltaSource {
                    config: image.id.config(),
                    ostree_commit: None,
                },
                repositories: names.map(|name: Reference| name.repository()).collect(),
            }
        });
        Self {
            images: Arc::new(images.collect()),
            store: Arc::clone(store),
            inventory: Arc::clone(inventory),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// How to make a layer of the image `reference` from files of the store. None if too few of its files are here, or if the
    /// run stops.
    pub(super) fn choose(
        &self,
        layer: &ChunkedLayer,
        reference: &Reference,
        cancel: &Cancel,
    ) -> Option<ChunkedOption> {
        let images = self.best_images(layer, reference, cancel).ok()?;
        let files = self.open(&images);
        let numbers = 0..images.len();
        let option = layer.choose(images, |file| -> Result<_, Stopped> {
            for number in numbers.clone() {
                let found = files.file(number, file.name.as_bytes());
                if let Some(found) = found.filter(|found| has_size(found, file.size))
                    && digest(found, file.size, cancel)? == Some(file.digest)
                {
                    return Ok(u8::try_from(number).ok());
                }
            }
            Ok(None)
        });
        option.ok().flatten()
    }

    /// The images with the most bytes of the largest files, the best one first. One with most of them ends the search.
    fn best_images(
        &self,
        layer: &ChunkedLayer,
        reference: &Reference,
        cancel: &Cancel,
    ) -> Result<Vec<DeltaSource>, Stopped> {
        let sample = layer.largest_files(SAMPLE);
        let all: u64 = sample.iter().map(|file| file.size).fold(0, u64::saturating_add);
        let repository = reference.repository();
        let mut images: Vec<&Image> = self.images.iter().collect();
        images.sort_by_key(|image| !image.repositories.contains(&repository));
        let images: Vec<DeltaSource> = images.into_iter().map(|image| image.source.clone()).collect();
        let files = self.open(&images);
        let mut scores = Vec::new();
        for (number, image) in images.into_iter().enumerate().take(MAX_CONSIDERED) {
            cancel.check()?;
            let is_here = |file: &&&TocFile| {
                let found = files.file(number, file.name.as_bytes());
                found.is_some_and(|found| has_size(&found, file.size))
            };
            let here = sample.iter().filter(is_here).map(|file| file.size);
            let bytes = here.fold(0, u64::saturating_add);
            scores.push((bytes, image));
            if bytes > all / 2 {
                break;
            }
        }
        scores.retain(|(bytes, _)| *bytes > 0);
        // Stable, so that the order of the records decides between equals.
        scores.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        Ok(scores
            .into_iter()
            .take(MAX_SEARCHED)
            .map(|(_, image)| image)
            .collect())
    }

    fn open(&self, images: &[DeltaSource]) -> OldImageFiles {
        OldImageFiles::in_store(Arc::clone(&self.store), &self.inventory, images)
    }
}

fn has_size(file: &File, size: u64) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.len() == size)
}

/// The digest of the first `size` bytes; none if the file cannot be read.
fn digest(file: File, size: u64, cancel: &Cancel) -> Result<Option<Digest>, Stopped> {
    let (mut hasher, mut buffer) = (Hasher::default(), vec![0; BUFFER]);
    let mut rest = file.take(size);
    loop {
        cancel.check()?;
        match rest.read(&mut buffer) {
            Ok(0) => return Ok(Some(hasher.finish())),
            Ok(read) => hasher.update(&buffer[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return Ok(None),
        }
    }
}
