//! Lists the reasons why the history of runs cannot be read or written.

use std::io;
use std::path::PathBuf;

/// Why the history cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The spool's directory is missing. It is not created: only a run that locks the spool creates it.
    #[error("`{}` does not exist", path.display())]
    NoDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {what} `{}`: {source}", path.display())]
    Io {
        /// `read` or `write`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process has held the lock of the directory for too long.
    #[error("cannot write `{}`: another process has locked its directory", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The content is not a history.
    #[error("`{}` is damaged: {source}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        source: DamagedHistory,
    },
}

/// What is wrong with the content of the file.
#[derive(Debug, thiserror::Error)]
pub enum DamagedHistory {
    /// It is no regular file.
    #[error("it is not a regular file")]
    NotAFile,
    /// It is longer than any history.
    #[error("it is too long")]
    TooLong,
    /// Another program or another version wrote it.
    #[error("it is of another kind or version")]
    OtherKind,
    /// It does not parse.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
}
