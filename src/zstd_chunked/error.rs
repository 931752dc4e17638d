//! Lists the reasons why a layer cannot be made from chunks.

use std::io;

use crate::cancel::Stopped;
use crate::store::EscapedName;
use crate::store::tar_split::TarSplitError;

/// Why chunks and files of this node do not make a tar. The layer then needs its whole blob, unless the run was stopped.
#[derive(Debug, thiserror::Error)]
pub enum ChunkedError {
    /// The TOC or its annotations are malformed or exceed a limit.
    #[error("malformed table of contents: {0}")]
    Toc(String),
    /// The tar-split in the blob is malformed, or has another digest than the TOC states.
    #[error("malformed tar-split: {0}")]
    TarSplit(String),
    /// A file of this node is missing or was changed since it was found.
    #[error("cannot use this node's `{path}`: {reason}")]
    File {
        /// The path in the layer.
        path: EscapedName,
        /// What is wrong with it.
        reason: String,
    },
    /// The downloaded bytes of a file have another content than the TOC states.
    #[error("the chunks of `{path}` are wrong: {reason}")]
    Chunk {
        /// The path in the layer.
        path: EscapedName,
        /// What is wrong with them.
        reason: String,
    },
    /// The host cannot read the downloaded bytes.
    #[error("cannot read the chunks: {0}")]
    Host(#[source] io::Error),
    /// The run was stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl ChunkedError {
    /// The error inside one that [`super::ChunkedTar`] returned from `read` or `seek`.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<TarSplitError> for ChunkedError {
    fn from(error: TarSplitError) -> Self {
        match error {
            TarSplitError::Read(error) if error.raw_os_error().is_some() => Self::Host(error),
            error => Self::TarSplit(error.to_string()),
        }
    }
}

impl From<ChunkedError> for io::Error {
    fn from(error: ChunkedError) -> Self {
        match error {
            ChunkedError::Host(error) => error,
            error => Self::other(error),
        }
    }
}
