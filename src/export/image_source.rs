//! Resolves images, and stores their manifests, configs and signatures in the output.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::blocking::run_blocking;
use super::error::ExportError;
use super::image_nodes::LayerBlob;
use super::output::{BlobReader, Output};
use crate::cancel::Cancel;
use crate::fetch::{BlobRequest, Fetcher};
use crate::oci::{Content, Descriptor, Digest, Layer, MAX_MANIFEST_SIZE, Platform, Reference, ResolvedImage};
use crate::registry::{AttachmentCopy, Kind, PullSource, Registries, SignatureCopies};
use crate::report::{Event, Observer};
use crate::spool::VerifiedBlob;

/// The connections that are reserved for a large blob.
pub(super) const CONNECTIONS: usize = 2;

/// How long a registry may take to answer for attachments that registries.d does not mention.
const OPTIONAL_TIMEOUT: Duration = Duration::from_secs(30);

/// An image whose manifests, config and signatures are in the output.
#[derive(Clone, Debug)]
pub(super) struct ExportedImage {
    pub(super) image: ResolvedImage,
    /// The attachments with their tag.
    pub(super) attachments: Option<(String, Descriptor)>,
}

impl ExportedImage {
    /// The manifest or index that the reference names.
    pub(super) fn top(&self) -> &Content {
        self.image.list.as_ref().unwrap_or(&self.image.manifest)
    }
}

/// Everything that the tasks of an export share.
pub(super) struct ImageSource {
    pub(super) registries: Arc<Registries>,
    pub(super) fetcher: Fetcher,
    pub(super) output: Arc<Output>,
    pub(super) platform: Platform,
    pub(super) work_dir: PathBuf,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) cancel: Cancel,
    /// Registries that do not answer for attachments that registries.d does not mention; they are not asked again.
    pub(super) silent: Mutex<HashSet<String>>,
}

impl ImageSource {
    /// Resolves an image. What the output has is not downloaded again.
    pub(super) async fn image(&self, reference: &Reference) -> Result<ExportedImage, ExportError> {
        let known = |digest: &_| self.output.content(*digest, MAX_MANIFEST_SIZE);
        let resolved = self
            .registries
            .resolve(reference, &self.platform, &known, &self.cancel)
            .await?;
        let (image, source) = (resolved.image, resolved.source);
        let copies = self.signatures(reference, source.as_ref(), &image).await?;
        let (output, repository) = (Arc::clone(&self.output), reference.repository());
        run_blocking(move || {
            let attachments = store(&output, &repository, &image, copies)?;
            Ok(ExportedImage { image, attachments })
        })
        .await
    }

    /// The blob of a layer, from the output or else from the registries.
    pub(super) async fn layer(&self, layer: &Layer, image: &Reference) -> Result<LayerBlob, ExportError> {
        let (output, cancel) = (Arc::clone(&self.output), self.cancel.clone());
        let (digest, size) = (layer.blob, layer.size);
        let stored = run_blocking(move || {
            Ok(match output.verify(digest, size, &cancel)? {
                true => output.blob(digest)?,
                false => None,
            })
        });
        let reader = match stored.await? {
            Some(reader) => reader,
            None => {
                let blob = self.fetch(digest, size, vec![image.clone()]).await?;
                BlobReader::new(Arc::new(blob.open()?), 0, blob.size())
            }
        };
        Ok(LayerBlob { digest, reader })
    }

    /// Downloads a blob, which `images` have, into the spool.
    pub(super) async fn fetch(
        &self,
        digest: Digest,
        size: u64,
        images: Vec<Reference>,
    ) -> Result<VerifiedBlob, ExportError> {
        let request = BlobRequest {
            digest,
            size,
            images,
            connections: CONNECTIONS,
            is_optional: false,
            is_on_medium: false,
        };
        Ok(self.fetcher.fetch(request, &self.cancel).await?)
    }

    /// The signatures that registries.d of this host names, and attachments also where it does not mention them: the node's
    /// configuration may require what is unknown here.
    async fn signatures(
        &self,
        reference: &Reference,
        source: Option<&PullSource>,
        image: &ResolvedImage,
    ) -> Result<SignatureCopies, ExportError> {
        let manifest = image.manifest.digest();
        let registries = &self.registries;
        let mut copies = registries
            .signature_copies(reference, source, manifest, &self.cancel)
            .await?;
        if copies.attachments.is_some() {
            return Ok(copies);
        }
        let sources = registries.sources(reference)?;
        let Some(source) = source.or(sources.first()) else {
            return Ok(copies);
        };
        let domain = source.reference.domain();
        let silent = || self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if silent().contains(domain) {
            return Ok(copies);
        }
        let download = registries.attachment_copy(reference, source, manifest, &self.cancel);
        let why = match tokio::time::timeout(OPTIONAL_TIMEOUT, download).await {
            Ok(Ok(attachments)) => {
                copies.attachments = attachments;
                return Ok(copies);
            }
            Ok(Err(error)) if error.kind() == Kind::Stopped => return Err(error.into()),
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => format!("no answer within {} s", OPTIONAL_TIMEOUT.as_secs()),
        };
        if silent().insert(domain.to_owned()) {
            let message = format!(
                "sigstore attachments of `{domain}` are not exported: {why}\n\
                 hint: nodes whose policy requires them cannot use these images without a network"
            );
            self.observer.observe(Event::Warned { message });
        }
        Ok(copies)
    }
}

/// Stores the documents and the signatures of an image. Returns the tag of its attachments.
fn store(
    output: &Output,
    repository: &str,
    image: &ResolvedImage,
    copies: SignatureCopies,
) -> Result<Option<(String, Descriptor)>, ExportError> {
    for content in image.list.iter().chain([&image.manifest, &image.config]) {
        output.put_content(content)?;
    }
    let manifest = image.manifest.digest();
    for (number, signature) in (1..).zip(&copies.lookaside) {
        let directory = format!("lookaside/{repository}@sha256={}", manifest.hex());
        output.put_file(&format!("{directory}/signature-{number}"), signature)?;
    }
    let Some(AttachmentCopy { tag, manifest, blobs }) = copies.attachments else {
        return Ok(None);
    };
    for content in blobs.iter().chain([&manifest]) {
        output.put_content(content)?;
    }
    let reference = format!("{repository}:{tag}");
    let descriptor = Descriptor::of_manifest(&manifest).map_err(|source| ExportError::Manifest {
        reference: reference.clone(),
        source,
    })?;
    Ok(Some((reference, descriptor)))
}
