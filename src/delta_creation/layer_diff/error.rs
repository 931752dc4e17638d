//! Lists the errors of creating the delta of one layer.

use std::io;
use std::path::{Path, PathBuf};

use crate::cancel::Stopped;
use crate::store::unpack::UnpackError;

/// Why there is no delta of a layer.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// The host failed to read or write.
    #[error("cannot {action} `{}`: {error}", path.display())]
    Host {
        /// A verb for the message.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The layer's tar is malformed.
    #[error("cannot list the entries of `{}`: {error}", path.display())]
    Tar {
        /// The tar.
        path: PathBuf,
        /// The fault.
        error: UnpackError,
    },
    /// The layer's file is not a bare tar.
    #[error("`{}` is compressed; a tar is expected", .0.display())]
    Compressed(PathBuf),
    /// The delta was applied, and the result is not the layer. The delta must not be published.
    #[error("the delta of `{}` does not make it again: {reason}", path.display())]
    Wrong {
        /// The tar.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// The run was stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl DiffError {
    pub(super) fn host(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Host {
            action,
            path: path.to_owned(),
            error,
        }
    }

    pub(super) fn tar(path: &Path) -> impl FnOnce(UnpackError) -> Self {
        move |error| match error {
            UnpackError::Stopped(stopped) => Self::Stopped(stopped),
            error => Self::Tar {
                path: path.to_owned(),
                error,
            },
        }
    }
}
