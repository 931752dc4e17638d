//! Collects which diffID the manifests of a plan state for each blob, and whether an authenticated manifest states it.

use std::collections::{HashMap, HashSet};

use super::{ImageAction, ImageToPlan};
use crate::oci::{DiffId, Digest, Layer};

/// The blobs of a plan. Two manifests may pair one blob with different diffIDs; then one of them is wrong.
pub(super) struct BlobContents {
    /// `None` for a blob with several diffIDs.
    diff_ids: HashMap<Digest, Option<DiffId>>,
    /// The blob and the diffID of each layer of authenticated images.
    authenticated: HashSet<(Digest, DiffId)>,
}

impl BlobContents {
    pub(super) fn of(images: &[ImageToPlan]) -> Self {
        let mut contents = Self {
            diff_ids: HashMap::new(),
            authenticated: HashSet::new(),
        };
        for image in images {
            let ImageAction::Pull(resolved) = &image.action else {
                continue;
            };
            for layer in &resolved.layers {
                let diff_id = layer.diff_id();
                let known = contents.diff_ids.entry(layer.blob).or_insert(Some(diff_id));
                *known = known.filter(|known| *known == diff_id);
                if image.authenticated {
                    contents.authenticated.insert((layer.blob, diff_id));
                }
            }
        }
        contents
    }

    /// Whether an authenticated image lists the layer's blob for its diffID, and no image lists it for another.
    pub(super) fn is_authenticated(&self, layer: &Layer) -> bool {
        !self.is_contradicted(layer) && self.authenticated.contains(&(layer.blob, layer.diff_id()))
    }

    /// Whether another manifest pairs the layer's blob with another diffID.
    pub(super) fn is_contradicted(&self, layer: &Layer) -> bool {
        self.diff_ids.get(&layer.blob) == Some(&None)
    }
}
