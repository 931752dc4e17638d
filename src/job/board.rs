//! Which layers of a plan are staged, which images wait for what, and which of them can be committed.
//!
//! A plain state machine: it does nothing by itself and is told of each event by [`super::pull`].
//!
//! ```text
//! layer:  awaited ──staged──→ staged ──take──→ taken ──committed──→ gone from the board
//!            └──failed──→ every image that waits for it fails
//! image:  waiting for n layers ──n = 0──→ ready ──take──→ its staged layers, base first
//! ```

use std::collections::{HashMap, HashSet};

use super::failure::Reason;
use crate::oci::{Digest, LayerId};
use crate::plan::{BlobTask, Need, Plan};

/// What became of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Not decided: its turn has not come, or the store changed under it and it has to be planned again.
    Open,
    Pulled,
    Failed(Reason),
}

#[derive(Debug)]
struct Image {
    fate: Fate,
    /// Its layers that are not staged, taken or committed yet.
    waits_for: HashSet<LayerId>,
    /// All layers of the plan that it is made of, base first.
    layers: Vec<LayerId>,
    taken: bool,
}

/// The state of one pull; `T` is a staged layer.
#[derive(Debug)]
pub(super) struct Board<T> {
    images: Vec<Image>,
    waiting: HashMap<LayerId, Vec<usize>>,
    staged: HashMap<LayerId, T>,
    blobs: HashMap<LayerId, Digest>,
    uncommitted: HashMap<Digest, HashSet<LayerId>>,
}

impl<T> Board<T> {
    pub(super) fn new(plan: &Plan) -> Self {
        let missing: HashSet<LayerId> = plan.layers.iter().map(|layer| layer.id).collect();
        let images = plan.images.iter().map(|image| {
            let layers: Vec<LayerId> = image
                .layers
                .iter()
                .map(|layer| layer.id)
                .filter(|id| missing.contains(id))
                .collect();
            let idle = !matches!(image.need, Need::Resolved(_));
            Image {
                fate: Fate::Open,
                waits_for: layers.iter().copied().collect(),
                layers,
                taken: idle,
            }
        });
        let mut uncommitted: HashMap<Digest, HashSet<LayerId>> = HashMap::new();
        for layer in &plan.layers {
            uncommitted.entry(layer.blob).or_default().insert(layer.id);
        }
        Self {
            images: images.collect(),
            waiting: plan
                .layers
                .iter()
                .map(|layer| (layer.id, layer.images.clone()))
                .collect(),
            staged: HashMap::new(),
            blobs: plan.layers.iter().map(|layer| (layer.id, layer.blob)).collect(),
            uncommitted,
        }
    }

    /// Images that can be committed and have not been taken, in the plan's order.
    pub(super) fn ready(&self) -> Vec<usize> {
        let ready = |image: &Image| !image.taken && image.fate == Fate::Open && image.waits_for.is_empty();
        self.images
            .iter()
            .enumerate()
            .filter(|(_, image)| ready(image))
            .map(|(index, _)| index)
            .collect()
    }

    /// Takes an image's staged layers, base first; those that it shares may have gone with another image before.
    pub(super) fn take(&mut self, index: usize) -> Vec<T> {
        let image = &mut self.images[index];
        image.taken = true;
        image
            .layers
            .iter()
            .filter_map(|id| self.staged.remove(id))
            .collect()
    }

    /// Whether an image that has not failed still wants this blob.
    pub(super) fn wants(&self, blob: &BlobTask) -> bool {
        let waiters = blob.layers.iter().filter_map(|id| self.waiting.get(id)).flatten();
        waiters
            .into_iter()
            .any(|index| matches!(self.images[*index].fate, Fate::Open))
    }

    pub(super) fn stage(&mut self, id: LayerId, layer: T) {
        self.staged.insert(id, layer);
        for index in self.waiting.get(&id).into_iter().flatten() {
            self.images[*index].waits_for.remove(&id);
        }
    }

    /// Every image that waits for this layer fails. The first reason stands.
    pub(super) fn fail_layer(&mut self, id: LayerId, reason: &Reason) {
        for index in self.waiting.get(&id).into_iter().flatten() {
            let fate = &mut self.images[*index].fate;
            if *fate == Fate::Open {
                *fate = Fate::Failed(reason.clone());
            }
        }
    }

    /// Decides an image's fate.
    pub(super) fn settle(&mut self, index: usize, fate: Fate) {
        self.images[index].fate = fate;
    }

    /// A layer is in the store; returns its blob if no other layer needs it any more.
    pub(super) fn committed(&mut self, id: LayerId) -> Option<Digest> {
        let blob = *self.blobs.get(&id)?;
        let layers = self.uncommitted.get_mut(&blob)?;
        layers.remove(&id);
        if !layers.is_empty() {
            return None;
        }
        self.uncommitted.remove(&blob);
        Some(blob)
    }

    pub(super) fn into_fates(self) -> (Vec<Fate>, Vec<T>) {
        let fates = self.images.into_iter().map(|image| image.fate).collect();
        (fates, self.staged.into_values().collect())
    }
}
