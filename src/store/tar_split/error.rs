//! Errors of reading a tar-split, or of recreating a layer's tar from it.

use std::io;

use crate::store::escaped_name::EscapedName;

/// A tar-split that is unreadable or does not match its layer.
#[derive(Debug, thiserror::Error)]
pub enum TarSplitError {
    /// The tar-split could not be read or decompressed.
    #[error("cannot read the tar-split: {0}")]
    Read(#[source] io::Error),
    /// The tar could not be written.
    #[error("cannot write the tar: {0}")]
    Write(#[source] io::Error),
    /// A line that does not parse.
    #[error("invalid tar-split in line {line}: {reason}")]
    Record {
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A file could not be opened or read in the layer.
    #[error("cannot read `{path}` in the layer: {source}")]
    File {
        /// The path in the tar-split.
        path: EscapedName,
        /// The error of the system.
        source: io::Error,
    },
    /// A file has other content than the tar.
    #[error("`{path}` in the layer differs from the tar: {reason}")]
    Differs {
        /// The path in the tar-split.
        path: EscapedName,
        /// Length or checksum, expected and found.
        reason: String,
    },
}
