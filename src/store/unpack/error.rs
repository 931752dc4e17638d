//! Why a layer could not be unpacked: its content, the host, a limit, or the end of the run.

use std::{fmt, io};

use crate::cancel::Stopped;
use crate::store::escaped_name::EscapedName;

/// The end of an attempt to unpack a layer. What lies in the directory is then to be thrown away.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The image is malformed: another attempt, and any other tool, ends here as well.
    #[error("malformed layer: {fault} ({place})")]
    Content {
        /// Where in the tar.
        place: EntryPosition,
        /// What is wrong there.
        fault: Fault,
    },
    /// The host refused to read or write; nothing is known against the image.
    #[error("cannot {action} `{path}`: {source}")]
    Host {
        /// A verb for the message.
        action: &'static str,
        /// The path in the layer, or what else was acted on.
        path: EscapedName,
        /// What the system said, `ENOSPC` among others.
        source: io::Error,
    },
    /// The layer would take more than any real one does.
    #[error("layer exceeds the limit of {max} {what}: {found} ({place})")]
    Limit {
        /// What is counted.
        what: &'static str,
        /// The bound.
        max: u64,
        /// What the layer has or wants, at least.
        found: u64,
        /// Where in the tar.
        place: EntryPosition,
    },
    /// The layer is larger than was foreseen, and nothing is left that other layers do not need.
    #[error(
        "the disk has no room for this layer, which is larger than was foreseen: at least {found} bytes ({place})\nhint: free \
         more space than that and run again, or leave the image out"
    )]
    OverBudget {
        /// Bytes of it so far.
        found: u64,
        /// Where in the tar.
        place: EntryPosition,
    },
    /// The run ends early; nothing is wrong.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// A place in the uncompressed tar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPosition {
    /// Bytes of the tar that were read before.
    pub offset: u64,
    /// The entry, once its header was read.
    pub entry: Option<EscapedName>,
}

impl fmt::Display for EntryPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.entry {
            write!(f, "entry `{name}`, ")?;
        }
        write!(f, "byte {} of the tar", self.offset)
    }
}

/// What is wrong with a layer's content.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The compressed stream is broken or cut off.
    #[error("cannot decompress {format}: {source}")]
    Compression {
        /// EscapedName of the format.
        format: &'static str,
        /// What the decompressor said.
        source: io::Error,
    },
    /// A format that images do not use.
    #[error("compressed with {0}, which is not supported: only gzip, zstd and no compression are")]
    Unsupported(&'static str),
    /// A header block or extended header that is none.
    #[error("bad tar header: {0}")]
    Header(&'static str),
    /// The tar ends inside an entry.
    #[error("the tar ends in the middle of {0}")]
    Truncated(&'static str),
    /// containers/storage knows no such type either.
    #[error("unhandled tar header type `{}`", .0.escape_ascii())]
    Type(u8),
    /// tar-split cannot name two entries alike, so containers/storage refuses them.
    #[error("two entries have the same path")]
    Duplicate,
    /// An entry named `/` that is no directory.
    #[error("the layer's root would be replaced by something that is not a directory")]
    Root,
    /// A whiteout whose name ends after `.wh.`, or hides `.` or `..`.
    #[error("the whiteout names no file")]
    Whiteout,
    /// A hard link whose target is missing in this layer or is a directory.
    #[error("cannot hard link to `{target}`: {reason}")]
    HardLink {
        /// The target as the header has it.
        target: EscapedName,
        /// Why not.
        reason: &'static str,
    },
    /// A directory that was unpacked is gone at the end: a later entry took its place.
    #[error("the directory was replaced by a later entry")]
    DirectoryLost,
    /// The kernel refused an extended attribute as too large or malformed.
    #[error("cannot set the extended attribute `{name}`: {source}")]
    Xattr {
        /// The attribute.
        name: EscapedName,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel refused something that only the entry asked for, such as a name of 300 bytes.
    #[error("cannot {action}: {source}")]
    Refused {
        /// A verb for the message.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl UnpackError {
    /// True if the file system is full, or the quota used up.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::Host { source, .. } => {
                matches!(
                    source.kind(),
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
                )
            }
            _ => false,
        }
    }

    /// True when the disk fails.
    pub fn is_broken_disk(&self) -> bool {
        matches!(self, Self::Host { source, .. } if source.raw_os_error() == Some(libc::EIO))
    }

    /// True if the image itself is to blame, so that a retry cannot help.
    pub fn is_content(&self) -> bool {
        matches!(self, Self::Content { .. } | Self::Limit { .. })
    }

    pub(super) fn host(action: &'static str, path: &[u8], source: impl Into<io::Error>) -> Self {
        let (path, source) = (EscapedName::new(path), source.into());
        Self::Host { action, path, source }
    }

    pub(super) fn tar_split(source: io::Error) -> Self {
        Self::host("write", b"the tar-split", source)
    }

    /// Names the entry in an error that does not know it.
    pub(super) fn in_entry(mut self, name: &[u8]) -> Self {
        if let Self::Content { place, .. } | Self::Limit { place, .. } | Self::OverBudget { place, .. } =
            &mut self
        {
            place.entry.get_or_insert_with(|| EscapedName::new(name));
        }
        self
    }
}
