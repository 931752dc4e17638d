//! Creates the work directory of a command that needs neither root nor a store.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Why a work directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{}`: {source}", path.display())]
pub struct WorkDirectoryError {
    /// A verb for the message.
    action: &'static str,
    /// The directory.
    path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// Creates a directory that only this user can use, and returns its path. One that exists must belong to this user: the
/// default is in a directory where every user may create it first, and replace the files in it.
pub fn create(path: PathBuf) -> Result<PathBuf, WorkDirectoryError> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(&path);
    created.map_err(failed("create", &path))?;
    let owner = fs::symlink_metadata(&path)
        .map_err(failed("examine", &path))?
        .uid();
    if owner != rustix::process::geteuid().as_raw() {
        let error =
            io::Error::other("it belongs to another user\nhint: name another directory with `--work-dir`");
        return Err(failed("use", &path)(error));
    }
    Ok(path)
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WorkDirectoryError {
    let path = path.to_owned();
    move |source| WorkDirectoryError { action, path, source }
}
