//! Creates files, directories, links, devices and whiteouts from tar entries, with the rules of containers/storage
//! (`pkg/archive`: `Unpack`).
//!
//! [`ParentDirs`] opens the parent of an entry. The last component is then only used relative to that open directory
//! and never followed. Whiteouts become what overlayfs understands: `.wh.x` a character device 0:0 named `x`,
//! `.wh..wh..opq` the attribute `trusted.overlay.opaque` of its directory.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::entry_name::{self, split};
use super::error::{EntryPosition, Fault, UnpackError};
use super::file_attributes;
use super::limits::UnpackLimits;
use super::parent_directories::{ParentDir, ParentDirs, open_in};
use super::replaced_entry::{RemoveError, remove};
use super::tar_reader::{TarEntry, TarEntryKind};
use super::write_behind::WriteBehind;
use crate::cancel::Cancel;
use crate::store::escaped_name::EscapedName;
use crate::write_back::WriteQueue;

/// The prefix of a whiteout's name. It deletes a file of a lower layer.
pub(in crate::store) const WHITEOUT_PREFIX: &[u8] = b".wh.";

/// The name that makes its directory opaque: it hides the same directory of lower layers.
pub(in crate::store) const OPAQUE: &[u8] = b".wh..wh..opq";

/// The attribute for the same in overlayfs.
pub(in crate::store) const OPAQUE_XATTR: (&str, &[u8]) = ("trusted.overlay.opaque", b"y");

/// Writes the tree of one layer.
pub(super) struct TreeWriter<'a> {
    cancel: &'a Cancel,
    write_queue: &'a WriteQueue,
    parents: ParentDirs,
    limits: UnpackLimits<'a>,
    /// Directories with the times to set after all entries.
    directories: Vec<(Vec<u8>, Timestamps)>,
    directory_names: usize,
    /// Entries whose files can be read back from their names, by inode number.
    files: HashMap<u64, u64>,
    /// One of `files` was removed by a later entry.
    lost: bool,
}

/// A new regular file without its data.
pub(super) struct NewFile {
    file: File,
    behind: WriteBehind,
    /// Its attributes after creation.
    stat: Stat,
    /// Whether it can be read back by the entry's name.
    pub(super) plain: bool,
}

impl NewFile {
    pub(super) fn write(&mut self, chunk: &[u8], entry: &TarEntry) -> Result<(), UnpackError> {
        let result = self.file.write_all(chunk);
        let result = result.and_then(|()| self.behind.wrote(&self.file, chunk.len() as u64));
        result.map_err(|error| UnpackError::host("write", &entry.name, error))
    }
}

impl<'a> TreeWriter<'a> {
    pub(super) fn new(
        diff: BorrowedFd<'_>,
        limits: UnpackLimits<'a>,
        write_queue: &'a WriteQueue,
        cancel: &'a Cancel,
    ) -> Result<Self, UnpackError> {
        let parents = ParentDirs::new(diff);
        Ok(Self {
            cancel,
            write_queue,
            parents: parents.map_err(|errno| UnpackError::host("open", b"the layer's directory", errno))?,
            limits,
            directories: Vec::new(),
            directory_names: 0,
            files: HashMap::new(),
            lost: false,
        })
    }

