//! Opens files of a directory by their paths below it, and never follows a link out of it.
//!
//! The kernel resolves every path below the directory (`RESOLVE_BENEATH`, `openat2(2)`). Links inside it are followed:
//! `oc image mirror --dir` writes tags as symbolic links. Only regular files are opened; opening a device or a pipe could
//! have an effect or block.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// How often a path is resolved again, after another process moved something in it (`openat2(2)`).
const RESOLVE_ATTEMPTS: usize = 16;

/// How many entries of a directory are read at most.
const MAX_ENTRIES: usize = 100_000;

/// An open directory.
#[derive(Debug)]
pub(super) struct Directory(OwnedFd);

impl Directory {
    /// Opens the directory at `path`; a link there is followed.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// The length of the regular file at this path below the directory; none if there is no such file.
    pub(super) fn size_of(&self, path: &str) -> io::Result<Option<u64>> {
        let Some(found) = self.resolve(path, OFlags::PATH)? else {
            return Ok(None);
        };
        let stat = rustix::fs::fstat(&found)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Ok(is_file.then_some(stat.st_size.cast_unsigned()))
    }

    /// Whether a directory is at this path.
    pub(super) fn has_directory(&self, path: &str) -> io::Result<bool> {
        let found = self.resolve(path, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(found.is_some())
    }

    /// Opens the regular file at this path.
    pub(super) fn file(&self, path: &str) -> io::Result<File> {
        if self.size_of(path)?.is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        // Another process may have replaced the file since it was looked at.
        let opened = self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let file = File::from(opened.ok_or(io::ErrorKind::NotFound)?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("it is not a regular file")),
        }
    }

    /// The names in the directory at this path that are UTF-8, and whether each is a directory; links are neither. Empty if
    /// there is no such directory. A directory with very many entries is read in part.
    pub(super) fn entries(&self, path: &str) -> io::Result<Vec<(String, FileType)>> {
        let path = if path.is_empty() { "." } else { path };
        let Some(directory) = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)? else {
            return Ok(Vec::new());
        };
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&directory)?.take(MAX_ENTRIES) {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if matches!(name, "." | "..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
                    stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
                }
                kind => kind,
            };
            entries.push((name.to_owned(), kind));
        }
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(entries)
    }

    /// Opens what is at `path`; none if nothing is there, or only a link that leads outside or in a circle.
    fn resolve(&self, path: &str, flags: OFlags) -> io::Result<Option<OwnedFd>> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..RESOLVE_ATTEMPTS {
            let opened = rustix::fs::openat2(
                self.0.as_fd(),
                path,
                flags | OFlags::CLOEXEC,
                Mode::empty(),
                resolve,
            );
            return match opened {
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(
                    Errno::NOENT
                    | Errno::NOTDIR
                    | Errno::XDEV
                    | Errno::LOOP
                    | Errno::NAMETOOLONG
                    | Errno::INVAL,
                ) => Ok(None),
                opened => Ok(Some(opened?)),
            };
        }
        Err(Errno::AGAIN.into())
    }
}
