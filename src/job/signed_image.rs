//! Resolves an image together with its signatures, and refuses it if the node's signature policy does.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::error::TaskError;
use super::signature_policy::SignaturePolicy;
use crate::cancel::Cancel;
use crate::oci::{Content, Digest, Platform, Reference, ResolvedImage};
use crate::registry::{Kind, Registries, RegistryError, Resolved};
use crate::report::{Event, Observer, Span};
use crate::signature::Signature;
use crate::store::Inventory;

/// How long a registry may take to answer for the signatures of an image that is present and that no rule refuses. Such a
/// run may have nothing else to do, and no network.
const OPTIONAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Resolves images with their signatures.
pub(super) struct SignedImages {
    registries: Arc<Registries>,
    policy: Arc<SignaturePolicy>,
    platform: Platform,
    observer: Arc<dyn Observer>,
    cancel: Cancel,
    /// Registries that did not answer for signatures that no rule needs; they are not asked again.
    silent: Mutex<HashSet<String>>,
}

impl SignedImages {
    pub(super) fn new(
        registries: Arc<Registries>,
        policy: Arc<SignaturePolicy>,
        platform: Platform,
        observer: Arc<dyn Observer>,
        cancel: Cancel,
    ) -> Self {
        Self {
            registries,
            policy,
            platform,
            observer,
            cancel,
            silent: Mutex::default(),
        }
    }

    /// The image that `reference` names, with its signatures. Manifests, configs and signatures in the store are not
    /// downloaded again.
    ///
    /// The signatures of an image that is stored already and needs none are downloaded only if the registry answers soon.
    pub(super) async fn resolve(
        &self,
        reference: &Reference,
        inventory: &Inventory,
    ) -> Result<ResolvedImage, TaskError> {
        if let Some(reason) = self.policy.rejection(reference) {
            return Err(TaskError::Image(reason));
        }
        let resolved = self
            .registries
            .resolve(
                reference,
                &self.platform,
                &|digest| content(inventory, digest),
                &self.cancel,
            )
            .await;
        let Resolved { mut image, source } = resolved.map_err(|error| TaskError::resolving(&error))?;
        let manifest = image.manifest.digest();
        let stored = inventory.signatures_of(manifest);
        let suffices = |signatures: &[Vec<u8>]| {
            self.policy
                .check(reference, manifest, signatures)
                .refusal
                .is_none()
        };
        if !stored.is_empty() && suffices(&stored) {
            image.signatures = stored;
        } else if self.registries.has_signature_sources(reference) {
            let download = self
                .registries
                .signatures(reference, source.as_ref(), manifest, &self.cancel);
            let stored = inventory.image(&image.id());
            let is_stored = stored.is_some_and(|stored| stored.manifest() == Some(manifest));
            image.signatures = match is_stored && !self.policy.needs_signatures(reference) {
                true => self.download_soon(reference, download).await,
                false => blobs(&download.await.map_err(|error| TaskError::resolving(&error))?),
            };
        }
        match self.policy.check(reference, manifest, &image.signatures).refusal {
            Some(reason) => Err(TaskError::Image(reason)),
            None => Ok(image),
        }
    }

    /// The signatures of an image that the store has by this manifest, and that needs none; none if they are unavailable.
    pub(super) async fn signatures(&self, reference: &Reference, manifest: Digest) -> Vec<Vec<u8>> {
        let download = self
            .registries
            .signatures(reference, None, manifest, &self.cancel);
        self.download_soon(reference, download).await
    }

    /// The signatures, or none if they are unavailable or arrive late.
    async fn download_soon(
        &self,
        reference: &Reference,
        download: impl Future<Output = Result<Vec<Signature>, RegistryError>>,
    ) -> Vec<Vec<u8>> {
        let is_silent = |silent: &HashSet<String>| silent.contains(reference.domain());
        if is_silent(&self.silent.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Vec::new();
        }
        let why = match tokio::time::timeout(OPTIONAL_TIMEOUT, download).await {
            Ok(Ok(signatures)) => return blobs(&signatures),
            Ok(Err(error)) if error.kind() == Kind::Stopped => return Vec::new(),
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => format!("no answer within {}", Span(OPTIONAL_TIMEOUT)),
        };
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if silent.insert(reference.domain().to_owned()) {
            let registry = reference.domain();
            self.observer.observe(Event::Warned {
                message: format!(
                    "images of `{registry}` stay without signatures, because the signatures are unavailable: {why}\nhint: the \
                     node's policy does not require them, but pods in a namespace with its own signature policy may not start"
                ),
            });
        }
        Vec::new()
    }
}

fn blobs(signatures: &[Signature]) -> Vec<Vec<u8>> {
    signatures.iter().map(Signature::to_blob).collect()
}

/// What the store has with this digest.
fn content(inventory: &Inventory, digest: &Digest) -> Option<Content> {
    inventory.content(digest).unwrap_or_else(|error| {
        tracing::warn!("cannot read `{digest}` from the store, asking the registry: {error}");
        None
    })
}