    /// Creates the entry. A regular file is returned, for the caller to write its data and call
    /// [`Self::finish_file`].
    pub(super) fn create(&mut self, entry: &TarEntry) -> Result<Option<NewFile>, UnpackError> {
        if entry.is_dot() {
            return Ok(None);
        }
        if entry.path().is_empty() {
            return self.make_root(entry);
        }
        let (directory, base) = split(entry.path());
        let hidden = base.strip_prefix(WHITEOUT_PREFIX);
        if base != OPAQUE && matches!(hidden, Some(b"" | b"." | b"..")) {
            return Err(entry.fault(Fault::Whiteout));
        }
        let parent = match self.parents.resolve(directory) {
            Ok(Some(parent)) => parent,
            Ok(None) => return self.make_below_file(entry, directory, base, hidden.is_some()),
            // It creates nothing, so it needs no directory.
            Err(Errno::NOENT | Errno::LOOP) if entry.kind == TarEntryKind::GlobalHeader => return Ok(None),
            Err(errno) => return Err(entry.refused("find the directory of", errno)),
        };
        if hidden.is_some() || entry.kind == TarEntryKind::GlobalHeader {
            self.remove_existing(&parent, base, entry)?;
        }
        match (hidden, entry.kind) {
            (Some(_), _) if base == OPAQUE => {
                let (name, value) = OPAQUE_XATTR;
                let result = rustix::fs::fsetxattr(&parent, name, value, XattrFlags::empty());
                result.map_err(|errno| entry.refused_xattr(name.as_bytes(), errno, &parent))?;
            }
            (Some(hidden), _) => make_whiteout(&parent, hidden, entry)?,
            (None, TarEntryKind::File) => return self.make_file(&parent, base, entry).map(Some),
            (None, TarEntryKind::Directory) => self.make_directory(&parent, base, entry)?,
            (None, TarEntryKind::Symlink) => self.make_symlink(&parent, base, entry)?,
            (None, TarEntryKind::HardLink) => self.make_hard_link(&parent, base, entry)?,
            (None, TarEntryKind::CharDevice) => {
                self.make_node(&parent, base, entry, FileType::CharacterDevice)?
            }
            (None, TarEntryKind::BlockDevice) => {
                self.make_node(&parent, base, entry, FileType::BlockDevice)?
            }
            (None, TarEntryKind::Fifo) => self.make_node(&parent, base, entry, FileType::Fifo)?,
            (None, TarEntryKind::GlobalHeader) => {}
            (None, TarEntryKind::Other(typeflag)) => return Err(entry.fault(Fault::Type(typeflag))),
        }
        Ok(None)
    }

    /// Sets the attributes of a file after its data. `readable` states that the tar-split refers to its content by
    /// its name.
    pub(super) fn finish_file(
        &mut self,
        file: NewFile,
        entry: &TarEntry,
        readable: bool,
    ) -> Result<(), UnpackError> {
        file_attributes::own_open(&file.file, &file.stat, entry)?;
        let times = rustix::fs::futimens(&file.file, &file_attributes::timestamps(entry));
        times.map_err(|errno| entry.refused("set the times", errno))?;
        file_attributes::set_xattrs_open(&file.file, entry)?;
        if readable && entry.size > 0 {
            self.files.insert(file.stat.st_ino, entry.number);
        }
        let rest = file.behind.rest();
        if !rest.is_empty() {
            self.write_queue.add(file.file, rest);
        }
        Ok(())
    }

    /// Sets the times of directories, in the order of the tar; `offset` is the end of the tar, for errors. If a later
    /// entry replaced a file that was declared readable, returns the entries that are still readable from their
    /// names.
    pub(super) fn finish(self, offset: u64) -> Result<Option<HashSet<u64>>, UnpackError> {
        for (path, times) in &self.directories {
            self.cancel.check()?;
            let lost = |errno| match errno {
                Errno::NOENT | Errno::NOTDIR | Errno::LOOP => UnpackError::Content {
                    position: EntryPosition {
                        offset,
                        entry: Some(EscapedName::new(path)),
                    },
                    fault: Fault::DirectoryLost,
                },
                errno => UnpackError::host("set the times of", path, errno),
            };
            // Resolves the path again, as containers/storage does: a link that replaced the directory is followed.
            let root = self.parents.root().as_fd();
            let target = open_in(root, path, OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::empty());
            let target = target.map_err(lost)?;
            rustix::fs::utimensat(&target, c"", times, AtFlags::EMPTY_PATH).map_err(lost)?;
        }
        Ok(self.lost.then(|| self.files.into_values().collect()))
    }

    /// An entry named `/`, or `..`, is the layer's root itself.
    fn make_root(&mut self, entry: &TarEntry) -> Result<Option<NewFile>, UnpackError> {
        if entry.kind != TarEntryKind::Directory {
            return Err(entry.fault(Fault::Root));
        }
        let root = self.parents.root().clone();
        self.finish_directory(&root, entry)?;
        Ok(None)
    }

