//! What an error of a lower module means: a row of the outcome with its reason, or the end of the run.

use crate::exit_code::Failure;
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
pub(super) enum TaskError {
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
        Kind::Refused | Kind::NotFound => Failure::Registry,
        Kind::Stopped | Kind::Network => Failure::Incomplete,
    }
}

impl TaskError {
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
            UnpackError::OverBudget { .. } => Self::Image(Reason {
                failure: Failure::Space,
                message,
            }),
            // The blob matched its digest before it was unpacked, so every mirror has the same.
            error if error.is_content() => Self::Image(Reason {
                failure: Failure::Payload,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit_code::Ending;
    use crate::store::unpack::{EntryPosition, Fault};

    /// What somebody does next depends on it: mend the mirror, or ask whoever made the image.
    #[test]
    fn bad_content_is_told_from_content_that_is_not_what_its_digest_says() {
        let blob = Digest::of(b"blob");
        let place = || EntryPosition {
            offset: 0,
            entry: None,
        };
        let malformed = UnpackError::Content {
            place: place(),
            fault: Fault::Truncated("a header"),
        };
        let limit = UnpackError::Limit {
            what: "bytes",
            max: 1,
            found: 2,
            place: place(),
        };
        let size = RegistryError::WrongSize {
            blob,
            expected: 1,
            found: 2,
        };
        let what = "blob".to_owned();
        let length = RegistryError::WrongLength {
            what: what.clone(),
            expected: 1,
            found: 2,
        };
        let digest = RegistryError::WrongDigest {
            what,
            found: Digest::of(b"other"),
            mixed: false,
        };
        let (image, mirror) = ("another run will not help", "mend the mirror");
        for (trouble, code, advice) in [
            (TaskError::unpacking(blob, malformed), 5, image),
            (TaskError::unpacking(blob, limit), 5, image),
            (TaskError::fetching(&size.into()), 5, image),
            (TaskError::fetching(&length.into()), 6, mirror),
            (TaskError::fetching(&digest.into()), 6, mirror),
        ] {
            let TaskError::Image(reason) = trouble else {
                panic!("an image's trouble");
            };
            let ending = Ending::Failed(reason.failure);
            assert_eq!(ending.code(), code, "{}", reason.message);
            assert!(ending.meaning(None).contains(advice), "{}", reason.message);
        }
    }
}
