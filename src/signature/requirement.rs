//! Defines the requirements of a signature policy.
//!
//! containers/image `signature/policy_types.go`.

use std::fmt;
use std::path::PathBuf;

use super::shown;
use super::signed_identity::SignedIdentity;

/// One requirement of a scope. An image has to meet all requirements of its scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Requirement {
    /// Every image meets it.
    InsecureAcceptAnything,
    /// No image meets it.
    Reject,
    /// A simple signature.
    SignedBy(SignedRequirement),
    /// A sigstore signature.
    SigstoreSigned(SignedRequirement),
    /// A requirement that is not evaluated, so no image meets it. The text names it.
    Unsupported(String),
}

/// A signature by one of several keys, of the right image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SignedRequirement {
    pub(super) keys: Vec<KeySource>,
    pub(super) identity: SignedIdentity,
}

/// Where a key is. A file is read when an image is evaluated, as in containers/image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeySource {
    File(PathBuf),
    /// `keyData`, or an element of `keyDatas` with its position.
    Data {
        name: String,
        bytes: Vec<u8>,
    },
}

/// `` `sigstoreSigned` ``, as a policy calls it.
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InsecureAcceptAnything => "`insecureAcceptAnything`",
            Self::Reject => "`reject`",
            Self::SignedBy(_) => "`signedBy`",
            Self::SigstoreSigned(_) => "`sigstoreSigned`",
            Self::Unsupported(name) => name,
        })
    }
}

impl KeySource {
    /// All of them, for messages.
    pub(super) fn list(sources: &[Self]) -> String {
        super::list(sources.iter().map(Self::to_string), ", ")
    }
}

/// A path, or the name of the member in the policy.
impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "`{}`", shown(&path.to_string_lossy())),
            Self::Data { name, .. } => write!(f, "`{name}`"),
        }
    }
}
