//! Reads the signatures of an image in the store, and checks them against the node's signature policy.

use std::sync::Arc;

use super::error::Reason;
use super::signature_policy::{SignatureCheck, SignaturePolicy};
use crate::oci::{Digest, Reference};
use crate::registry::Registries;
use crate::report::SignatureReport;
use crate::store::{Inventory, StoreLocation, StoredImage};

/// Checks the signatures of images in the store.
#[derive(Clone)]
pub(super) struct StoredSignatureChecker {
    pub(super) policy: Arc<SignaturePolicy>,
    /// Only their configuration is read: where signatures are.
    pub(super) registries: Arc<Registries>,
}

/// The signatures that the store has of one image.
pub(super) struct StoredSignatures {
    pub(super) report: SignatureReport,
    /// Why the policy refuses the image with these signatures.
    pub(super) refusal: Option<Reason>,
    /// It has none, none is needed, but its registry may have some. CRI-O stores those too, and checks them later for pods
    /// in namespaces with their own policy.
    pub(super) may_be_completed: bool,
    /// The manifest that they are for.
    pub(super) manifest: Digest,
    /// As the store keeps them.
    pub(super) blobs: Vec<Vec<u8>>,
}

impl StoredSignatureChecker {
    /// Unreadable signatures count as missing; the refusal has the reason then.
    pub(super) fn check(
        &self,
        reference: &Reference,
        image: &StoredImage,
        inventory: &Inventory,
    ) -> StoredSignatures {
        let manifest = image.manifest();
        let read = manifest.map_or(Ok(Vec::new()), |manifest| inventory.signatures(image, manifest));
        let (signatures, damage) = match read {
            Ok(signatures) => (signatures, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        // Without a manifest the image is damaged, and is never accepted.
        let manifest = manifest.unwrap_or_else(|| Digest::of(b""));
        let SignatureCheck { report, mut refusal } = self.policy.check(reference, manifest, &signatures);
        if let (Some(refusal), Some(damage)) = (&mut refusal, damage) {
            refusal.message = format!(
                "{}; the stored signatures are unreadable: {damage}",
                refusal.message
            );
        }
        StoredSignatures {
            may_be_completed: signatures.is_empty()
                && refusal.is_none()
                && image.location == StoreLocation::GraphRoot
                && self.registries.has_signature_sources(reference),
            report,
            refusal,
            manifest,
            blobs: signatures,
        }
    }
}
