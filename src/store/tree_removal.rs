//! Removes a directory tree of any shape, also from a full disk.
//!
//! A layer may nest directories deeper than a stack or a table of descriptors allows, on purpose. So nothing recurses:
//! the way back to a parent is `..`. At any time two directories are open, no symlink is followed, and every path has
//! one component. Nothing is renamed, because a directory that gets another name may need a block, which a full XFS
//! refuses.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Limits the names in memory, also in a tree of the greatest depth. Each time so many subdirectories are removed, their
/// parent is read again from its start.
const SUBDIRECTORIES_AT_ONCE: usize = 128;

/// A directory on the way to the one that is emptied.
struct Parent {
    identity: Identity,
    /// Subdirectories with contents; the last one is being emptied.
    pending: Vec<CString>,
}

type Identity = (u64, u64);

/// Removes `name` in `dir`, whatever it is; a missing name is not an error. Nothing else may move directories of the
/// tree meanwhile.
pub(super) fn remove_tree(dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    if is_removed(dir, name)? {
        return Ok(());
    }
    let (mut open, mut parents) = (open_dir(dir, name)?, Vec::<Parent>::new());
    loop {
        let pending = remove_entries(&open)?;
        if let Some(child) = pending.last() {
            let child = open_dir(open.as_fd(), child)?;
            let identity = identity(&open)?;
            parents.push(Parent { identity, pending });
            open = child;
            continue;
        }
        let Some(parent) = parents.last_mut() else {
            break;
        };
        open = open_dir(open.as_fd(), c"..")?;
        if identity(&open)? != parent.identity {
            return Err(Errno::STALE);
        }
        if let Some(empty) = parent.pending.pop() {
            remove_empty(open.as_fd(), &empty)?;
        }
        match parent.pending.last() {
            Some(next) => open = open_dir(open.as_fd(), next)?,
            None => drop(parents.pop()),
        }
    }
    remove_empty(dir, name)
}

/// Removes all entries but directories that have contents, and returns some of these.
fn remove_entries(dir: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut full = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        // Some file systems return no type.
        let may_be_file = entry.file_type() != FileType::Directory;
        if may_be_file && is_removed(dir.as_fd(), name)? {
            continue;
        }
        match remove_empty(dir.as_fd(), name) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => full.push(name.to_owned()),
            removed => removed?,
        }
        if full.len() == SUBDIRECTORIES_AT_ONCE {
            break;
        }
    }
    Ok(full)
}

/// Removes `name` unless it is a directory.
fn is_removed(dir: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        // Which of the two a directory returns depends on the file system.
        Err(Errno::ISDIR | Errno::PERM) => Ok(false),
        Err(error) => Err(error),
    }
}

fn remove_empty(dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

fn identity(dir: &OwnedFd) -> Result<Identity, Errno> {
    let stat = rustix::fs::fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn open_dir(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn removes_a_tree_deeper_than_any_stack_and_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let fd = OwnedFd::from(File::open(dir.path()).unwrap());
        fs::create_dir(dir.path().join("keep")).unwrap();
        fs::write(dir.path().join("keep/file"), b"x").unwrap();

        let deep = CString::new("deep").unwrap();
        rustix::fs::mkdirat(&fd, &deep, Mode::RWXU).unwrap();
        let mut at = open_dir(fd.as_fd(), &deep).unwrap();
        for level in 0..2_000 {
            rustix::fs::mkdirat(&at, c"d", Mode::RWXU).unwrap();
            rustix::fs::symlinkat(c"../keep", &at, c"link").unwrap();
            if level % 100 == 0 {
                rustix::fs::mkdirat(&at, c"empty", Mode::RWXU).unwrap();
            }
            at = open_dir(at.as_fd(), c"d").unwrap();
        }
        drop(at);
        remove_tree(fd.as_fd(), &deep).unwrap();
        remove_tree(fd.as_fd(), &deep).unwrap();
        let left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["keep"]);
        assert!(dir.path().join("keep/file").exists());
    }

    #[test]
    fn removes_more_subdirectories_than_are_kept_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let fd = OwnedFd::from(File::open(dir.path()).unwrap());
        for name in 0..SUBDIRECTORIES_AT_ONCE * 2 + 1 {
            let path = dir.path().join(format!("wide/{name}"));
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("file"), b"x").unwrap();
        }
        remove_tree(fd.as_fd(), c"wide").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
