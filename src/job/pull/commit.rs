//! Commits images to the store: their staged layers, then their records, several images with one sync and with one save
//! of each kind of records.

use std::sync::Arc;

use super::repair::LayerRepair;
use crate::cancel::Cancel;
use crate::job::error::{JobError, TaskError};
use crate::oci::{LayerId, Reference, ResolvedImage};
use crate::store::{ImageCommit, ImageToCommit, LayerCommit, Stage, StagedImage, StagedLayer, Store};

/// Images in one commit, and so with one sync: enough that the sync costs little per image, and few enough that each is
/// reported soon.
pub(super) const COMMIT_BATCH: usize = 16;

/// An image whose layers are all staged or in the store.
pub(super) struct ReadyImage {
    /// Its index in the plan.
    pub(super) index: usize,
    pub(super) image: Arc<ResolvedImage>,
    pub(super) reference: Reference,
    /// The layers that are neither in the store nor committed with an earlier image, base first.
    pub(super) staged: Vec<StagedLayer>,
}

/// The result of one image's commit.
pub(super) struct Committed {
    /// The layers that are in the store now.
    pub(super) layers: Vec<LayerId>,
    /// `Ok(false)` if another program has removed a layer that the image reuses.
    pub(super) image: Result<bool, TaskError>,
}

impl Committed {
    fn nothing(error: TaskError) -> Self {
        Self {
            layers: Vec::new(),
            image: Err(error),
        }
    }
}

/// What a commit works with.
pub(super) struct Committer {
    pub(super) store: Arc<Store>,
    pub(super) stage: Arc<Stage>,
    pub(super) repair: Option<LayerRepair>,
    pub(super) halt: Cancel,
}

/// Commits the images on a blocking thread, because syncs and locks take long. Stopping the pull cancels waiting for a lock,
/// but leaves nothing half committed.
pub(super) async fn commit(committer: Committer, ready: Vec<ReadyImage>) -> Vec<(usize, Committed)> {
    let indices: Vec<usize> = ready.iter().map(|image| image.index).collect();
    let task = tokio::task::spawn_blocking(move || committer.commit(ready));
    task.await.unwrap_or_else(|panic| {
        let message = panic.to_string();
        let panicked = || Committed::nothing(TaskError::Host(JobError::Panicked(message.clone())));
        indices.into_iter().map(|index| (index, panicked())).collect()
    })
}

impl Committer {
    /// Commits the images in order, each as far as possible. One sync makes the layers of all of them durable.
    fn commit(&self, mut ready: Vec<ReadyImage>) -> Vec<(usize, Committed)> {
        let mut data: Vec<Option<StagedImage>> = ready.iter().map(|image| self.stage_data(image)).collect();
        let layers = ready.iter_mut().flat_map(|image| &mut image.staged);
        // Layers that an earlier commit stored become durable with the image's record.
        let synced = match self.halt.reason() {
            Some(_) => Err(TaskError::Stopped),
            None => self
                .store
                .sync_staged(layers, data.iter_mut().flatten())
                .map_err(TaskError::storing),
        };
        let indices: Vec<usize> = ready.iter().map(|image| image.index).collect();
        let committed = match (synced, &self.repair) {
            (Err(error), _) => vec![Committed::nothing(error)],
            (Ok(()), Some(repair)) => self.repair_each(ready, repair),
            (Ok(()), None) => self.commit_together(ready, data),
        };
        // After an error of the host, the following images are not tried.
        let stopped = std::iter::repeat_with(|| Committed::nothing(TaskError::Stopped));
        indices
            .into_iter()
            .zip(committed.into_iter().chain(stopped))
            .collect()
    }

    /// Stages the image's data for a commit together with others. If that fails, the image is committed alone, which
    /// reports the error.
    fn stage_data(&self, ready: &ReadyImage) -> Option<StagedImage> {
        if self.repair.is_some() || self.halt.reason().is_some() {
            return None;
        }
        let staged = self.stage.image(&ready.image);
        staged
            .inspect_err(|error| tracing::debug!(image = %ready.reference, %error, "cannot stage the data of an image"))
            .ok()
    }

    /// Commits the layers of all images, then their records.
    fn commit_together(&self, ready: Vec<ReadyImage>, data: Vec<Option<StagedImage>>) -> Vec<Committed> {
        let (staged, images): (Vec<_>, Vec<_>) = ready
            .into_iter()
            .map(|ready| (ready.staged, (ready.image, ready.reference)))
            .unzip();
        let layers = self.store.commit_layers_of(staged, &self.halt);
        let is_whole = |index: usize| layers.get(index).is_some_and(|layers| layers.error.is_none());
        let to_commit = images.iter().zip(data).enumerate();
        let to_commit = to_commit.filter(|(index, _)| is_whole(*index));
        let to_commit = to_commit.map(|(_, ((image, name), data))| ImageToCommit { image, name, data });
        let records = self.store.commit_images(to_commit.collect(), &self.halt);
        let mut records = records
            .into_iter()
            .map(|record| record.map_err(TaskError::storing));
        let committed = layers.into_iter().map(|committed| {
            let image = match committed.error {
                Some(error) => Err(TaskError::storing(error)),
                None => records.next().unwrap_or(Err(TaskError::Stopped)),
            };
            Committed {
                layers: in_store(&committed.layers),
                image: image.map(is_committed),
            }
        });
        committed.collect()
    }

    /// Repairs the images one after the other. Ends after an error of the host.
    fn repair_each(&self, ready: Vec<ReadyImage>, repair: &LayerRepair) -> Vec<Committed> {
        let mut results = Vec::new();
        for image in ready {
            let committed = match self.halt.reason() {
                Some(_) => Committed::nothing(TaskError::Stopped),
                None => self.repair_image(image, repair),
            };
            let has_ended = matches!(committed.image, Err(TaskError::Host(_) | TaskError::Stopped));
            results.push(committed);
            if has_ended {
                break;
            }
        }
        results
    }

    fn repair_image(&self, ready: ReadyImage, repair: &LayerRepair) -> Committed {
        let ids: Vec<LayerId> = ready.staged.iter().map(|layer| layer.spec().id()).collect();
        match repair.commit_layers(ready.staged, &self.halt) {
            Ok(layers) => Committed {
                layers: in_store(&layers),
                image: repair
                    .commit_image(&ready.image, &ready.reference, &self.halt)
                    .map(is_committed),
            },
            Err(error) => Committed {
                layers: stored(&self.store, ids),
                image: Err(error),
            },
        }
    }
}

fn is_committed(commit: ImageCommit) -> bool {
    matches!(commit, ImageCommit::Committed(_))
}

fn in_store(layers: &[(LayerId, LayerCommit)]) -> Vec<LayerId> {
    let stored = layers
        .iter()
        .filter(|(_, commit)| !matches!(commit, LayerCommit::ParentMissing(_)));
    stored.map(|(id, _)| *id).collect()
}

/// Those of the layers that are in the store after a repair that failed at one of them. If the store cannot be read, they
/// count as missing; the next snapshot finds them.
fn stored(store: &Store, mut layers: Vec<LayerId>) -> Vec<LayerId> {
    match store.inventory() {
        Ok(inventory) => layers.retain(|id| inventory.layer(id).is_some()),
        Err(_) => layers.clear(),
    }
    layers
}
