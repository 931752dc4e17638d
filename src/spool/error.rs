//! Defines the errors of the spool: lock held, disk full, I/O failure, wrong length or digest.

use std::io;
use std::path::{Path, PathBuf};

use crate::oci::Digest;

/// An error of the spool.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// Another process has the lock.
    #[error("another spoke-precache is running: it has locked `{}`\nhint: wait until it ends; two runs would download the same bytes twice", path.display())]
    Busy {
        /// The spool.
        path: PathBuf,
    },
    /// The file system is full, or a quota is.
    #[error("no space left for `{}`", path.display())]
    NoSpace {
        /// The file that was written.
        path: PathBuf,
        /// ENOSPC or EDQUOT.
        source: io::Error,
    },
    /// Any other error of the file system.
    #[error("`{}`: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A directory, a device or another special file has the name of a blob.
    #[error("`{}` is not a regular file", path.display())]
    NotAFile {
        /// Its path.
        path: PathBuf,
    },
    /// More bytes arrived than the manifest states.
    #[error("blob {digest} is longer than the {size} bytes of its manifest")]
    TooLong {
        /// Which blob.
        digest: Digest,
        /// Its length according to the manifest.
        size: u64,
    },
    /// Fewer bytes arrived than the manifest states.
    #[error("blob {digest} ended after {found} of {size} bytes")]
    TooShort {
        /// Which blob.
        digest: Digest,
        /// Its length according to the manifest.
        size: u64,
        /// Number of bytes present.
        found: u64,
    },
    /// All bytes arrived, and their digest is wrong.
    #[error("the {size} bytes received for blob {expected} have the digest {found}")]
    Mismatch {
        /// Which blob.
        expected: Digest,
        /// The digest of the received bytes.
        found: Digest,
        /// Its length in bytes.
        size: u64,
    },
}

impl SpoolError {
    /// True if the disk reported an I/O error.
    pub fn is_broken_disk(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.raw_os_error() == Some(libc::EIO))
    }

    /// Adds the path to an error of the system. A full disk becomes [`SpoolError::NoSpace`].
    pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| {
            let path = path.clone();
            match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { path, source },
                _ => Self::Io { path, source },
            }
        }
    }
}
