//! Defines the errors of a job: a [`JobError`] ends the run, a [`TaskError`] fails one task, and a [`Reason`] explains why one
//! image failed.

use crate::cancel::Stopped;
use crate::catalog::PackageRequestError;
use crate::exit_code::{Ending, Failure};
use crate::fetch::FetchError;
use crate::media::MediaError;
use crate::oci::Digest;
use crate::preflight::{FilesystemError, NotEnoughSpace};
use crate::registry::{Kind, RegistryError};
use crate::spec::PatternError;
use crate::spool::SpoolError;
use crate::store::StoreError;
use crate::store::unpack::UnpackError;
use crate::used_images::Refusal;

/// An error of the host or of the version spec. No image can be pulled until it is fixed.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// An exclude pattern is no basic regular expression.
    #[error("cannot use the exclude patterns: {0}")]
    Pattern(#[from] PatternError),
    /// A line of `operators.packagesAndChannels` is no `package:channel`.
    #[error("cannot use `operators.packagesAndChannels`: {0}")]
    Packages(#[from] PackageRequestError),
    /// The store, for a reason other than a full or failing disk.
    #[error(transparent)]
    Store(StoreError),
    /// The spool, likewise.
    #[error(transparent)]
    Spool(SpoolError),
    /// The host's files do not state how to reach the registries.
    #[error(transparent)]
    Registries(RegistryError),
    /// A path of `--blobs-from` is no medium.
    #[error(transparent)]
    Media(MediaError),
    /// The free space is unknown.
    #[error(transparent)]
    SpaceUnknown(#[from] FilesystemError),
    /// Found before the pull: the plan does not fit.
    #[error(transparent)]
    NotEnoughSpace(#[from] NotEnoughSpace),
    /// Found during the pull: the disk is full.
    #[error("the disk is full: {0}\nhint: free some space and run again; downloaded data is kept")]
    Full(String),
    /// Found during the pull: the disk fails.
    #[error(
        "the disk fails: {0}\nhint: see the kernel's log, repair the disk and run again; downloaded data is kept"
    )]
    Broken(String),
    /// It is not known which images the node uses.
    #[error("cannot leave out unused images: {0}")]
    OnlyUsed(#[from] Refusal),
    /// A file of the host outside the store and the spool.
    #[error("{0}")]
    Local(String),
    /// The run was stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// A bug in this program.
    #[error("a worker panicked, which is a bug in this program: {0}")]
    Panicked(String),
}

impl From<StoreError> for JobError {
    fn from(error: StoreError) -> Self {
        match error {
            error if error.is_no_space() => Self::Full(error.to_string()),
            error if error.is_broken_disk() => Self::Broken(error.to_string()),
            error => Self::Store(error),
        }
    }
}

impl From<SpoolError> for JobError {
    fn from(error: SpoolError) -> Self {
        match error {
            SpoolError::NoSpace { .. } => Self::Full(error.to_string()),
            error if error.is_broken_disk() => Self::Broken(error.to_string()),
            error => Self::Spool(error),
        }
    }
}

impl From<MediaError> for JobError {
    fn from(error: MediaError) -> Self {
        match error {
            MediaError::Stopped(stopped) => Self::Stopped(stopped),
            error => Self::Media(error),
        }
    }
}

impl JobError {
    /// The ending of a run that this error ended.
    pub fn ending(&self) -> Ending {
        match self {
            Self::Stopped(Stopped(reason)) => Ending::Stopped(*reason),
            error => Ending::Failed(error.failure()),
        }
    }

    /// What the error means for the exit code.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Pattern(_) | Self::Packages(_) => Failure::Payload,
            Self::OnlyUsed(_) | Self::Media(_) => Failure::Usage,
            Self::NotEnoughSpace(_) | Self::Full(_) => Failure::Space,
            Self::Store(_) | Self::Spool(_) | Self::SpaceUnknown(_) | Self::Broken(_) | Self::Local(_) => {
                Failure::Store
            }
            Self::Registries(error) => error.kind().into(),
            Self::Panicked(_) | Self::Stopped(_) => Failure::Incomplete,
        }
    }
}

/// Why an image failed: what that means for the exit code, and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reason {
    pub(super) failure: Failure,
    pub(super) message: String,
}

/// Why a task that works for one or more images failed.
pub(super) enum TaskError {
    /// Fails the images that need the task's result.
    Image(Reason),
    /// Ends the run.
    Host(JobError),
    /// The run is already ending.
    Stopped,
}

impl TaskError {
    pub(super) fn resolving(error: &RegistryError) -> Self {
        match error.kind() {
            Kind::Stopped => Self::Stopped,
            kind => Self::Image(Reason {
                failure: kind.into(),
                message: error.to_string(),
            }),
        }
    }

    pub(super) fn fetching(error: &FetchError) -> Self {
        let reason = |kind: Kind| Reason {
            failure: kind.into(),
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
            // The blob matched its digest before it was unpacked, so every mirror serves the same content.
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
            error if error.is_of_one_image() => Self::Image(Reason {
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
    use crate::store::unpack::{EntryPosition, Fault};

    /// The remedy differs: repair the mirror, or ask the image's author.
    #[test]
    fn invalid_content_differs_from_content_that_does_not_match_its_digest() {
        let blob = Digest::of(b"blob");
        let position = || EntryPosition {
            offset: 0,
            entry: None,
        };
        let malformed = UnpackError::Content {
            position: position(),
            fault: Fault::Truncated("a header"),
        };
        let limit = UnpackError::Limit {
            what: "bytes",
            max: 1,
            found: 2,
            position: position(),
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
        let (image, mirror) = ("another run will not help", "repair the mirror");
        for (error, code, advice) in [
            (TaskError::unpacking(blob, malformed), 5, image),
            (TaskError::unpacking(blob, limit), 5, image),
            (TaskError::fetching(&size.into()), 5, image),
            (TaskError::fetching(&length.into()), 6, mirror),
            (TaskError::fetching(&digest.into()), 6, mirror),
        ] {
            let TaskError::Image(reason) = error else {
                panic!("an error of one image");
            };
            let ending = Ending::Failed(reason.failure);
            assert_eq!(ending.code(), code, "{}", reason.message);
            assert!(ending.meaning(None).contains(advice), "{}", reason.message);
        }
    }
}
