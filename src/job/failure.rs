//! What an error of a lower module means: a row of the outcome with its reason, or the end of the run.

use crate::exit::Failure;
use crate::oci::Digest;
use crate::registry::{Kind, RegistryError};
use crate::store::StoreError;
use crate::store::unpack::UnpackError;

use super::error::JobError;

/// Why an image is not there: what that means for the exit code, and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reason {
    pub(super) failure: Failure,
    pub(super) message: String,
}

/// Why something of an image could not be had.
pub(super) enum Trouble {
    /// It spoils the images that need it.
    Image(Reason),
    /// It spoils the run.
    Host(JobError),
    /// The run is ending.
    Stopped,
}

/// What the kind of a registry's error means for the exit code.
pub(super) fn of_kind(kind: Kind) -> Failure {
    match kind {
        Kind::Unauthorized => Failure::Credentials,
        Kind::DigestMismatch => Failure::Content,
        Kind::NoSuchPlatform | Kind::Malformed => Failure::Payload,
        Kind::NoSpace => Failure::Space,
        Kind::Local => Failure::Store,
        Kind::Stopped | Kind::Network | Kind::Refused | Kind::NotFound => Failure::Incomplete,
    }
}

impl Trouble {
    pub(super) fn resolving(error: &RegistryError) -> Self {
        match error.kind() {
            Kind::Stopped => Self::Stopped,
            kind => Self::Image(Reason {
                failure: of_kind(kind),
                message: error.to_string(),
            }),
        }
    }

    pub(super) fn fetching(error: &crate::fetch::FetchError) -> Self {
        let reason = |kind| Reason {
            failure: of_kind(kind),
            message: error.to_string(),
        };
        match error.kind() {
            Kind::Stopped => Self::Stopped,
            Kind::NoSpace => Self::Host(JobError::Full(error.to_string())),
            Kind::Local if error.is_broken_disk() => Self::Host(JobError::Broken(error.to_string())),
            Kind::Local => Self::Host(JobError::Local(error.to_string())),
            kind => Self::Image(reason(kind)),
        }
    }

    pub(super) fn unpacking(blob: Digest, error: UnpackError) -> Self {
        let message = format!("layer blob `{blob}`: {error}");
        match error {
            UnpackError::Stopped(_) => Self::Stopped,
            error if error.is_no_space() => Self::Host(JobError::Full(message)),
            error if error.is_broken_disk() => Self::Host(JobError::Broken(message)),
            error if error.is_content() => Self::Image(Reason {
                failure: Failure::Content,
                message,
            }),
            _ => Self::Host(JobError::Local(message)),
        }
    }

    pub(super) fn storing(error: StoreError) -> Self {
        match error {
            StoreError::Stopped { .. } | StoreError::Cancelled(_) => Self::Stopped,
            StoreError::ContentMismatch { .. } => Self::Image(Reason {
                failure: Failure::Content,
                message: error.to_string(),
            }),
            StoreError::Conflict { .. } | StoreError::InUse { .. } => Self::Image(Reason {
                failure: Failure::Store,
                message: error.to_string(),
            }),
            error => Self::Host(error.into()),
        }
    }
}
