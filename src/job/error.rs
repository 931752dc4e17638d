//! What ends a run as a whole, as opposed to one of its images.

use crate::cancel::Stopped;
use crate::catalog::PackageRequestError;
use crate::exit_code::Failure;
use crate::preflight::{NotEnoughSpace, SpaceError};
use crate::registry::RegistryError;
use crate::spec::PatternError;
use crate::spool::SpoolError;
use crate::store::StoreError;

/// TaskError of the host or of the version spec: no image can be had while it lasts.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// An exclude pattern is no basic regular expression.
    #[error("cannot use the exclude patterns: {0}")]
    Pattern(#[from] PatternError),
    /// A line of `operators.packagesAndChannels` is no `package:channel`.
    #[error("cannot use `operators.packagesAndChannels`: {0}")]
    Packages(#[from] PackageRequestError),
    /// The store, for another reason than a disk that is full or fails.
    #[error(transparent)]
    Store(StoreError),
    /// The spool, likewise.
    #[error(transparent)]
    Spool(SpoolError),
    /// How to reach the registries is not to be had from the host's files.
    #[error(transparent)]
    Registries(RegistryError),
    /// The free space is not known.
    #[error(transparent)]
    SpaceUnknown(#[from] SpaceError),
    /// Foreseen: the plan does not fit.
    #[error(transparent)]
    NotEnoughSpace(#[from] NotEnoughSpace),
    /// Met: the disk is full.
    #[error("the disk is full: {0}\nhint: what was fetched is kept; free some space and run again")]
    Full(String),
    /// Met: the disk fails.
    #[error(
        "the disk fails: {0}\nhint: the kernel's log says more; what was fetched is kept, run again when it is mended"
    )]
    Broken(String),
    /// The host's files, other than the store.
    #[error("{0}")]
    Local(String),
    /// The run was told to stop.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// A defect of this program.
    #[error("a worker panicked, which is a defect of this program: {0}")]
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

impl JobError {
    /// What it means for the exit code.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Pattern(_) | Self::Packages(_) => Failure::Payload,
            Self::NotEnoughSpace(_) | Self::Full(_) => Failure::Space,
            Self::Store(_) | Self::Spool(_) | Self::SpaceUnknown(_) | Self::Broken(_) | Self::Local(_) => {
                Failure::Store
            }
            Self::Registries(error) => super::failure::of_kind(error.kind()),
            Self::Panicked(_) | Self::Stopped(_) => Failure::Incomplete,
        }
    }
}
