//! Reads the files of the old images from which the deltas of one image are made.
//!
//! They are those of the predecessor. If a large file of a new layer has no source there, the further images of the pair are
//! read too, and the one that has the most of such files is added. Which one it is depends on all new layers, not on the one
//! that is compared first, so the same images always make the same deltas.

use std::path::Path;
use std::sync::Arc;

use futures::future::try_join_all;
use tokio::sync::Semaphore;

use super::blocking::{acquire, run_blocking};
use super::error::CreationError;
use super::image_pairs::ImagePair;
use super::layer_diff::{LayerFiles, LayerPlan, OldFiles};
use super::named_image::NamedImage;
use super::tar_cache::TarCache;
use crate::cancel::Cancel;
use crate::oci::Layer;

/// The files of the old images of one pair.
#[derive(Clone, Debug)]
pub(super) struct SourceFiles {
    pub(super) files: OldFiles,
    /// Image 1 besides the predecessor, which is image 0. The tars of its layers are in use until the new image is finished.
    pub(super) further: Option<NamedImage>,
}

/// Reads old images.
#[derive(Clone, Copy)]
pub(super) struct SourceReader<'a> {
    pub(super) tars: &'a TarCache,
    /// For scratch files.
    pub(super) dir: &'a Path,
    pub(super) cpus: &'a Semaphore,
    pub(super) cancel: &'a Cancel,
}

impl SourceReader<'_> {
    /// The files from which the deltas of `pair` are made. `old` is its predecessor.
    pub(super) async fn read(
        &self,
        pair: &ImagePair,
        old: &NamedImage,
    ) -> Result<SourceFiles, CreationError> {
        let predecessor = self.layers(old, pair.old_layers()).await?;
        let files = OldFiles::new(vec![predecessor.clone()], self.dir.to_owned());
        let further = match pair.further.is_empty() {
            true => None,
            false => self.best_of_further(pair, &predecessor, &files).await?,
        };
        Ok(match further {
            Some((image, files)) => SourceFiles {
                files,
                further: Some(image.clone()),
            },
            None => SourceFiles { files, further: None },
        })
    }

    /// The further image that has most of what the predecessor lacks, with the files of both. Its tars stay in use.
    async fn best_of_further<'p>(
        &self,
        pair: &'p ImagePair,
        predecessor: &[Arc<LayerFiles>],
        files: &OldFiles,
    ) -> Result<Option<(&'p NamedImage, OldFiles)>, CreationError> {
        let new = self.layers(&pair.new, &pair.layers).await?;
        let lacking = self.without_source(&new, files).await?;
        let mut best = None;
        let mut least = lacking;
        for image in pair.further.iter().filter(|_| lacking > 0) {
            let layers = pair.further_layers(image);
            layers.iter().for_each(|layer| self.tars.expect(layer.diff_id()));
            let read = async {
                let further = self.layers(image, layers).await?;
                let images = vec![predecessor.to_vec(), further];
                let files = OldFiles::new(images, self.dir.to_owned());
                let lacking = self.without_source(&new, &files).await?;
                Ok::<_, CreationError>((lacking, files))
            };
            let unused = match read.await {
                Ok((lacking, files)) if lacking < least => {
                    least = lacking;
                    best.replace((image, files)).map(|(image, _)| image)
                }
                Ok(_) => Some(image),
                Err(error) => {
                    let images = best.into_iter().map(|(image, _)| image).chain([image]);
                    images.for_each(|image| self.release(pair, image));
                    return Err(error);
                }
            };
            unused.into_iter().for_each(|image| self.release(pair, image));
        }
        Ok(best)
    }

    /// Ends the use of a further image's tars.
    pub(super) fn release(&self, pair: &ImagePair, further: &NamedImage) {
        for layer in pair.further_layers(further) {
            self.tars.release(layer.diff_id());
        }
    }

    /// The files of an image's layers.
    async fn layers(
        &self,
        image: &NamedImage,
        layers: &[Layer],
    ) -> Result<Vec<Arc<LayerFiles>>, CreationError> {
        let images = std::slice::from_ref(&image.reference);
        try_join_all(layers.iter().map(|layer| self.tars.files(layer, images))).await
    }

    /// Bytes of large files of the new layers that have no source in `old`.
    async fn without_source(&self, new: &[Arc<LayerFiles>], old: &OldFiles) -> Result<u64, CreationError> {
        let _cpu = acquire(self.cpus, 1, self.cancel).await?;
        let (new, old, cancel) = (new.to_vec(), old.clone(), self.cancel.clone());
        run_blocking(move || {
            let mut bytes = 0;
            for layer in new {
                bytes += LayerPlan::new(layer, old.clone(), &cancel)?.without_source();
            }
            Ok(bytes)
        })
        .await
    }
}
