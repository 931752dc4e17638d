//! Describes the result of a verification: verified, refused or not verifiable.

use std::fmt;

use crate::oci::{Digest, Reference};

/// Whether a release is signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every keyring has a valid signature.
    Verified {
        /// The digest of the release as it is referenced.
        digest: Digest,
        /// The `docker-reference` of the first valid signature, such as `quay.io/openshift-release-dev/ocp-release:4.15.0-x86_64`.
        reference: String,
        /// Each keyring.
        keyrings: Vec<Satisfied>,
    },
    /// There is no valid signature. Nothing that the release names may be fetched.
    Refused {
        /// Each signature, where it was found and what is wrong with it; where there are none.
        message: String,
    },
    /// It is unknown whether there is one.
    NotVerifiable {
        /// For a condition: `NoKeys`, `NoSignatureStore`, `NoStoreReachable`, `NotByDigest` or `Stopped`; `StoreUnreadable` from
        /// the caller.
        reason: &'static str,
        /// Why.
        message: String,
    },
}

/// A keyring with a valid signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Satisfied {
    /// The keyring's name.
    pub keyring: String,
    /// The key that made the signature.
    pub signer: String,
    /// Where the signature was found.
    pub origin: String,
}

impl Verdict {
    /// The version that the signature names: the tag of its reference, such as `4.15.0-x86_64`.
    pub fn version(&self) -> Option<String> {
        let Self::Verified { reference, .. } = self else {
            return None;
        };
        let reference: Reference = reference.parse().ok()?;
        reference.tag().map(str::to_owned)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verified {
                digest,
                reference,
                keyrings,
            } => {
                match self.version() {
                    Some(version) => write!(f, "release {version} ({digest}) is signed")?,
                    None => write!(f, "the release {digest} is signed as `{reference}`")?,
                }
                for (position, satisfied) in keyrings.iter().enumerate() {
                    let separator = if position == 0 { " " } else { ", and " };
                    let Satisfied {
                        keyring,
                        signer,
                        origin,
                    } = satisfied;
                    write!(
                        f,
                        "{separator}with key {signer} (keyring `{keyring}`, signature {origin})"
                    )?;
                }
                Ok(())
            }
            Self::Refused { message } | Self::NotVerifiable { message, .. } => f.write_str(message),
        }
    }
}
