//! Commits images to the store: their staged layers, then their records, several images with one sync.

use std::sync::Arc;

use super::repair::LayerRepair;
use crate::cancel::Cancel;
use crate::job::error::{JobError, TaskError};
use crate::oci::{LayerId, Reference, ResolvedImage};
use crate::store::{ImageCommit, LayerCommit, StagedLayer, Store};

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
        let staged = ready.iter_mut().flat_map(|image| &mut image.staged);
        // Layers that an earlier commit stored become durable with the image's record.
        let mut failed = match self.halt.reason() {
            Some(_) => Some(TaskError::Stopped),
            None => self.store.sync_staged(staged).err().map(TaskError::storing),
        };
        let mut results = Vec::new();
        for image in ready {
            let index = image.index;
            // After an error of the host, the following images are not tried.
            let committed = match failed.take() {
                Some(error) => Committed::nothing(error),
                None if self.halt.reason().is_some() => Committed::nothing(TaskError::Stopped),
                None => self.commit_image(image),
            };
            if matches!(committed.image, Err(TaskError::Host(_) | TaskError::Stopped)) {
                failed = Some(TaskError::Stopped);
            }
            results.push((index, committed));
        }
        results
    }

    fn commit_image(&self, ready: ReadyImage) -> Committed {
        let ReadyImage {
            image,
            reference,
            staged,
            ..
        } = ready;
        let ids: Vec<LayerId> = staged.iter().map(|layer| layer.spec().id()).collect();
        let layers = match &self.repair {
            Some(repair) => repair.commit_layers(staged, &self.halt),
            None => self
                .store
                .commit_layers(staged, &self.halt)
                .map_err(TaskError::storing),
        };
        let commit_record = || match &self.repair {
            Some(repair) => repair.commit_image(&image, &reference, &self.halt),
            None => self
                .store
                .commit_image(&image, &reference, &self.halt)
                .map_err(TaskError::storing),
        };
        match layers {
            Ok(layers) => Committed {
                layers: layers
                    .iter()
                    .filter(|(_, commit)| !matches!(commit, LayerCommit::ParentMissing(_)))
                    .map(|(id, _)| *id)
                    .collect(),
                image: commit_record().map(|commit| matches!(commit, ImageCommit::Committed(_))),
            },
            Err(error) => Committed {
                layers: stored(&self.store, ids),
                image: Err(error),
            },
        }
    }
}

/// Those of the layers that are in the store after a commit that failed at one of them. If the store cannot be read, they
/// count as missing; the next snapshot finds them.
fn stored(store: &Store, mut layers: Vec<LayerId>) -> Vec<LayerId> {
    match store.inventory() {
        Ok(inventory) => layers.retain(|id| inventory.layer(id).is_some()),
        Err(_) => layers.clear(),
    }
    layers
}
