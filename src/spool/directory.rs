//! Opens, lists and removes files in the spool's directory, and never follows a link or blocks on a FIFO there.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::error::SpoolError;
use super::file_names::FileNames;
use crate::oci::Digest;

/// The open directory of the spool.
#[derive(Debug)]
pub(super) struct SpoolDirectory {
    pub(super) fd: File,
    pub(super) path: PathBuf,
}

/// What the name of a file with bytes of a blob stands for.
pub(super) enum BlobFile {
    /// A whole blob.
    Whole(Digest),
    /// A range of a blob.
    Range(FileNames),
}

impl SpoolDirectory {
    /// Opens the file `name`; `None` if it does not exist.
    pub(super) fn open(&self, name: &str, flags: OFlags) -> Result<Option<File>, SpoolError> {
        match self.open_raw(name, flags) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.error_at(name)(error.into())),
        }
    }

    pub(super) fn open_raw(&self, name: &str, flags: OFlags) -> Result<File, Errno> {
        // Without NONBLOCK, opening a FIFO that has the name of a blob would block forever.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
    }

    /// The length of a regular file.
    pub(super) fn regular_size(&self, file: &File, name: &str) -> Result<u64, SpoolError> {
        let metadata = file.metadata().map_err(self.error_at(name))?;
        if metadata.is_file() {
            Ok(metadata.len())
        } else {
            Err(SpoolError::NotAFile {
                path: self.path.join(name),
            })
        }
    }

    /// Removes the file `name`, if it exists.
    pub(super) fn unlink(&self, name: &str) -> Result<(), SpoolError> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.error_at(name)(error.into())),
        }
    }

    /// Removes a journal. One that stays is harmless: without its blob no program uses it.
    pub(super) fn unlink_if_possible(&self, name: &str) {
        if let Err(error) = self.unlink(name) {
            tracing::warn!("cannot remove an unused file from the spool: {error}");
        }
    }

    /// Adds the path of `name` to an error of the system.
    pub(super) fn error_at(&self, name: &str) -> impl Fn(io::Error) -> SpoolError + use<> {
        SpoolError::at(&self.path.join(name))
    }
}

/// The names in a directory that are UTF-8.
pub(super) fn names(dir: &File, path: &Path) -> Result<Vec<String>, SpoolError> {
    let error_at = SpoolError::at(path);
    let mut names = Vec::new();
    for item in rustix::fs::Dir::read_from(dir).map_err(|error| error_at(error.into()))? {
        let item = item.map_err(|error| error_at(error.into()))?;
        names.extend(item.file_name().to_str().ok().map(str::to_owned));
    }
    Ok(names)
}

/// The files that contain bytes of blobs.
pub(super) fn blob_files(dir: &File, path: &Path) -> Result<Vec<(BlobFile, Stat)>, SpoolError> {
    let mut files = Vec::new();
    for name in names(dir, path)? {
        let parsed = match FileNames::of_partial(&name) {
            Some(names) => BlobFile::Range(names),
            None => match name.parse() {
                Ok(digest) => BlobFile::Whole(digest),
                Err(_) => continue,
            },
        };
        match rustix::fs::statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => files.push((parsed, stat)),
            // Removed since the directory was read.
            Err(Errno::NOENT) => {}
            Err(error) => return Err(SpoolError::at(&path.join(&name))(error.into())),
        }
    }
    Ok(files)
}
