//! A release image's payload, read before all of the image is here.
//!
//! It lies in the topmost layer or near it, and a file that is found in the upper layers is the image's, whatever the lower
//! ones have. So as soon as the layers down to that one are staged, it is known what the store will say of the whole.

use std::os::fd::OwnedFd;

use super::namers::release;
use super::pull::Laid;
use crate::oci::{LayerId, Reference};
use crate::plan::Plan;
use crate::release::Selection;
use crate::spec::Excludes;
use crate::store::Tree;

/// The layers of a release image, topmost first, as far as they are staged.
pub(super) struct Foresight {
    layers: Vec<(LayerId, Option<OwnedFd>)>,
}

impl Foresight {
    /// Of an image that `plan` is to pull.
    pub(super) fn of(release: &Reference, plan: &Plan) -> Option<Self> {
        let image = plan.images.iter().find(|image| image.reference == *release)?;
        let layers = image
            .layers
            .iter()
            .rev()
            .map(|planned| (planned.layer.id(), None));
        Some(Self {
            layers: layers.collect(),
        })
    }

    /// Notes a layer.
    pub(super) fn add(&mut self, laid: Laid) {
        let mut layers = self.layers.iter_mut();
        if let Some((_, root)) = layers.find(|(id, _)| *id == laid.id) {
            *root = Some(laid.root);
        }
    }

    /// What the image names, as soon as that is known. What is wrong with a payload is found out when all is here.
    pub(super) fn selection(&self, excludes: &Excludes) -> Option<Selection> {
        let roots = self.layers.iter().map_while(|(_, root)| root.as_ref());
        let roots: Result<Vec<OwnedFd>, _> = roots.map(OwnedFd::try_clone).collect();
        release::foreseen(&Tree::of_roots(roots.ok()?), excludes)
    }
}
