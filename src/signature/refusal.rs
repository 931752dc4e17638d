//! Explains why the policy refuses an image: for which scope, which requirement, and each signature.
//!
//! The words are those of containers/image where people search for them.

use std::fmt;

use super::list;
use super::requirement::KeySource;
use crate::oci::Digest;

/// The policy refuses an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Source image rejected: {reason} (rule: {requirement} for {scope}){}", .reason.hint())]
pub struct Refusal {
    pub(super) reason: Reason,
    /// In messages: `` `sigstoreSigned` ``.
    pub(super) requirement: String,
    /// In messages: `` scope `quay.io` ``.
    pub(super) scope: String,
}

impl Refusal {
    /// Whether the reason is a requirement that is not evaluated here; CRI-O may accept the image.
    pub fn is_unsupported(&self) -> bool {
        self.reason == Reason::Unsupported
    }
}

/// Why one requirement is not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// `reject`; the image as people write it.
    Rejected(String),
    Unsupported,
    /// The keys cannot be read or are no keys.
    Keys {
        keys: String,
        why: String,
    },
    /// There is no signature of the required kind. The first text counts others, the second is a hint.
    NoSignature {
        others: String,
        hint: String,
    },
    /// Each signature with the reason against it, of which there is at least one.
    Signatures(Vec<(usize, String)>),
}

impl Reason {
    pub(super) fn no_simple_signature(sigstore: usize) -> Self {
        let others = match sigstore {
            0 => String::new(),
            count => format!(" ({count} sigstore attachments)"),
        };
        let hint =
            "simple signatures are in a lookaside store, which `/etc/containers/registries.d` configures";
        Self::NoSignature {
            others,
            hint: hint.to_owned(),
        }
    }

    /// `attached` are attachments that are no signatures.
    pub(super) fn no_sigstore_signature(simple: usize, attached: usize, manifest: Digest) -> Self {
        let others = match (simple, attached) {
            (0, 0) => String::new(),
            (simple, attached) => {
                format!(" ({simple} non-sigstore signatures, {attached} sigstore non-signature attachments)")
            }
        };
        let hint = format!(
            "it is tag `sha256-{}.sig` of the repository, also in a mirror, and is read where \
             `/etc/containers/registries.d` sets `use-sigstore-attachments: true`",
            manifest.hex()
        );
        Self::NoSignature { others, hint }
    }

    pub(super) fn unusable_keys(keys: &[KeySource], why: &impl fmt::Display) -> Self {
        Self::Keys {
            keys: KeySource::list(keys),
            why: why.to_string(),
        }
    }

    fn hint(&self) -> String {
        match self {
            Self::NoSignature { hint, .. } => format!("\nhint: {hint}"),
            Self::Unsupported => {
                "\nhint: this program does not evaluate such a rule; leave the image to CRI-O, which does"
                    .to_owned()
            }
            _ => String::new(),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // `transports.ImageName`
            Self::Rejected(image) => write!(f, "Running image docker://{image} is rejected by policy."),
            Self::Unsupported => f.write_str("it is unknown whether its signatures meet the policy"),
            Self::Keys { keys, why } => write!(f, "the key of {keys} cannot be used: {why}"),
            Self::NoSignature { others, .. } => {
                write!(f, "A signature was required, but no signature exists{others}")
            }
            Self::Signatures(refusals) => {
                if refusals.len() > 1 {
                    f.write_str("None of the signatures were accepted, reasons: ")?;
                }
                let refusals = refusals
                    .iter()
                    .map(|(number, why)| format!("signature {number}: {why}"));
                f.write_str(&list(refusals, "; "))
            }
        }
    }
}
