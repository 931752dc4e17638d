//! Lists the reasons why a delta cannot be applied.

use std::io;

use crate::cancel::Stopped;

/// Why a delta does not make a tar.
///
/// A fault of the delta or of a source means that the layer needs another delta or its whole blob. A source that the host
/// cannot read or inflate is such a fault too, because the whole blob needs neither.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// The delta is malformed or exceeds a limit.
    #[error("malformed delta: {fault} (byte {offset} of its operations)")]
    Format {
        /// Uncompressed bytes of operations before it.
        offset: u64,
        /// The fault.
        fault: FormatFault,
    },
    /// The delta needs another source than this node has.
    #[error("cannot use `{path}` of the old image number {image}: {fault}")]
    Source {
        /// Number of the old image.
        image: u64,
        /// Path in the old image, for messages.
        path: String,
        /// The fault.
        fault: SourceFault,
    },
    /// The host cannot read the delta; it may be fine.
    #[error("cannot read the delta: {0}")]
    Host(#[source] io::Error),
    /// The run was stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// A fault of the delta itself.
#[derive(Debug, thiserror::Error)]
pub enum FormatFault {
    /// It has another format, or is not a delta.
    #[error("it does not start with `{}`", .0.trim_ascii_end().escape_ascii())]
    Header(&'static [u8]),
    /// The zstd stream is broken, or needs too much memory.
    #[error("cannot decompress zstd: {0}")]
    Zstd(io::Error),
    /// It ends inside an operation or inside the zstd stream.
    #[error("it is cut off")]
    CutOff,
    /// The format has no such operation.
    #[error("unknown operation {0}")]
    Operation(u8),
    /// A length or offset that no file has.
    #[error("a number exceeds 63 bits")]
    Number,
    /// The data of an operation has the wrong length.
    #[error("operation {0} has too much or too little data")]
    Operands(u8),
    /// A path that no file in an image has.
    #[error("the path of a source {0}")]
    Path(&'static str),
    /// An operation reads a source, but none was opened.
    #[error("it opens no source before it reads one")]
    NoSource,
    /// A compressor that this version does not have.
    #[error("unknown codec {0}")]
    Codec(u8),
    /// A zlib stream in the output does not end where an operation ends.
    #[error("a zlib stream in the output does not end with an operation")]
    ZlibStream,
    /// It costs more than any delta needs.
    #[error("it exceeds the limit of {max} {what}")]
    Limit {
        /// The counted unit.
        what: &'static str,
        /// The limit.
        max: u64,
    },
}

/// A fault of a source.
#[derive(Debug, thiserror::Error)]
pub enum SourceFault {
    /// The old image has no such regular file.
    #[error("the old image has no such regular file")]
    Missing,
    /// The file is shorter than the delta says.
    #[error("it ends before byte {0}, which the delta needs")]
    Shorter(u64),
    /// A range of the file is not the zlib stream that the delta says.
    #[error("it does not have the compressed content that the delta needs")]
    Changed,
    /// The host cannot open or read it, or cannot store its inflated bytes.
    #[error("cannot {action}: {error}")]
    Host {
        /// What the host cannot do.
        action: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl PatchError {
    /// The error inside one that [`super::PatchedTar`] returned from `read` or `seek`. `None` for the host's errors while
    /// reading the delta: they have an error number, as when any other blob is read.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<PatchError> for io::Error {
    fn from(error: PatchError) -> Self {
        match error {
            PatchError::Host(error) => error,
            error => Self::other(error),
        }
    }
}
