//! Evaluates the requirements that need signatures: `signedBy` and `sigstoreSigned`.
//!
//! containers/image `signature/policy_eval_signedby.go` and `policy_eval_sigstore.go`: one accepted signature is enough, and
//! signatures of the other kind do not count. First the cryptography, then the signed digest, then the signed identity.

use std::io;
use std::path::Path;

use jiff::Timestamp;

use super::named_reference::NamedReference;
use super::payload::Payload;
use super::public_key::PublicKey;
use super::refusal::Reason;
use super::requirement::{KeySource, SignedRequirement};
use super::signed_identity::SignedIdentity;
use super::{Signature, SigstoreSignature, shown};
use crate::oci::{Digest, go_json};
use crate::openpgp::{self, Keyring, Rules};

/// Reads the key files that a policy names.
pub trait KeyFiles: std::fmt::Debug {
    /// The content of a file, bounded in size. `path` is as the policy has it: absolute, or relative to CRI-O's working
    /// directory, which is `/`.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
}

/// An image with its signatures, and what their evaluation needs.
pub(super) struct Evaluation<'a> {
    /// The name that the user asked for.
    pub(super) image: NamedReference,
    /// Digest of the manifest of the chosen instance.
    pub(super) manifest: Digest,
    pub(super) signatures: &'a [Signature],
    pub(super) files: &'a dyn KeyFiles,
    pub(super) now: Timestamp,
}

/// The signature that satisfied a requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Satisfied {
    /// The position among the image's signatures, from 1.
    pub(super) number: usize,
    /// In messages: `OpenPGP key 199E2F91FD431D51`.
    pub(super) signer: String,
}

impl Evaluation<'_> {
    /// Looks for a simple signature by a key of the keyring.
    pub(super) fn signed_by(&self, required: &SignedRequirement) -> Result<Satisfied, Reason> {
        let simple = self.numbered(|signature| match signature {
            Signature::Simple(message) => Some(message),
            Signature::Sigstore(_) => None,
        });
        if simple.is_empty() {
            return Err(Reason::no_simple_signature(self.signatures.len()));
        }
        let files = self.read_all(&required.keys)?;
        let files: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
        let keyring = Keyring::parse_all(&files, Rules::GnuPg)
            .map_err(|error| Reason::unusable_keys(&required.keys, &error))?;
        first_accepted(simple, |message| {
            let signed = openpgp::verify(message, &keyring, self.now).map_err(|error| error.to_string())?;
            let payload = Payload::of_simple_signing(&signed.body).map_err(|error| error.to_string())?;
            self.check(&payload, &required.identity)?;
            Ok(format!("OpenPGP key {:016X}", signed.signer.key_id))
        })
    }

    /// Looks for a sigstore signature by one of the keys.
    pub(super) fn sigstore_signed(&self, required: &SignedRequirement) -> Result<Satisfied, Reason> {
        let attachments = self.numbered(|signature| match signature {
            Signature::Sigstore(attachment) => Some(attachment),
            Signature::Simple(_) => None,
        });
        let attached = attachments.len();
        let mut signatures = attachments;
        signatures.retain(|(_, attachment)| attachment.mime_type == SigstoreSignature::MIME_TYPE);
        if signatures.is_empty() {
            let simple = self.signatures.len() - attached;
            return Err(Reason::no_sigstore_signature(simple, attached, self.manifest));
        }
        // One unusable key fails the requirement, so that people notice it before they need that key.
        let files = self.read_all(&required.keys)?.into_iter().zip(&required.keys);
        let keys = files.map(|(bytes, source)| match PublicKey::parse(&bytes) {
            Ok(key) => Ok((key, source)),
            Err(error) => Err(Reason::unusable_keys(std::slice::from_ref(source), &error)),
        });
        let keys = keys.collect::<Result<Vec<_>, Reason>>()?;
        first_accepted(signatures, |attachment| {
            let annotation = SigstoreSignature::SIGNATURE_ANNOTATION;
            let base64 = attachment
                .annotations
                .as_ref()
                .and_then(|all| all.get(annotation));
            let base64 = base64.ok_or_else(|| format!("missing {annotation} annotation"))?;
            let signature = go_json::decode_base64(base64.as_bytes())
                .ok_or_else(|| format!("annotation {annotation} is not base64"))?;
            let (key, source) = keys
                .iter()
                .find(|(key, _)| key.verifies(&attachment.payload, &signature))
                .ok_or_else(|| {
                    format!(
                        "cryptographic signature verification failed with {}",
                        KeySource::list(&required.keys)
                    )
                })?;
            let payload = Payload::of_sigstore(&attachment.payload).map_err(|error| error.to_string())?;
            self.check(&payload, &required.identity)?;
            Ok(format!("{} key of {source}", key.algorithm))
        })
    }

    /// The signatures of one kind with their numbers, from 1.
    fn numbered<'s, T>(&'s self, select: impl Fn(&'s Signature) -> Option<T>) -> Vec<(usize, T)> {
        let signatures = (1..).zip(self.signatures);
        signatures
            .filter_map(|(number, signature)| Some((number, select(signature)?)))
            .collect()
    }

    fn read_all(&self, sources: &[KeySource]) -> Result<Vec<Vec<u8>>, Reason> {
        let contents = sources.iter().map(|source| match source {
            KeySource::Data { bytes, .. } => Ok(bytes.clone()),
            KeySource::File(path) => self
                .files
                .read(path)
                .map_err(|error| Reason::unusable_keys(std::slice::from_ref(source), &error)),
        });
        contents.collect()
    }

    /// Whether the signature is for this manifest and this image.
    fn check(&self, payload: &Payload, identity: &SignedIdentity) -> Result<(), String> {
        if payload.manifest != self.manifest {
            return Err(format!(
                "Signature for digest {} does not match {}",
                payload.manifest, self.manifest
            ));
        }
        let signed = &payload.docker_reference;
        match identity.matches(&self.image, signed) {
            true => Ok(()),
            false => Err(format!(
                "Signature for identity `{}` is not accepted by {identity} for image `{}`",
                shown(signed),
                self.image
            )),
        }
    }
}

/// The first signature that `check` accepts; it returns who signed.
fn first_accepted<T>(
    signatures: Vec<(usize, T)>,
    check: impl Fn(T) -> Result<String, String>,
) -> Result<Satisfied, Reason> {
    let mut refusals = Vec::new();
    for (number, signature) in signatures {
        match check(signature) {
            Ok(signer) => return Ok(Satisfied { number, signer }),
            Err(why) => refusals.push((number, why)),
        }
    }
    Err(Reason::Signatures(refusals))
}
