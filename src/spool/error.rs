//! What can go wrong in the spool.

use std::io;
use std::path::{Path, PathBuf};

use crate::oci::Digest;

/// Why the spool could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// Another agent has the lock.
    #[error("another spoke-precache is running: it holds `{}`\nhint: two would fetch the same bytes twice; wait for the first", path.display())]
    Busy {
        /// The spool.
        path: PathBuf,
    },
    /// The file system is full, or a quota is.
    #[error("no space left for `{}`", path.display())]
    NoSpace {
        /// What was written.
        path: PathBuf,
        /// ENOSPC or EDQUOT.
        source: io::Error,
    },
    /// Any other error of the file system.
    #[error("`{}`: {source}", path.display())]
    Io {
        /// What was read or written.
        path: PathBuf,
        /// As the kernel said it.
        source: io::Error,
    },
    /// A directory, a device or the like bears a blob's name.
    #[error("`{}` is not a regular file", path.display())]
    NotAFile {
        /// Where.
        path: PathBuf,
    },
    /// More bytes came than the manifest announced.
    #[error("blob {digest} is longer than the {size} bytes of its manifest")]
    TooLong {
        /// Which blob.
        digest: Digest,
        /// Its length by the manifest.
        size: u64,
    },
    /// Fewer bytes came than the manifest announced.
    #[error("blob {digest} ended after {found} of {size} bytes")]
    TooShort {
        /// Which blob.
        digest: Digest,
        /// Its length by the manifest.
        size: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// All bytes came, and they are not the blob's.
    #[error("the {size} bytes received for blob {expected} have the digest {found}")]
    Mismatch {
        /// Which blob.
        expected: Digest,
        /// The digest of what came.
        found: Digest,
        /// Its length in bytes.
        size: u64,
    },
}

impl SpoolError {
    /// True when the disk fails.
    pub fn is_broken_disk(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.raw_os_error() == Some(libc::EIO))
    }

    /// Names the file in an error of the kernel and tells a full disk from the rest.
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
