//! Lists the reasons why an OCI layout cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use crate::cancel::Stopped;
use crate::oci::Digest;
use crate::registry::ReferrersIndexError;

/// Why an OCI layout cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OciLayoutError {
    /// A file cannot be read or written.
    #[error("`{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It has other content.
    #[error("`{}` is not an OCI image layout: {why}", path.display())]
    Invalid {
        /// The directory or the file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The content does not match its digest.
    #[error("`{}`: the content has the digest {found}", path.display())]
    WrongDigest {
        /// The blob's file.
        path: PathBuf,
        /// The digest of the content.
        found: Digest,
    },
    /// The index of a subject's referrers cannot be extended.
    #[error(transparent)]
    Referrers(#[from] ReferrersIndexError),
    /// The run stops.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Adds the path to an error of the system.
pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> OciLayoutError {
    let path = path.to_owned();
    move |source| OciLayoutError::Io { path, source }
}
