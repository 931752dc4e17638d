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
        let Resolved { mut image, source } = match resolved {
            Ok(resolved) => resolved,
            Err(error) => return Err(self.unresolved(reference, &error).await),
        };
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
        } else if let Some(signatures) = self.media_signatures(reference, manifest).await {
            image.signatures = signatures;
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
        if let Some(signatures) = self.media_signatures(reference, manifest).await {
            return signatures;
        }
        let download = self
            .registries
            .signatures(reference, None, manifest, &self.cancel);
        self.download_soon(reference, download).await
    }

    /// The signatures that media have of the image with this manifest; `None` if they do not suffice. No registry is asked
    /// for the signatures of an image that is on a medium and needs none.
    async fn media_signatures(&self, reference: &Reference, manifest: Digest) -> Option<Vec<Vec<u8>>> {
        let on_media = self
            .registries
            .in_media(move |media| media.size_of(manifest).is_some());
        let needs_none = !self.policy.needs_signatures(reference);
        let signatures = blobs(&self.registries.media_signatures(reference, manifest).await);
        let suffices = match needs_none {
            true => !signatures.is_empty() || on_media.await,
            false => {
                let checked = self.policy.check(reference, manifest, &signatures);
                !signatures.is_empty() && checked.refusal.is_none()
            }
        };
        suffices.then_some(signatures)
    }

    /// The error of an image that could not be resolved. Media do not resolve a tag, because it may have moved since; but
    /// they know what it was.
    async fn unresolved(&self, reference: &Reference, error: &RegistryError) -> TaskError {
        let failed = TaskError::resolving(error);
        let (TaskError::Image(mut reason), false, None, Some(tag)) = (
            failed,
            self.registries.media().is_empty(),
            reference.digest(),
            reference.tag(),
        ) else {
            return TaskError::resolving(error);
        };
        let (repository, tag) = (reference.repository(), tag.to_owned());
        let known = self.registries.in_media({
            let repository = repository.clone();
            move |media| media.tagged(&repository, &tag)
        });
        let hint = match known.await {
            Some(digest) => {
                format!("a medium has `{repository}@{digest}` for this tag; request the image by this digest")
            }
            None => "request the image by its digest to take it from a medium".to_owned(),
        };
        reason.message = format!(
            "{}\nhint: a tag needs a request to its registry; {hint}",
            reason.message
        );
        TaskError::Image(reason)
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
