//! Errors of unpacking a layer: malformed content, a failure of the host, an exceeded limit, or a stop.

use std::{fmt, io};

use crate::cancel::Stopped;
use crate::store::escaped_name::EscapedName;

/// Why unpacking ended. The caller must remove what was unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The image is malformed: another attempt, and any other tool, fails too.
    #[error("malformed layer: {fault} ({position})")]
    Content {
        /// Where in the tar.
        position: EntryPosition,
        /// The fault.
        fault: Fault,
    },
    /// The host failed to read or write; the image may be fine.
    #[error("cannot {action} `{path}`: {source}")]
    Host {
        /// A verb for the message.
        action: &'static str,
        /// The path in the layer, or another object.
        path: EscapedName,
        /// The error of the system, for example `ENOSPC`.
        source: io::Error,
    },
    /// The layer exceeds a limit that is far above every real layer.
    #[error("layer exceeds the limit of {max} {what}: {found} ({position})")]
    Limit {
        /// The counted unit.
        what: &'static str,
        /// The limit.
        max: u64,
        /// The minimum that the layer has or needs.
        found: u64,
        /// Where in the tar.
        position: EntryPosition,
    },
    /// The layer is larger than estimated, and the budget of disk space is used up.
    #[error(
        "not enough disk space for this layer, which is larger than estimated: at least {found} bytes ({position})\nhint: free \
         more space than that and run again, or leave out the image"
    )]
    OverBudget {
        /// Bytes of it so far.
        found: u64,
        /// Where in the tar.
        position: EntryPosition,
    },
    /// The run was stopped; the layer may be fine.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// A position in the uncompressed tar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPosition {
    /// Bytes of the tar before it.
    pub offset: u64,
    /// The entry, if its header was read.
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

/// A fault in a layer's content.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The compressed stream is broken or cut off.
    #[error("cannot decompress {format}: {source}")]
    Compression {
        /// Name of the format.
        format: &'static str,
        /// The error of the decompressor.
        source: io::Error,
    },
    /// An unsupported compression format.
    #[error("compressed with {0}, which is not supported; use gzip, zstd or no compression")]
    Unsupported(&'static str),
    /// A malformed header block or extended header.
    #[error("malformed tar header: {0}")]
    Header(&'static str),
    /// The tar ends inside an entry.
    #[error("the tar ends in the middle of {0}")]
    Truncated(&'static str),
    /// An entry type that containers/storage rejects too.
    #[error("unsupported tar header type `{}`", .0.escape_ascii())]
    Type(u8),
    /// A tar-split cannot have two entries with the same name, so containers/storage rejects them.
    #[error("two entries have the same path")]
    Duplicate,
    /// An entry named `/` that is not a directory.
    #[error("the layer's root would be replaced by something that is not a directory")]
    Root,
    /// A whiteout whose name ends after `.wh.`, or hides `.` or `..`.
    #[error("the whiteout names no file")]
    Whiteout,
    /// A hard link whose target is missing in this layer or is a directory.
    #[error("cannot hard link to `{target}`: {reason}")]
    HardLink {
        /// The target in the header.
        target: EscapedName,
        /// Why not.
        reason: &'static str,
    },
    /// A later entry replaced a directory, so its times cannot be set.
    #[error("the directory was replaced by a later entry")]
    DirectoryLost,
    /// The kernel rejected an extended attribute as too large or malformed.
    #[error("cannot set the extended attribute `{name}`: {source}")]
    Xattr {
        /// The attribute.
        name: EscapedName,
        /// The error of the system.
        source: io::Error,
    },
    /// The kernel rejected a property of the entry, such as a name of 300 bytes.
    #[error("cannot {action}: {source}")]
    Refused {
        /// A verb for the message.
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl UnpackError {
    /// True if the file system is full or a quota is exceeded.
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

    /// True if the disk reported an I/O error.
    pub fn is_broken_disk(&self) -> bool {
        matches!(self, Self::Host { source, .. } if source.raw_os_error() == Some(libc::EIO))
    }

    /// True if the image itself is the cause, so a retry cannot help.
    pub fn is_content(&self) -> bool {
        matches!(self, Self::Content { .. } | Self::Limit { .. })
    }

    pub(crate) fn host(action: &'static str, path: &[u8], source: impl Into<io::Error>) -> Self {
        let (path, source) = (EscapedName::new(path), source.into());
        Self::Host { action, path, source }
    }

    pub(super) fn tar_split(source: io::Error) -> Self {
        Self::host("write", b"the tar-split", source)
    }

    /// Adds the entry's name to an error without one.
    pub(super) fn in_entry(mut self, name: &[u8]) -> Self {
        if let Self::Content { position, .. }
        | Self::Limit { position, .. }
        | Self::OverBudget { position, .. } = &mut self
        {
            position.entry.get_or_insert_with(|| EscapedName::new(name));
        }
        self
    }
}
