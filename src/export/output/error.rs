//! Lists the reasons why an output cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use crate::cancel::Stopped;
use crate::oci::Digest;
use crate::oci_layout::OciLayoutError;
use crate::registry::Kind;
use crate::report::Size;
use crate::spool::SpoolError;

/// Why an output cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// A file cannot be read or written.
    #[error("`{}`: {source}{}", path.display(), hint(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory.
    #[error("{source}{}", layout_hint(source))]
    Layout {
        /// Why.
        #[from]
        source: OciLayoutError,
    },
    /// The file was not written by an export.
    #[error("`{}` is not a tar of an export\nhint: name a file that does not exist", path.display())]
    NotATar {
        /// The file.
        path: PathBuf,
    },
    /// Another process writes to it.
    #[error("another export writes to `{}`", path.display())]
    Busy {
        /// The output.
        path: PathBuf,
    },
    /// A blob that was copied has another digest.
    #[error("`{}`: what was written of blob {blob} has the digest {found}", path.display())]
    WrongDigest {
        /// The output.
        path: PathBuf,
        /// The blob.
        blob: Digest,
        /// The digest of what was written.
        found: Digest,
    },
    /// The file system does not hold files of this size.
    #[error(
        "`{}` is on a FAT file system, whose files have at most 4 GiB, and {what} needs {}\n\
         hint: format the medium with exFAT, XFS or ext4", path.display(), Size(*size)
    )]
    FileTooLarge {
        /// The output.
        path: PathBuf,
        /// What needs it.
        what: String,
        /// Bytes.
        size: u64,
    },
    /// The output is too small, found before the downloads.
    #[error("`{}` needs {} more, and {} are free\nhint: free some space, name another output, or leave out what the nodes have with `--since`", path.display(), Size(*needed), Size(*free))]
    NoSpace {
        /// The output.
        path: PathBuf,
        /// Bytes.
        needed: u64,
        /// Bytes.
        free: u64,
    },
    /// The spool, whose blobs go into the output.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The export stops.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl OutputError {
    /// What it means for the exit code.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Io { source, .. }
            | Self::Layout {
                source: OciLayoutError::Io { source, .. },
            } => of_system(source),
            Self::NoSpace { .. } | Self::FileTooLarge { .. } | Self::Spool(SpoolError::NoSpace { .. }) => {
                Kind::NoSpace
            }
            Self::Stopped(_)
            | Self::Layout {
                source: OciLayoutError::Stopped(_),
            } => Kind::Stopped,
            Self::Layout { .. }
            | Self::NotATar { .. }
            | Self::Busy { .. }
            | Self::WrongDigest { .. }
            | Self::Spool(_) => Kind::Local,
        }
    }
}

/// Adds the path to an error of the system.
pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> OutputError + use<> {
    let path = path.to_owned();
    move |source| OutputError::Io {
        path: path.clone(),
        source,
    }
}

/// What an error of the system means for the exit code.
pub(in crate::export) fn of_system(error: &io::Error) -> Kind {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Kind::NoSpace
        }
        _ => Kind::Local,
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::FileTooLarge => {
            "\nhint: FAT holds files of at most 4 GiB; format the medium with exFAT, XFS or ext4"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "\nhint: free some space and run again; what was written is kept"
        }
        io::ErrorKind::ReadOnlyFilesystem => "\nhint: mount it writable, or name another output",
        _ => "",
    }
}

fn layout_hint(error: &OciLayoutError) -> &'static str {
    match error {
        OciLayoutError::Io { source, .. } => hint(source),
        _ => "",
    }
}
