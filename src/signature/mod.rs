//! Evaluates the signature policy (`policy.json`) of an image, with simple signing and sigstore signatures.
//!
//! ```text
//! policy.json ─policy_json→ Policy ─rule(image)→ Rule ─evaluate→ Accepted
//!                                    scope and      │   Refusal: scope, requirement, and why not each signature
//!                                    Requirement*   │
//!                     Signature*, manifest's digest ┘   evaluation: keys, then Payload, then SignedIdentity
//! ```
//!
//! The rules are those of containers/image, which CRI-O applies when it pulls an image:
//! containers-policy.json(5). Fulcio, PKI, Rekor and `signedBaseLayer` are not evaluated, so no image meets them here. There
//! is no I/O and no clock: the caller passes time and key files.

mod blob;
mod evaluation;
mod named_reference;
mod payload;
mod policy;
mod policy_json;
mod public_key;
mod refusal;
mod requirement;
mod rule;
mod signed_identity;
mod strict_json;
mod transport_scope;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use blob::BlobError;
pub use evaluation::KeyFiles;
pub use payload::{Payload, PayloadError};
pub use policy::{Policy, PolicyError};
pub use refusal::Refusal;
pub use rule::{Accepted, Rule};

/// How many characters of a foreign text a message shows.
const SHOWN: usize = 300;

/// A foreign text as a message can show it: of bounded length and without control characters.
fn shown(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(SHOWN).map(visible).collect()
}

/// How many items of a list a message shows.
const LISTED: usize = 5;

/// The items of a list as a message can show them; if there are many, the first ones and the number of the others.
fn list(items: impl IntoIterator<Item = String>, separator: &str) -> String {
    let mut items = items.into_iter();
    let mut shown: Vec<String> = items.by_ref().take(LISTED).collect();
    match items.count() {
        0 => {}
        more => shown.push(format!("and {more} more")),
    }
    shown.join(separator)
}

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
    /// The layer's annotations, among them the signature of the payload. None and an empty map are stored differently.
    pub annotations: Option<BTreeMap<String, String>>,
}

impl SigstoreSignature {
    /// The media type of an attachment that is a signature (cosign `SimpleSigningMediaType`).
    pub const MIME_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
    /// The annotation with the signature of the payload, in base64 (cosign `SignatureAnnotationKey`).
    pub const SIGNATURE_ANNOTATION: &str = "dev.cosignproject.cosign/signature";
}
