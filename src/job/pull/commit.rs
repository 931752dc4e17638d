//! Images whose layers are all here, on their way into the store.

use std::sync::Arc;

use super::super::error::TaskError;
use super::repair::LayerRepair;
use crate::cancel::Cancel;
use crate::oci::{LayerId, Reference, ResolvedImage};
use crate::store::{ImageCommit, LayerCommit, StagedLayer, Store};

/// An image that can be committed.
pub(in crate::job) struct Ready {
    /// Of the plan.
    pub(in crate::job) index: usize,
    pub(in crate::job) image: Arc<ResolvedImage>,
    pub(in crate::job) name: Reference,
    /// Those of its layers that are not in the store and came with no other image, base first.
    pub(in crate::job) staged: Vec<StagedLayer>,
}

/// What a commit brought into the store.
pub(in crate::job) struct Committed {
    pub(in crate::job) layers: Vec<LayerId>,
    /// False if somebody had removed a layer that the image shares with others.
    pub(in crate::job) image: Result<bool, TaskError>,
}

impl Committed {
    pub(in crate::job) fn nothing(trouble: TaskError) -> Self {
        Self {
            layers: Vec::new(),
            image: Err(trouble),
        }
    }
}

/// Works on a thread of its own, for syncs and locks last.
pub(in crate::job) struct Committer {
    pub(in crate::job) store: Arc<Store>,
    pub(in crate::job) mender: Option<LayerRepair>,
    pub(in crate::job) halt: Cancel,
}

impl Committer {
    /// Commits the images in order, each as far as it goes; one sync makes the layers of all of them durable.
    pub(in crate::job) fn commit(&self, mut ready: Vec<Ready>) -> Vec<(usize, Committed)> {
        let staged = ready.iter_mut().flat_map(|ready| &mut ready.staged);
        // Where nothing is staged, whatever brought the layers is made durable with the image's record.
        let mut trouble = match self.halt.reason() {
            Some(_) => Some(TaskError::Stopped),
            None => self.store.sync_staged(staged).err().map(TaskError::storing),
        };
        let mut committed = Vec::new();
        for Ready {
            index,
            image,
            name,
            staged,
        } in ready
        {
            // What failed for the first is not tried for the others.
            let one = match trouble.take() {
                Some(found) => Committed::nothing(found),
                None if self.halt.reason().is_some() => Committed::nothing(TaskError::Stopped),
                None => self.commit_one(&image, &name, staged),
            };
            if matches!(one.image, Err(TaskError::Host(_) | TaskError::Stopped)) {
                trouble = Some(TaskError::Stopped);
            }
            committed.push((index, one));
        }
        committed
    }

    fn commit_one(&self, image: &ResolvedImage, name: &Reference, staged: Vec<StagedLayer>) -> Committed {
        let ids: Vec<LayerId> = staged.iter().map(|layer| layer.spec().id()).collect();
        let layers = match &self.mender {
            Some(mender) => mender.commit(staged, &self.halt),
            None => self
                .store
                .commit_layers(staged, &self.halt)
                .map_err(TaskError::storing),
        };
        let commit_image = || match &self.mender {
            Some(mender) => mender.commit_image(image, name, &self.halt),
            None => self
                .store
                .commit_image(image, name, &self.halt)
                .map_err(TaskError::storing),
        };
        match layers {
            Ok(layers) => Committed {
                layers: layers
                    .iter()
                    .filter(|(_, commit)| !matches!(commit, LayerCommit::ParentMissing(_)))
                    .map(|(id, _)| *id)
                    .collect(),
                image: commit_image().map(|commit| matches!(commit, ImageCommit::Committed(_))),
            },
            Err(trouble) => Committed {
                layers: stored(&self.store, ids),
                image: Err(trouble),
            },
        }
    }
}

/// Those of the layers that are in the store after a commit that failed at one of them. If that cannot be found out they
/// count as missing, and the next run sees them.
fn stored(store: &Store, mut layers: Vec<LayerId>) -> Vec<LayerId> {
    match store.inventory() {
        Ok(inventory) => layers.retain(|id| inventory.layer(id).is_some()),
        Err(_) => layers.clear(),
    }
    layers
}
