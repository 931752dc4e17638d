//! Defines the errors of the store: unsupported, damaged, in use, conflicting records, I/O failures.

use std::io;
use std::path::{Path, PathBuf};

use crate::cancel::Stopped;
use crate::oci::{DiffId, ImageId, LayerId};

/// An error of the store. Another request to a registry does not help.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// This program must not write to a store of this kind. Nothing was written.
    #[error("the store `{}` is not supported: {reason}\nhint: {hint}", root.display())]
    Unsupported {
        /// The graph root.
        root: PathBuf,
        /// The unsupported property.
        reason: String,
        /// The remedy.
        hint: &'static str,
    },
    /// An additional image store is unusable.
    #[error("the additional image store `{}` cannot be used: {reason}\nhint: CRI-O does not start without it; in a container, mount it where the host has it, below the host root", root.display())]
    AdditionalStore {
        /// Its root.
        root: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The caller may not change owners, make devices or set trusted attributes.
    #[error(
        "only root can write a store, and this is user {uid}\nhint: run as root, or in a privileged container"
    )]
    NotRoot {
        /// The effective user id.
        uid: u32,
    },
    /// The caller is root but lacks capabilities.
    #[error("the store `{}` cannot be written without {}\nhint: add these capabilities to the container, or run it privileged", root.display(), missing.join(", "))]
    Rights {
        /// The graph root.
        root: PathBuf,
        /// The capabilities that are missing.
        missing: Vec<&'static str>,
    },
    /// A file of the store has damaged content.
    #[error("`{}` is damaged: {reason}\nhint: `podman system check`, or a restart of CRI-O, finds and repairs such damage", path.display())]
    Corrupt {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The run was stopped while it waited for a lock of another program.
    #[error("{stopped} while waiting for the lock `{}`", lock.display())]
    Stopped {
        /// The lock file.
        lock: PathBuf,
        /// Why the run stops.
        stopped: Stopped,
    },
    /// The run was stopped while it read the store.
    #[error(transparent)]
    Cancelled(#[from] Stopped),
    /// A system call failed.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// The action, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The tar of a layer has another diffID than the config of its image states.
    #[error(
        "layer {layer} does not match its image's config: the config says diffID {expected}, its tar has {found}"
    )]
    ContentMismatch {
        /// The id under which it would have been stored.
        layer: LayerId,
        /// The diffID from the config.
        expected: DiffId,
        /// The SHA-256 of the tar.
        found: DiffId,
    },
    /// The store has something else under this id, or something damaged.
    #[error(
        "the store has a conflicting record of {what}: {reason}\nhint: run `spoke-precache verify --repair`; or remove the images that use it with `crictl rmi` or `podman rmi`, and run again"
    )]
    Conflict {
        /// Which layer or image.
        what: String,
        /// The difference.
        reason: String,
    },
    /// A damaged layer cannot be repaired while it is in use.
    #[error(
        "layer {layer} is damaged and in use by {user}\nhint: stop and remove the user of the layer with `crictl rm` or `podman rm`, then run `spoke-precache verify --repair` again"
    )]
    InUse {
        /// The layer.
        layer: LayerId,
        /// The container or mount that uses it.
        user: String,
    },
    /// The signatures of a stored image cannot be read.
    #[error(
        "the signatures of image {image} are damaged: `{item}`: {reason}\nhint: run `spoke-precache verify --repair`"
    )]
    DamagedSignatures {
        /// The image.
        image: ImageId,
        /// The item of its big data, or `metadata`.
        item: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Signatures cannot be added to an image. Nothing was written.
    #[error("cannot store the signatures of image {image}: {reason}\nhint: {hint}")]
    Unsignable {
        /// The image.
        image: ImageId,
        /// Why not.
        reason: String,
        /// The remedy.
        hint: &'static str,
    },
    /// The requested file of an image is not a regular file, or is too large.
    #[error("cannot read `{path}` from the image: {reason}")]
    Unreadable {
        /// The path inside the image.
        path: String,
        /// Why not.
        reason: String,
    },
}

impl StoreError {
    /// True if the file system is full or a quota is exceeded.
    pub fn is_no_space(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }

    /// True if the disk reported an I/O error.
    pub fn is_broken_disk(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.raw_os_error() == Some(libc::EIO))
    }

    /// True if other images can still be stored.
    pub fn is_of_one_image(&self) -> bool {
        matches!(
            self,
            Self::ContentMismatch { .. }
                | Self::Conflict { .. }
                | Self::InUse { .. }
                | Self::Unsignable { .. }
                | Self::DamagedSignatures { .. }
        )
    }

    pub(super) fn corrupt(path: &Path, reason: impl ToString) -> Self {
        Self::Corrupt {
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }
}

/// For `map_err`: names the action and the path.
pub(super) fn io_error<E: Into<io::Error>>(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> StoreError {
    move |source| StoreError::Io {
        action,
        path: path.to_owned(),
        source: source.into(),
    }
}
