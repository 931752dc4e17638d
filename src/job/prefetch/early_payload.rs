//! Reads a release image's payload as soon as the layer that contains it is staged, before the rest of the image.
//!
//! The payload is in the topmost layer or near it, and a file found in the upper layers belongs to the image whatever the
//! lower layers contain. So as soon as the layers from the top down to that one are staged, the result is the same as for the
//! whole image.

use std::os::fd::OwnedFd;

use tokio::sync::mpsc::UnboundedSender;

use super::super::namers::release::{self, Filter};
use crate::oci::{LayerId, Reference};
use crate::plan::Plan;
use crate::release::Selection;
use crate::store::{StagedLayer, StoreError, Tree};

/// A staged layer and the directory of its contents.
pub(super) struct StagedContents {
    id: LayerId,
    root: OwnedFd,
}

/// Passes staged layers from a pull to a prefetch.
#[derive(Clone)]
pub(in crate::job) struct StagedLayers(UnboundedSender<StagedContents>);

impl StagedLayers {
    pub(super) fn new(sender: UnboundedSender<StagedContents>) -> Self {
        Self(sender)
    }

    /// Passes a layer that was just staged.
    pub(in crate::job) fn send(&self, staged: &StagedLayer) -> Result<(), StoreError> {
        let (id, root) = (staged.spec().id(), staged.open_diff()?);
        // The receiver is dropped when the payload was read.
        let _ = self.0.send(StagedContents { id, root });
        Ok(())
    }
}

/// The layers of a release image, topmost first, each with its contents once it is staged.
pub(super) struct EarlyPayload {
    layers: Vec<(LayerId, Option<OwnedFd>)>,
}

impl EarlyPayload {
    /// For an image that `plan` pulls.
    pub(super) fn of(release: &Reference, plan: &Plan) -> Option<Self> {
        let image = plan.images.iter().find(|image| image.reference == *release)?;
        let layers = image.layers.iter().rev().map(|it| (it.layer.id(), None));
        Some(Self {
            layers: layers.collect(),
        })
    }

    /// Adds a staged layer.
    pub(super) fn add(&mut self, staged: StagedContents) {
        let mut layers = self.layers.iter_mut();
        if let Some((_, root)) = layers.find(|(id, _)| *id == staged.id) {
            *root = Some(staged.root);
        }
    }

    /// The images that the release image names, once its payload is staged. Errors of the payload are reported when the
    /// whole image is read.
    pub(super) fn selection(&self, filter: &Filter) -> Option<Selection> {
        let roots = self.layers.iter().map_while(|(_, root)| root.as_ref());
        let roots: Result<Vec<OwnedFd>, _> = roots.map(OwnedFd::try_clone).collect();
        release::selection_of_upper_layers(&Tree::of_roots(roots.ok()?), filter)
    }
}
