//! Defines the errors of a creation.

use std::io;
use std::path::{Path, PathBuf};

use super::destination::DestinationError;
use super::layer_diff::DiffError;
use crate::cancel::Stopped;
use crate::fetch::FetchError;
use crate::oci::{DiffId, Digest};
use crate::oci_layout::OciLayoutError;
use crate::registry::{Kind, RegistryError};
use crate::release::PayloadError;
use crate::report::Size;
use crate::spool::SpoolError;
use crate::store::unpack::UnpackError;
use crate::work_directory::WorkDirectoryError;

/// Why a creation, or the delta of one image, failed.
#[derive(Debug, thiserror::Error)]
pub enum CreationError {
    /// The old and the new image are the same.
    #[error(
        "`{from}` and `{to}` are the same image\nhint: name the image that nodes have first, and the one that they will get second"
    )]
    Same {
        /// As given.
        from: String,
        /// As given.
        to: String,
    },
    /// A registry.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A layer cannot be downloaded.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The spool in the work directory.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// A release image without a usable payload.
    #[error("`{reference}`: {source}")]
    Payload {
        /// The release image.
        reference: String,
        /// Why.
        source: PayloadError,
    },
    /// A layer's blob cannot be decompressed.
    #[error("layer blob `{blob}`: {source}")]
    Layer {
        /// Digest of the blob.
        blob: Digest,
        /// Why.
        source: UnpackError,
    },
    /// A layer is not what its image's config states.
    #[error("layer blob `{blob}` has the diffID `{found}`, but the image's config states `{expected}`")]
    DiffId {
        /// Digest of the blob.
        blob: Digest,
        /// SHA-256 of its tar.
        found: DiffId,
        /// The one in the config.
        expected: DiffId,
    },
    /// The delta of a layer.
    #[error(transparent)]
    Diff(#[from] DiffError),
    /// The work directory is too small, found before the work.
    #[error("`{}` needs about {}, and {} are available\nhint: free some space, name a larger directory with `--work-dir`, or lower `--jobs`", path.display(), Size(*needed), Size(*available))]
    Space {
        /// The work directory.
        path: PathBuf,
        /// Bytes.
        needed: u64,
        /// Bytes.
        available: u64,
    },
    /// A file of the work directory or the layout.
    #[error("cannot {action} `{}`: {error}", path.display())]
    Host {
        /// A verb for the message.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The work directory.
    #[error(transparent)]
    WorkDirectory(#[from] WorkDirectoryError),
    /// The deltas cannot be stored.
    #[error(transparent)]
    Destination(#[from] DestinationError),
    /// An index or an artifact in the destination.
    #[error(
        "cannot read what is at `{tag}` in the destination: {why}\nhint: remove the tag, or choose another repository"
    )]
    Published {
        /// The tag.
        tag: String,
        /// Why.
        why: String,
    },
    /// The creation was stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// A bug in this program.
    #[error("a worker panicked, which is a bug in this program: {0}")]
    Panicked(String),
}

impl CreationError {
    /// What it means for the exit code.
    pub fn kind(&self) -> Kind {
        match self {
            // The arguments are wrong; `is_usage` tells this case apart.
            Self::Same { .. } => Kind::Refused,
            Self::Registry(error) => error.kind(),
            Self::Fetch(error) => error.kind(),
            Self::Spool(SpoolError::NoSpace { .. }) | Self::Space { .. } => Kind::NoSpace,
            Self::Spool(_) => Kind::Local,
            Self::Payload { .. } | Self::Published { .. } => Kind::Malformed,
            Self::Layer { source, .. } => unpacking(source),
            Self::DiffId { .. } => Kind::DigestMismatch,
            Self::Diff(error) => diffing(error),
            Self::Host { error, .. } | Self::WorkDirectory(WorkDirectoryError { source: error, .. }) => {
                of_system(error)
            }
            Self::Destination(DestinationError::Registry(error)) => error.kind(),
            Self::Destination(DestinationError::Layout(error)) => storing(error),
            Self::Stopped(_) => Kind::Stopped,
            Self::Panicked(_) => Kind::Network,
        }
    }

    /// Whether the arguments contradict each other.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Same { .. })
    }

    /// Whether the creation cannot continue with other images.
    pub(super) fn is_fatal(&self) -> bool {
        let is_host = matches!(self.kind(), Kind::NoSpace | Kind::Local | Kind::Stopped);
        is_host || matches!(self, Self::Panicked(_) | Self::Destination(_))
    }

    pub(super) fn host(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Host {
            action,
            path: path.to_owned(),
            error,
        }
    }
}

fn storing(error: &OciLayoutError) -> Kind {
    match error {
        OciLayoutError::Io { source, .. } => of_system(source),
        OciLayoutError::Stopped(_) => Kind::Stopped,
        OciLayoutError::Invalid { .. }
        | OciLayoutError::WrongDigest { .. }
        | OciLayoutError::Referrers(_) => Kind::Local,
    }
}

fn of_system(error: &io::Error) -> Kind {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Kind::NoSpace,
        _ => Kind::Local,
    }
}

fn unpacking(error: &UnpackError) -> Kind {
    match error {
        UnpackError::Stopped(_) => Kind::Stopped,
        error if error.is_no_space() => Kind::NoSpace,
        error if error.is_content() => Kind::Malformed,
        _ => Kind::Local,
    }
}

fn diffing(error: &DiffError) -> Kind {
    match error {
        DiffError::Stopped(_) => Kind::Stopped,
        DiffError::Host { error, .. } => of_system(error),
        DiffError::Tar { error, .. } => unpacking(error),
        DiffError::Compressed(_) => Kind::Malformed,
        // Found by applying the delta: nothing wrong was published.
        DiffError::Wrong { .. } => Kind::Network,
    }
}
