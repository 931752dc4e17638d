//! What is known of each wanted image beyond what the store has: what a registry said, and why it cannot be had.

use std::collections::HashMap;
use std::sync::Arc;

use super::Mode;
use super::failure::Reason;
use super::snapshot::Snapshot;
use crate::oci::{LayerId, Reference, ResolvedImage};
use crate::plan::ImageAction;

/// Grows through the run; a failure stands.
#[derive(Default)]
pub(super) struct ImageStates {
    resolved: HashMap<Reference, Arc<ResolvedImage>>,
    failed: HashMap<Reference, Reason>,
}

impl ImageStates {
    pub(super) fn resolve(&mut self, reference: &Reference, image: ResolvedImage) {
        self.resolved.insert(reference.clone(), Arc::new(image));
    }

    /// Says whether that is news: the first reason stands.
    pub(super) fn fail(&mut self, reference: &Reference, reason: Reason) -> bool {
        let is_news = !self.failed.contains_key(reference);
        self.failed.entry(reference.clone()).or_insert(reason);
        is_news
    }

    pub(super) fn failure(&self, reference: &Reference) -> Option<&Reason> {
        self.failed.get(reference)
    }

    /// What a registry has answered.
    pub(super) fn resolved(&self, reference: &Reference) -> Option<&ResolvedImage> {
        self.resolved.get(reference).map(Arc::as_ref)
    }

    /// Whether a registry has answered.
    pub(super) fn is_resolved(&self, reference: &Reference) -> bool {
        self.resolved.contains_key(reference)
    }

    /// Whether the store has the image, whole. For a run it must keep its name, for another name of its repository
    /// may be taken from it, and if it is wanted by tag it must be the image that the registry now gives for it. Where
    /// nobody is to be asked, it is enough that CRI-O would find it.
    pub(super) fn is_present(&self, reference: &Reference, sight: &Snapshot, mode: Mode) -> bool {
        sight.image(reference).is_some_and(|seen| {
            let is_it = mode.reads_all()
                || match (reference.tag(), self.resolved.get(reference)) {
                    (None, _) => seen.keeps_name,
                    (Some(_), Some(resolved)) => seen.id == resolved.id(),
                    (Some(_), None) => false,
                };
            is_it && seen.flaw.is_none()
        })
    }

    /// Whether a registry has to be asked about the image.
    pub(super) fn is_open(&self, reference: &Reference, sight: &Snapshot, mode: Mode) -> bool {
        !self.resolved.contains_key(reference)
            && !self.failed.contains_key(reference)
            && !self.is_present(reference, sight, mode)
    }

    /// Whether the image can be pulled and has to be.
    pub(super) fn is_to_pull(&self, reference: &Reference, sight: &Snapshot, mode: Mode) -> bool {
        self.resolved.contains_key(reference)
            && !self.failed.contains_key(reference)
            && !self.is_present(reference, sight, mode)
    }

    /// What the plan is to make of the image.
    pub(super) fn need(&self, reference: &Reference, sight: &Snapshot, mode: Mode) -> ImageAction {
        if let Some(reason) = self.failed.get(reference) {
            return ImageAction::Failed(reason.message.clone());
        }
        if self.is_present(reference, sight, mode) {
            return ImageAction::Present;
        }
        match self.resolved.get(reference) {
            Some(image) => ImageAction::Pull(Arc::clone(image)),
            None => ImageAction::Failed("no registry has answered for it yet".to_owned()),
        }
    }

    /// The layers of every image that a registry was asked about.
    pub(super) fn layers(&self) -> impl Iterator<Item = LayerId> {
        self.resolved.values().flat_map(|image| image.layer_ids())
    }
}
