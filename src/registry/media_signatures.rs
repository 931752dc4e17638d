//! Reads the signatures of images and the referrers of manifests from media, under the names that registries use.
//!
//! ```text
//! lookaside     lookaside/<host>/<path>@sha256=<hex>/signature-N      until one is missing      simple signing
//! attachments   the image <host>/<path>:sha256-<hex>.sig, then its layers                       sigstore
//! referrers     the index <host>/<path>:sha256-<hex>
//! ```
//!
//! A medium may have been filled from a mirror, so the names of the image's sources count as well as its own. Nothing here is
//! trusted: the signature policy judges the signatures as it judges those of registries.

use crate::media::Media;
use crate::oci::{
    Digest, MAX_MANIFEST_SIZE, MAX_SIGNATURES, OCI_IMAGE_MEDIA_TYPE, Reference, SignatureLayer,
    SignatureManifest,
};
use crate::signature::{Signature, SigstoreSignature};

use super::Registries;
use super::attachments::{MAX_SIGNATURE, MAX_TOTAL};
use super::referrers_index::referrers_tag;

impl Registries {
    /// The signatures of the image with this manifest that media have, in the order of [`Registries::signatures`]. Empty also
    /// if some of them cannot be read.
    pub async fn media_signatures(&self, image: &Reference, manifest: Digest) -> Vec<Signature> {
        let names = self.names(image);
        let attached = self.may_have_attachments(image);
        self.in_media(move |media| {
            let mut signatures: Vec<Signature> = first(&names, |name| lookaside(media, name, manifest));
            if attached {
                signatures.extend(first(&names, |name| attachments(media, name, manifest)));
            }
            signatures
        })
        .await
    }

    /// The index of referrers of this manifest that media have, as bytes.
    pub(super) async fn media_referrers(&self, image: &Reference, subject: Digest) -> Option<bytes::Bytes> {
        let names = self.names(image);
        self.in_media(move |media| {
            let tag = referrers_tag(subject);
            let mut indexes = names.iter().filter_map(|name| media.tagged(name, &tag));
            let index = indexes.find_map(|digest| media.content(digest, MAX_MANIFEST_SIZE));
            index.map(|content| content.bytes().clone())
        })
        .await
    }

    /// The repositories under which media may have what belongs to the image.
    fn names(&self, image: &Reference) -> Vec<String> {
        let mut names = vec![image.repository()];
        let sources = self.sources(image).unwrap_or_default();
        names.extend(sources.iter().map(|source| source.reference.repository()));
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }

    /// Whether registries.d switches sigstore attachments on. If it does not, containers/image does not store them either.
    fn may_have_attachments(&self, image: &Reference) -> bool {
        let sources = self.sources(image).unwrap_or_default();
        sources.iter().any(|source| {
            let at = self.registries_d.signature_sources(&source.reference);
            at.is_ok_and(|at| at.attachments)
        })
    }
}

/// The signatures under the first name that has any.
fn first(names: &[String], read: impl Fn(&str) -> Vec<Signature>) -> Vec<Signature> {
    let mut found = names.iter().map(|name| read(name));
    found
        .find(|signatures| !signatures.is_empty())
        .unwrap_or_default()
}

fn lookaside(media: &Media, repository: &str, manifest: Digest) -> Vec<Signature> {
    let (mut signatures, mut rest) = (Vec::new(), MAX_TOTAL);
    while signatures.len() < MAX_SIGNATURES
        && let Some(blob) = media.lookaside_signature(repository, manifest, signatures.len() + 1)
    {
        let Some(left) = rest.checked_sub(blob.len() as u64) else {
            break;
        };
        rest = left;
        match Signature::from_blob(&blob) {
            Ok(signature) => signatures.push(signature),
            Err(error) => {
                tracing::warn!("cannot use a signature of `{repository}` from a medium: {error}");
                break;
            }
        }
    }
    signatures
}

fn attachments(media: &Media, repository: &str, manifest: Digest) -> Vec<Signature> {
    let tag = format!("sha256-{}.sig", manifest.hex());
    let named = media.tagged(repository, &tag);
    let Some(content) = named.and_then(|digest| media.content(digest, MAX_MANIFEST_SIZE)) else {
        return Vec::new();
    };
    let layers = match SignatureManifest::parse(content.bytes(), Some(OCI_IMAGE_MEDIA_TYPE)) {
        Ok(SignatureManifest { layers }) => layers,
        Err(error) => {
            tracing::warn!("cannot use the signatures `{repository}:{tag}` from a medium: {error}");
            return Vec::new();
        }
    };
    let sizes = layers.iter().map(|layer| layer.size);
    if sizes.fold(0, u64::saturating_add) > MAX_TOTAL || layers.iter().any(|layer| layer.size > MAX_SIGNATURE)
    {
        return Vec::new();
    }
    let signature = |layer: SignatureLayer| {
        let payload = media.content(layer.blob, layer.size)?;
        Some(Signature::Sigstore(SigstoreSignature {
            mime_type: layer.media_type,
            payload: payload.bytes().to_vec(),
            annotations: layer.annotations,
        }))
    };
    // All or none, as from a registry.
    let signatures: Option<Vec<Signature>> = layers.into_iter().map(signature).collect();
    signatures.unwrap_or_default()
}
