//! Downloads the sigstore attachments of an image: the manifest that names them, and their payloads.

use std::collections::BTreeMap;

use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::cancel::Cancel;
use crate::oci::{Digest, Reference, SignatureLayer, SignatureManifest};
use crate::signature::{Signature, SigstoreSignature};

use super::Registries;
use super::error::RegistryError;
use super::mirrors::PullSource;
use super::resolve::{Answer, Item};

/// The largest signature or payload (containers/image's `iolimits.MaxSignatureBodySize`).
pub(super) const MAX_SIGNATURE: u64 = 4 << 20;

/// The most bytes of all signatures of an image together: all are in memory at a time.
pub(super) const MAX_TOTAL: u64 = 16 << 20;

/// How many payloads of an image are downloaded at the same time. Most images have one signature.
const CONCURRENCY: usize = 4;

impl Registries {
    /// The signatures under the tag `sha256-<hex of the manifest's digest>.sig` at this source, in the order of their
    /// manifest; none if there is no such tag.
    pub(super) async fn attachments(
        &self,
        image: &Reference,
        source: &PullSource,
        manifest: Digest,
        cancel: &Cancel,
    ) -> Result<Vec<Signature>, RegistryError> {
        let attachments = self.attachment_manifest(image, source, manifest, cancel).await?;
        let Some(SignatureManifest { layers }) = attachments else {
            return Ok(Vec::new());
        };
        let sizes = layers.iter().map(|layer| layer.size);
        let total = sizes.fold(0, u64::saturating_add);
        let too_large = |limit| RegistryError::TooLarge {
            what: format!("signatures of `{image}` from `{}`", source.reference.repository()),
            limit,
        };
        if layers.iter().any(|layer| layer.size > MAX_SIGNATURE) {
            return Err(too_large(MAX_SIGNATURE));
        }
        if total > MAX_TOTAL {
            return Err(too_large(MAX_TOTAL));
        }
        // Several keys may have signed the same payload.
        let distinct: BTreeMap<Digest, u64> = layers.iter().map(|layer| (layer.blob, layer.size)).collect();
        let download = move |(blob, size): (Digest, u64)| async move {
            let item = Item {
                name: format!("signature {blob}"),
                path: format!("blobs/{blob}"),
                accept: "*/*".into(),
                limit: size,
                digest: Some(blob),
            };
            let attempts = self.attempts(
                format!("a signature of `{image}`"),
                vec![image.to_string()],
                vec![source.clone()],
            );
            let read = |answer: Result<Answer, _>| answer;
            let (answer, _) = self.download(&item, attempts, read, cancel).await?;
            Ok::<_, RegistryError>((blob, answer.content))
        };
        let payloads = stream::iter(distinct).map(download).buffer_unordered(CONCURRENCY);
        let payloads: BTreeMap<_, _> = payloads.try_collect().await?;
        let signatures = layers.into_iter().map(|layer| {
            let SignatureLayer {
                media_type,
                blob,
                annotations,
                ..
            } = layer;
            Signature::Sigstore(SigstoreSignature {
                mime_type: media_type,
                payload: payloads[&blob].bytes().to_vec(),
                annotations,
            })
        });
        Ok(signatures.collect())
    }

    /// The manifest of the attachments; nothing if there is none.
    async fn attachment_manifest(
        &self,
        image: &Reference,
        source: &PullSource,
        manifest: Digest,
        cancel: &Cancel,
    ) -> Result<Option<SignatureManifest>, RegistryError> {
        let tag = format!("sha256-{}.sig", manifest.hex());
        let item = Item::manifest(&tag, None);
        let attempts = self.attempts(
            format!("the signatures of `{image}`"),
            vec![image.to_string()],
            vec![source.clone()],
        );
        let read = |answer: Result<Answer, RegistryError>| match answer {
            Ok(Answer {
                content,
                content_type,
            }) => SignatureManifest::parse(content.bytes(), content_type.as_deref())
                .map(Some)
                .map_err(|error| RegistryError::Manifest {
                    reference: format!("{}:{tag}", source.reference.repository()),
                    source: error,
                }),
            Err(RegistryError::Status { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        };
        let (found, _) = self.download(&item, attempts, read, cancel).await?;
        Ok(found)
    }
}
