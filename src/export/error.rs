//! Defines the errors of an export.

use std::io;
use std::path::{Path, PathBuf};

use super::output::{OutputError, of_system};
use crate::cancel::Stopped;
use crate::catalog::{CatalogError, PackageRequestError};
use crate::exit_code::Failure;
use crate::fetch::FetchError;
use crate::oci::{Digest, ManifestError};
use crate::registry::{Kind, RegistryError};
use crate::release::PayloadError;
use crate::spec::PatternError;
use crate::spool::SpoolError;
use crate::store::StoreError;
use crate::store::unpack::UnpackError;
use crate::work_directory::WorkDirectoryError;

/// Why an export, or one of its images, failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// An exclude pattern is no basic regular expression.
    #[error("cannot use the exclude patterns: {0}")]
    Pattern(#[from] PatternError),
    /// A line of `operators.packagesAndChannels` is no `package:channel`.
    #[error("cannot use `operators.packagesAndChannels`: {0}")]
    Packages(#[from] PackageRequestError),
    /// A registry.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A blob cannot be downloaded.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The spool in the work directory.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The work directory.
    #[error(transparent)]
    WorkDirectory(#[from] WorkDirectoryError),
    /// The directory or the tar.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A manifest that cannot be read.
    #[error("`{reference}`: {source}")]
    Manifest {
        /// The image.
        reference: String,
        /// Why.
        source: ManifestError,
    },
    /// A release image without a usable payload.
    #[error("`{reference}`: {source}")]
    Payload {
        /// The release image.
        reference: String,
        /// Why.
        source: PayloadError,
    },
    /// An index image without a usable catalog.
    #[error("`{reference}`: {source}")]
    Catalog {
        /// The index image.
        reference: String,
        /// Why.
        source: Box<CatalogError>,
    },
    /// A layer's blob cannot be read.
    #[error("layer blob `{blob}`: {source}")]
    Layer {
        /// Digest of the blob.
        blob: Digest,
        /// Why.
        source: UnpackError,
    },
    /// Far more files than any real image has.
    #[error("layer blob `{blob}`: it has more than {limit} files")]
    TooManyFiles {
        /// Digest of the blob.
        blob: Digest,
        /// The limit.
        limit: usize,
    },
    /// The unpacked files of an image.
    #[error(transparent)]
    Files(#[from] StoreError),
    /// A file of the work directory.
    #[error("cannot {action} `{}`: {error}", path.display())]
    Host {
        /// A verb for the message.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The export was stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// A bug in this program.
    #[error("a worker panicked, which is a bug in this program: {0}")]
    Panicked(String),
}

impl ExportError {
    /// What it means for the exit code.
    pub fn failure(&self) -> Failure {
        self.kind().into()
    }

    /// What it means for the export.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Registry(error) => error.kind(),
            Self::Fetch(error) => error.kind(),
            Self::Spool(SpoolError::NoSpace { .. }) => Kind::NoSpace,
            Self::Spool(_) => Kind::Local,
            Self::WorkDirectory(WorkDirectoryError { source: error, .. }) | Self::Host { error, .. } => {
                of_system(error)
            }
            Self::Output(error) => error.kind(),
            Self::Layer { source, .. } => match source {
                UnpackError::Stopped(_) => Kind::Stopped,
                error if error.is_no_space() => Kind::NoSpace,
                error if error.is_content() => Kind::Malformed,
                _ => Kind::Local,
            },
            Self::Catalog { source, .. } => match **source {
                CatalogError::Stopped(_) => Kind::Stopped,
                CatalogError::Store(_) | CatalogError::Io { .. } => Kind::Local,
                _ => Kind::Malformed,
            },
            Self::Pattern(_)
            | Self::Packages(_)
            | Self::Manifest { .. }
            | Self::Payload { .. }
            | Self::TooManyFiles { .. }
            | Self::Files(_) => Kind::Malformed,
            Self::Stopped(_) => Kind::Stopped,
            Self::Panicked(_) => Kind::Network,
        }
    }

    /// Whether the export cannot continue with other images.
    pub(super) fn is_fatal(&self) -> bool {
        let is_host = matches!(self.kind(), Kind::NoSpace | Kind::Local | Kind::Stopped);
        // A file of the image that cannot be opened concerns only this image, and so does its mirror's configuration.
        let is_of_image = matches!(self, Self::Files(_) | Self::Catalog { .. } | Self::Registry(_));
        match self {
            Self::Panicked(_) | Self::Output(_) => true,
            _ if is_of_image => self.kind() == Kind::Stopped,
            _ => is_host,
        }
    }

    pub(super) fn host(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Host {
            action,
            path: path.to_owned(),
            error,
        }
    }
}
