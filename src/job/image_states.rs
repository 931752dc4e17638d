//! Remembers what a registry returned for each requested image, and why an image failed.

use std::collections::HashMap;
use std::sync::Arc;

use super::Mode;
use super::error::Reason;
use super::snapshot::Snapshot;
use crate::exit_code::Failure;
use crate::oci::{LayerId, Reference, ResolvedImage};
use crate::plan::{ImageAction, Plan};
use crate::report::ImagePhase;

/// Grows during the run. A failure is final.
#[derive(Default)]
pub(super) struct ImageStates {
    resolved: HashMap<Reference, Arc<ResolvedImage>>,
    failed: HashMap<Reference, Reason>,
}

impl ImageStates {
    /// Two names may have the same manifest and different signatures. Each policy rule is about one name, and the store
    /// keeps the signatures by manifest, so every name gets the signatures of all.
    pub(super) fn resolve(&mut self, reference: &Reference, mut image: ResolvedImage) {
        let manifest = image.manifest.digest();
        let others = self.resolved.values_mut();
        let twins: Vec<_> = others.filter(|it| it.manifest.digest() == manifest).collect();
        for signature in twins.iter().flat_map(|twin| &twin.signatures) {
            if !image.signatures.contains(signature) {
                image.signatures.push(signature.clone());
            }
        }
        for twin in twins {
            if twin.signatures.len() < image.signatures.len() {
                Arc::make_mut(twin).signatures.clone_from(&image.signatures);
            }
        }
        self.resolved.insert(reference.clone(), Arc::new(image));
    }

    /// Returns whether the failure is new; the first reason is kept.
    pub(super) fn fail(&mut self, reference: &Reference, reason: Reason) -> bool {
        let is_new = !self.failed.contains_key(reference);
        self.failed.entry(reference.clone()).or_insert(reason);
        is_new
    }

    pub(super) fn failure(&self, reference: &Reference) -> Option<&Reason> {
        self.failed.get(reference)
    }

    /// Among the failures of the plan's images, the one to fix first.
    pub(super) fn gravest_failure(&self, plan: &Plan) -> Option<Failure> {
        let images = plan.images.iter();
        let failures = images.filter_map(|image| self.failure(&image.reference));
        failures.map(|reason| reason.failure).min()
    }

    /// What a registry returned.
    pub(super) fn resolved(&self, reference: &Reference) -> Option<&ResolvedImage> {
        self.resolved.get(reference).map(Arc::as_ref)
    }

    /// Whether a registry resolved the image.
    pub(super) fn is_resolved(&self, reference: &Reference) -> bool {
        self.resolved.contains_key(reference)
    }

    /// Whether the store has the image, whole.
    ///
    /// For a run, a name that stays must lead to it, because its repository's other names may be removed from it; and an
    /// image requested by tag must be the one that the registry now returns for that tag. Where registries are not asked,
    /// it is enough that CRI-O finds the image.
    pub(super) fn is_present(&self, reference: &Reference, snapshot: &Snapshot, mode: Mode) -> bool {
        snapshot.image(reference).is_some_and(|image| {
            let is_requested_image = mode.reads_all()
                || match (reference.tag(), self.resolved.get(reference)) {
                    (None, _) => image.keeps_name,
                    (Some(_), Some(resolved)) => image.id == resolved.id(),
                    (Some(_), None) => false,
                };
            is_requested_image && image.flaw.is_none()
        })
    }

    /// Whether a registry has to resolve the image.
    pub(super) fn is_unresolved(&self, reference: &Reference, snapshot: &Snapshot, mode: Mode) -> bool {
        !self.resolved.contains_key(reference)
            && !self.failed.contains_key(reference)
            && !self.is_present(reference, snapshot, mode)
    }

    /// Whether the image is missing and can be pulled.
    pub(super) fn is_pullable(&self, reference: &Reference, snapshot: &Snapshot, mode: Mode) -> bool {
        self.resolved.contains_key(reference)
            && !self.failed.contains_key(reference)
            && !self.is_present(reference, snapshot, mode)
    }

    /// The images that the store lacks or has damaged, for `verify`.
    pub(super) fn missing(
        &self,
        references: &[Reference],
        snapshot: &Snapshot,
        mode: Mode,
    ) -> Vec<(Reference, ImagePhase, Reason)> {
        let absent = references
            .iter()
            .filter(|it| !self.is_present(it, snapshot, mode));
        let missing = absent.map(|reference| {
            let flaw = snapshot.image(reference).and_then(|image| image.flaw.clone());
            let phase = match &flaw {
                Some(flaw) if flaw.failure == Failure::Store => ImagePhase::Damaged,
                Some(_) | None => ImagePhase::Failed,
            };
            let reason = flaw.unwrap_or_else(|| Reason {
                failure: Failure::Incomplete,
                message: "it is not in the store".to_owned(),
            });
            (reference.clone(), phase, reason)
        });
        missing.collect()
    }

    /// What the plan does with the image.
    pub(super) fn action(&self, reference: &Reference, snapshot: &Snapshot, mode: Mode) -> ImageAction {
        if let Some(reason) = self.failed.get(reference) {
            return ImageAction::Failed(reason.message.clone());
        }
        if self.is_present(reference, snapshot, mode) {
            return ImageAction::Present;
        }
        match self.resolved.get(reference) {
            Some(image) => ImageAction::Pull(Arc::clone(image)),
            None => ImageAction::Failed("no registry has answered yet".to_owned()),
        }
    }

    /// The layers of every resolved image.
    pub(super) fn layers(&self) -> impl Iterator<Item = LayerId> {
        self.resolved.values().flat_map(|image| image.layer_ids())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::oci::Content;

    #[test]
    fn names_of_one_manifest_share_their_signatures() {
        let name = |text: &str| text.parse::<Reference>().expect("a reference");
        let image = |manifest: &'static str, signature: &str| ResolvedImage {
            list: None,
            manifest: Content::new(Bytes::from(manifest)),
            config: Content::new(Bytes::from("config")),
            layers: Vec::new(),
            created: None,
            signatures: vec![signature.as_bytes().to_vec()],
        };
        let mut states = ImageStates::default();
        states.resolve(&name("a.io/a:1"), image("one", "of a"));
        states.resolve(&name("a.io/b:1"), image("one", "of b"));
        states.resolve(&name("a.io/c:1"), image("two", "of c"));
        states.resolve(&name("a.io/d:1"), image("one", "of a"));
        for (reference, mut expected) in [
            ("a.io/a:1", vec!["of a", "of b"]),
            ("a.io/b:1", vec!["of a", "of b"]),
            ("a.io/c:1", vec!["of c"]),
            ("a.io/d:1", vec!["of a", "of b"]),
        ] {
            let image = states.resolved(&name(reference)).expect("resolved");
            let mut found: Vec<_> = image
                .signatures
                .iter()
                .map(|it| String::from_utf8_lossy(it))
                .collect();
            found.sort();
            expected.sort_unstable();
            assert_eq!(found, expected, "{reference}");
        }
    }
}
