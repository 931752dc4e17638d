//! Evaluates the signature policy (`policy.json`) of an image, with simple signing and sigstore signatures.
//!
//! A [`Signature`] is one signature of an image; `blob.rs` defines how the store and lookaside stores keep it.

mod blob;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use blob::BlobError;

/// A signature of an image, of one of the two kinds that containers/image knows. Nothing about it is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signature {
    /// Simple signing: an OpenPGP message, whose body names the manifest's digest and the image.
    Simple(Vec<u8>),
    /// A sigstore attachment: a signature, or something else that cosign attached to the image.
    Sigstore(SigstoreSignature),
}

/// One layer of a sigstore attachment manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SigstoreSignature {
    /// The layer's media type. Only [`SigstoreSignature::MIME_TYPE`] is a signature.
    pub mime_type: String,
    /// The layer's content.
    pub payload: Vec<u8>,
    /// The layer's annotations, among them the signature of the payload.
    pub annotations: BTreeMap<String, String>,
}

impl SigstoreSignature {
    /// The media type of an attachment that is a signature (cosign `SimpleSigningMediaType`).
    pub const MIME_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
    /// The annotation with the signature of the payload, in base64 (cosign `SignatureAnnotationKey`).
    pub const SIGNATURE_ANNOTATION: &str = "dev.cosignproject.cosign/signature";
}
