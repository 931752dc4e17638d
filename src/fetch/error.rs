//! Defines the errors of a download: why a blob is not in the spool.

use std::sync::Arc;

use crate::cancel::Stopped;
use crate::registry::{Kind, RegistryError};
use crate::spool::SpoolError;

/// Why a blob could not be downloaded. All callers that requested the blob share it, so it is cheap to clone.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FetchError {
    /// No source sent it.
    #[error(transparent)]
    Registry(Arc<RegistryError>),
    /// The spool could not store it.
    #[error(transparent)]
    Spool(Arc<SpoolError>),
    /// The run stops; the received bytes are kept.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl FetchError {
    /// True when the spool's disk fails.
    pub fn is_broken_disk(&self) -> bool {
        matches!(self, Self::Spool(error) if error.is_broken_disk())
    }

    /// What it means for the run.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Registry(error) => error.kind(),
            Self::Spool(error) => match **error {
                SpoolError::NoSpace { .. } => Kind::NoSpace,
                SpoolError::Mismatch { .. } | SpoolError::TooLong { .. } | SpoolError::TooShort { .. } => {
                    Kind::DigestMismatch
                }
                SpoolError::Busy { .. } | SpoolError::Io { .. } | SpoolError::NotAFile { .. } => Kind::Local,
            },
            Self::Stopped(_) => Kind::Stopped,
        }
    }
}

impl From<RegistryError> for FetchError {
    fn from(error: RegistryError) -> Self {
        match error {
            RegistryError::Stopped(stopped) => Self::Stopped(stopped),
            other => Self::Registry(Arc::new(other)),
        }
    }
}

impl From<SpoolError> for FetchError {
    fn from(error: SpoolError) -> Self {
        Self::Spool(Arc::new(error))
    }
}
