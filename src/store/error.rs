//! Why the store could not be used, read or written.

use std::io;
use std::path::{Path, PathBuf};

use crate::cancel::Stopped;
use crate::oci::{DiffId, LayerId};

/// What went wrong with the store. Nothing here is cured by asking a registry again.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store is of a kind that this program must not write to; nothing was written.
    #[error("the store `{}` is not supported: {reason}\nhint: {hint}", root.display())]
    Unsupported {
        /// The graph root.
        root: PathBuf,
        /// What it is, or has, that is not supported.
        reason: String,
        /// What the operator can do about it.
        hint: &'static str,
    },
    /// An additional image store cannot be read.
    #[error("the additional image store `{}` cannot be used: {reason}\nhint: CRI-O does not start without it; in a container, mount it where the host has it, below the host root", root.display())]
    AdditionalStore {
        /// Its root.
        root: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The caller may not change owners, make devices or set trusted attributes.
    #[error("only root can write a store, and this is user {uid}\nhint: run it privileged, or as root")]
    NotRoot {
        /// The effective user id.
        uid: u32,
    },
    /// Root without all of root's rights.
    #[error("the store `{}` cannot be written without {}\nhint: add these to the container's capabilities, or run it privileged", root.display(), missing.join(", "))]
    Rights {
        /// The graph root.
        root: PathBuf,
        /// The capabilities that are missing.
        missing: Vec<&'static str>,
    },
    /// A file of the store does not hold what it should.
    #[error("`{}` is damaged: {reason}\nhint: `podman system check`, or a restart of CRI-O, finds and repairs damage", path.display())]
    Corrupt {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The program was told to stop while it waited for somebody else's lock.
    #[error("{stopped} while waiting for the lock `{}`", lock.display())]
    Stopped {
        /// The lock file.
        lock: PathBuf,
        /// Who said so.
        stopped: Stopped,
    },
    /// The program was told to stop while it read the store.
    #[error(transparent)]
    Cancelled(#[from] Stopped),
    /// The system refused.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A layer unpacked to another tar than the image's config promises.
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
    /// The store already holds something else under this id, or something damaged.
    #[error(
        "the store's record of {what} conflicts with what is to be stored: {reason}\nhint: `spoke-precache verify --repair` repairs damage; or remove the images that use it with `crictl rmi` or `podman rmi`, and run again"
    )]
    Conflict {
        /// Which layer or image.
        what: String,
        /// How they differ.
        reason: String,
    },
    /// A layer is damaged, and cannot be mended under whoever uses it.
    #[error(
        "layer {layer} is damaged and in use by {user}\nhint: stop it and remove it, `crictl rm` or `podman rm`, and run `spoke-precache verify --repair` again"
    )]
    InUse {
        /// The layer.
        layer: LayerId,
        /// A container or a mount.
        user: String,
    },
    /// A file was asked for that is no regular file of a bearable size.
    #[error("cannot read `{path}` out of the image: {reason}")]
    Unreadable {
        /// The path inside the image.
        path: String,
        /// Why not.
        reason: String,
    },
}

impl StoreError {
    /// True when the file system, or a quota on it, is full.
    pub fn is_no_space(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }

    /// True when the disk fails.
    pub fn is_broken_disk(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.raw_os_error() == Some(libc::EIO))
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
