//! Downloads the signatures of an image to keep them beside the image, in the forms in which they are published.

use std::collections::BTreeSet;

use serde_json::json;

use crate::cancel::Cancel;
use crate::oci::{Content, Digest, OCI_IMAGE_CONFIG_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE, Reference};
use crate::signature::{Signature, SigstoreSignature};

use super::Registries;
use super::error::RegistryError;
use super::mirrors::PullSource;

/// The signatures of one image.
#[derive(Clone, Debug, Default)]
pub struct SignatureCopies {
    /// The files of the lookaside store, in their order.
    pub lookaside: Vec<Vec<u8>>,
    /// The sigstore attachments.
    pub attachments: Option<AttachmentCopy>,
}

/// An image with sigstore signatures, as cosign attaches it.
#[derive(Clone, Debug)]
pub struct AttachmentCopy {
    /// Its tag in the image's repository.
    pub tag: String,
    /// Its manifest.
    pub manifest: Content,
    /// Its config and its layers, which are the payloads.
    pub blobs: Vec<Content>,
}

impl Registries {
    /// The signatures that registries.d of this host makes a pull read, in the forms in which they are published.
    pub async fn signature_copies(
        &self,
        image: &Reference,
        source: Option<&PullSource>,
        manifest: Digest,
        cancel: &Cancel,
    ) -> Result<SignatureCopies, RegistryError> {
        let signatures = self.signatures(image, source, manifest, cancel).await?;
        Ok(copies(manifest, signatures))
    }

    /// The sigstore attachments at the source that answered with the manifest, also if registries.d of this host does not
    /// mention them.
    pub async fn attachment_copy(
        &self,
        image: &Reference,
        source: &PullSource,
        manifest: Digest,
        cancel: &Cancel,
    ) -> Result<Option<AttachmentCopy>, RegistryError> {
        let attachments = self.attachments(image, source, manifest, cancel).await?;
        Ok(copies(manifest, attachments).attachments)
    }
}

fn copies(manifest: Digest, signatures: Vec<Signature>) -> SignatureCopies {
    let mut copies = SignatureCopies::default();
    let mut attached = Vec::new();
    for signature in signatures {
        match signature {
            Signature::Sigstore(signature) => attached.push(signature),
            other => copies.lookaside.push(other.to_blob()),
        }
    }
    copies.attachments = (!attached.is_empty()).then(|| attachment(manifest, attached));
    copies
}

/// The image whose layers are these signatures. Each layer is as it was; the config is made here, because no reader of
/// signatures asks for it.
fn attachment(manifest: Digest, signatures: Vec<SigstoreSignature>) -> AttachmentCopy {
    let content = |value: serde_json::Value| Content::new(value.to_string().into());
    let (mut layers, mut payloads, mut digests) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut diff_ids = Vec::new();
    for signature in signatures {
        let payload = Content::new(signature.payload.into());
        let mut layer = json!({
            "mediaType": signature.mime_type,
            "digest": payload.digest(),
            "size": payload.bytes().len(),
        });
        if let Some(annotations) = signature.annotations {
            layer["annotations"] = json!(annotations);
        }
        layers.push(layer);
        diff_ids.push(payload.digest());
        if digests.insert(payload.digest()) {
            payloads.push(payload);
        }
    }
    let config = content(json!({
        "architecture": "",
        "os": "",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }));
    let attached = content(json!({
        "schemaVersion": 2,
        "mediaType": OCI_IMAGE_MEDIA_TYPE,
        "config": {
            "mediaType": OCI_IMAGE_CONFIG_MEDIA_TYPE,
            "digest": config.digest(),
            "size": config.bytes().len(),
        },
        "layers": layers,
    }));
    payloads.push(config);
    AttachmentCopy {
        tag: format!("sha256-{}.sig", manifest.hex()),
        manifest: attached,
        blobs: payloads,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::SignatureManifest;

    #[test]
    fn an_attachment_is_read_as_what_it_was_made_from() {
        let image = Digest::of(b"image");
        let signature = |payload: &str| {
            Signature::Sigstore(SigstoreSignature {
                mime_type: "application/vnd.dev.cosign.simplesigning.v1+json".to_owned(),
                payload: payload.into(),
                annotations: Some([("k".to_owned(), payload.to_owned())].into()),
            })
        };
        let copies = copies(image, vec![signature("a"), signature("b"), signature("a")]);
        assert!(copies.lookaside.is_empty());
        let copy = copies.attachments.expect("attachments");
        assert_eq!(copy.tag, format!("sha256-{}.sig", image.hex()));
        assert_eq!(copy.blobs.len(), 3, "two payloads and the config");
        let read = SignatureManifest::parse(copy.manifest.bytes(), Some(OCI_IMAGE_MEDIA_TYPE));
        let layers = read.expect("a signature manifest").layers;
        let digests: Vec<Digest> = layers.iter().map(|layer| layer.blob).collect();
        assert_eq!(digests, [b"a", b"b", b"a"].map(|payload| Digest::of(payload)));
        let annotations = layers[1].annotations.as_ref().expect("annotations");
        assert_eq!(annotations["k"], "b");
    }
}
