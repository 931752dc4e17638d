//! Examines signatures one after another until every keyring has a valid one.

use jiff::Timestamp;

use super::keyring_file::NamedKeyring;
use super::reasons::Reasons;
use super::verdict::Satisfied;
use crate::oci::Digest;
use crate::openpgp::{self, Keyring};
use crate::signature::Payload;
use crate::spec::shown;

/// The largest signature. The cluster-version operator intends this limit for those of stores (library-go
/// `pkg/verify/store/sigstore/sigstore.go`); real ones have about 1 KiB.
pub(super) const SIGNATURE_LIMIT: usize = 50 << 10;

/// The keyrings without a valid signature, and what was found so far.
#[derive(Debug)]
pub(super) struct Examination<'k> {
    digest: Digest,
    remaining: Vec<&'k NamedKeyring>,
    pub(super) satisfied: Vec<Satisfied>,
    /// The `docker-reference` of the first valid signature.
    pub(super) reference: Option<String>,
    /// Why the others are not valid, and where there are none.
    pub(super) reasons: Reasons,
    /// Whether the release is known to have signatures, or to have none in some store.
    pub(super) is_answered: bool,
}

impl<'k> Examination<'k> {
    /// `keyrings` has at least one.
    pub(super) fn new(digest: Digest, keyrings: &'k [NamedKeyring]) -> Self {
        Self {
            digest,
            remaining: keyrings.iter().collect(),
            satisfied: Vec::new(),
            reference: None,
            reasons: Reasons::default(),
            is_answered: false,
        }
    }

    /// Whether every keyring has a valid signature.
    pub(super) fn is_done(&self) -> bool {
        self.remaining.is_empty()
    }

    /// The names of the keyrings without a valid signature.
    pub(super) fn remaining(&self) -> String {
        let names: Vec<String> = self.remaining.iter().map(|it| format!("`{}`", it.name)).collect();
        names.join(", ")
    }

    /// Examines one signature, found at `origin`.
    pub(super) fn examine(&mut self, message: &[u8], origin: &str, now: Timestamp) {
        self.is_answered = true;
        if message.len() > SIGNATURE_LIMIT {
            return self.refuse_too_large(origin);
        }
        let mut failures: Vec<(&str, String)> = Vec::new();
        let mut remaining = Vec::new();
        for named in std::mem::take(&mut self.remaining) {
            match check(message, &named.keyring, self.digest, now) {
                Ok((reference, signer)) => {
                    self.reference.get_or_insert(reference);
                    self.satisfied.push(Satisfied {
                        keyring: named.name.clone(),
                        signer,
                        origin: origin.to_owned(),
                    });
                }
                Err(why) => {
                    failures.push((&named.name, why));
                    remaining.push(named);
                }
            }
        }
        self.remaining = remaining;
        let is_same = failures.windows(2).all(|pair| pair[0].1 == pair[1].1);
        match &failures[..] {
            [] => {}
            [(_, why), ..] if is_same => self.reasons.add(&format!("{origin}: {why}")),
            failures => {
                for (name, why) in failures {
                    self.reasons
                        .add(&format!("{origin}: with keyring `{name}`: {why}"));
                }
            }
        }
    }

    /// Refuses a signature that was not read to its end.
    pub(super) fn refuse_too_large(&mut self, origin: &str) {
        self.is_answered = true;
        let why = format!("{origin}: the signature is larger than {SIGNATURE_LIMIT} bytes");
        self.reasons.add(&why);
    }
}

/// Verifies one signature with one keyring. Returns its `docker-reference` and its key.
///
/// The digest is that of the release as it is referenced: of the list, if there is one. The identity is not compared with the
/// reference, so that mirrors work (library-go `pkg/verify/verify.go`: `verifyAtomicContainerSignature`).
fn check(
    message: &[u8],
    keyring: &Keyring,
    digest: Digest,
    now: Timestamp,
) -> Result<(String, String), String> {
    let signed = openpgp::verify(message, keyring, now).map_err(|error| error.to_string())?;
    let payload = Payload::of_release(&signed.body)
        .map_err(|error| format!("the signed text is not as expected: {error}"))?;
    let reference = shown(&payload.docker_reference);
    match payload.manifest == digest {
        true => Ok((reference, signed.signer.to_string())),
        false => Err(format!(
            "the signature is for `{}` ({reference})",
            payload.manifest
        )),
    }
}