    /// The entry's parent exists and is not a directory. A whiteout is redundant then: some tools write `.wh.a` and
    /// `a/.wh.b` for one removal. An opaque marker is set on whatever has the path.
    fn make_below_file(
        &mut self,
        entry: &TarEntry,
        parent: &[u8],
        base: &[u8],
        is_whiteout: bool,
    ) -> Result<Option<NewFile>, UnpackError> {
        if base == OPAQUE {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let target = open_in(self.parents.root().as_fd(), parent, flags, ResolveFlags::empty());
            let target = target.map_err(|errno| entry.refused("find the directory of", errno))?;
            let (name, value) = OPAQUE_XATTR;
            let path = file_attributes::proc_path(&target);
            let result = rustix::fs::setxattr(path, name, value, XattrFlags::empty());
            result.map_err(|errno| entry.refused_xattr(name.as_bytes(), errno, &target))?;
        } else if !is_whiteout && entry.kind != TarEntryKind::GlobalHeader {
            return Err(entry.refused("create", Errno::NOTDIR));
        }
        Ok(None)
    }

    fn make_file(
        &mut self,
        parent: &ParentDir,
        base: &[u8],
        entry: &TarEntry,
    ) -> Result<NewFile, UnpackError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Set-id bits are set after the data, because a write clears them.
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        let file = self.replacing(parent, base, entry, || {
            rustix::fs::openat(parent, base, flags, mode)
        })?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| entry.refused("examine", errno))?;
        Ok(NewFile {
            file: file.into(),
            behind: WriteBehind::default(),
            stat,
            plain: parent.plain && !entry_name::climbs(&entry.name),
        })
    }

    fn make_directory(
        &mut self,
        parent: &ParentDir,
        base: &[u8],
        entry: &TarEntry,
    ) -> Result<(), UnpackError> {
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        self.replacing(parent, base, entry, || {
            match rustix::fs::mkdirat(parent, base, mode) {
                Err(Errno::EXIST) if is_directory(parent, base)? => Ok(()),
                made => made,
            }
        })?;
        let directory = parent.child(base).map_err(|errno| entry.refused("open", errno))?;
        self.finish_directory(&directory, entry)?;
        // The next entries are usually in this directory.
        self.parents.remember(entry.path(), directory);
        Ok(())
    }

    fn finish_directory(&mut self, directory: &ParentDir, entry: &TarEntry) -> Result<(), UnpackError> {
        let stat = rustix::fs::fstat(directory).map_err(|errno| entry.refused("examine", errno))?;
        file_attributes::own_open(directory, &stat, entry)?;
        file_attributes::set_xattrs_open(directory, entry)?;
        let path = entry.path().to_vec();
        self.directory_names += path.len();
        let (max, found) = (self.limits.directory_names as u64, self.directory_names as u64);
        if found > max {
            let (what, position) = ("bytes in names of directories", entry.position());
            return Err(UnpackError::Limit {
                what,
                max,
                found,
                position,
            });
        }
        self.directories.push((path, file_attributes::timestamps(entry)));
        Ok(())
    }

    fn make_symlink(&mut self, parent: &ParentDir, base: &[u8], entry: &TarEntry) -> Result<(), UnpackError> {
        self.replacing(parent, base, entry, || {
            rustix::fs::symlinkat(&entry.link[..], parent, base)
        })?;
        let times = Timestamps {
            last_access: entry.atime.settable_on_symlink(),
            last_modification: entry.mtime.settable_on_symlink(),
        };
        file_attributes::set_by_name(parent, base, entry, true)?;
        file_attributes::set_times_by_name(parent, base, entry, &times)
    }

    /// The target's path is relative to the root. Its parents are resolved there, but the target itself is not
    /// followed: a hard link to a symbolic link is a symbolic link.
    fn make_hard_link(
        &mut self,
        parent: &ParentDir,
        base: &[u8],
        entry: &TarEntry,
    ) -> Result<(), UnpackError> {
        let failed = |reason| {
            let target = EscapedName::new(&entry.link);
            entry.fault(Fault::HardLink { target, reason })
        };
        let target = entry_name::clean(&entry.link);
        let (target_directory, target_base) = split(entry_name::in_root(&target));
        if target_base.is_empty() {
            return Err(failed("it is a directory"));
        }
        let missing = |errno| match errno {
            Errno::NOENT | Errno::NOTDIR => failed("it is not in this layer"),
            errno => entry.refused("find the target of", errno),
        };
        let root = self.parents.root().as_fd();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open_in(root, target_directory, flags, ResolveFlags::empty()).map_err(missing)?;
        let stat = rustix::fs::statat(&directory, target_base, AtFlags::SYMLINK_NOFOLLOW).map_err(missing)?;
        if is_directory_mode(stat.st_mode) {
            return Err(failed("it is a directory"));
        }
        self.replacing(parent, base, entry, || {
            rustix::fs::linkat(&directory, target_base, parent, base, AtFlags::empty())
        })?;
        let is_symlink = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        file_attributes::set_by_name(parent, base, entry, is_symlink)
    }

    fn make_node(
        &mut self,
        parent: &ParentDir,
        base: &[u8],
        entry: &TarEntry,
        kind: FileType,
    ) -> Result<(), UnpackError> {
        let (major, minor) = entry.device;
        let (mode, device) = (Mode::from_raw_mode(entry.mode), rustix::fs::makedev(major, minor));
        self.replacing(parent, base, entry, || {
            rustix::fs::mknodat(parent, base, kind, mode, device)
        })?;
        file_attributes::set_by_name(parent, base, entry, false)
    }

    /// Creates something and removes an existing file of that name if necessary.
    fn replacing<T>(
        &mut self,
        parent: &ParentDir,
        base: &[u8],
        entry: &TarEntry,
        create: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, UnpackError> {
        let created = match create() {
            Err(Errno::EXIST) => {
                self.remove(parent, base, entry)?;
                create()
            }
            created => created,
        };
        created.map_err(|errno| entry.refused("create", errno))
    }

    fn remove_existing(
        &mut self,
        parent: &ParentDir,
        base: &[u8],
        entry: &TarEntry,
    ) -> Result<(), UnpackError> {
        match rustix::fs::statat(parent, base, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            Ok(stat) if entry.kind == TarEntryKind::Directory && is_directory_mode(stat.st_mode) => Ok(()),
            Ok(_) => self.remove(parent, base, entry),
            Err(errno) => Err(entry.refused("examine", errno)),
        }
    }

    fn remove(&mut self, parent: &ParentDir, base: &[u8], entry: &TarEntry) -> Result<(), UnpackError> {
        // Paths may have another target now, if this was a directory or a link to one.
        self.parents.forget();
        let result = remove(parent.as_fd(), base, self.cancel, |inode| {
            // Another hard link may still have the content; it is not searched for.
            self.lost |= self.files.remove(&inode).is_some();
        });
        result.map_err(|error| match error {
            RemoveError::Refused(errno) => entry.refused("replace", errno),
            RemoveError::Stopped(stopped) => stopped.into(),
        })
    }
}

fn make_whiteout(parent: &ParentDir, hidden: &[u8], entry: &TarEntry) -> Result<(), UnpackError> {
    let made = rustix::fs::mknodat(parent, hidden, FileType::CharacterDevice, Mode::empty(), 0);
    made.map_err(|errno| entry.refused("create the whiteout", errno))?;
    let stat = rustix::fs::statat(parent, hidden, AtFlags::SYMLINK_NOFOLLOW);
    let stat = stat.map_err(|errno| entry.refused("examine", errno))?;
    file_attributes::own_by_name(parent, hidden, entry, &stat)
}

fn is_directory(parent: &ParentDir, base: &[u8]) -> Result<bool, Errno> {
    let stat = rustix::fs::statat(parent, base, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(is_directory_mode(stat.st_mode))
}

fn is_directory_mode(mode: u32) -> bool {
    FileType::from_raw_mode(mode) == FileType::Directory
}
