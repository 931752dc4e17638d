//! Removes the file or tree that a later entry replaces, without following links and without recursion.
//!
//! One directory is open at a time. Downwards, a child is opened by name without following links. Upwards, `..` is
//! the directory it was reached from, because no other process works in a layer that is being unpacked. A hostile
//! tree may be so deep that each step takes the kernel a millisecond, so each step checks for a stop.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::parent_directories::DIRECTORY;
use crate::cancel::{Cancel, Stopped};

/// Why a removal failed.
#[derive(Debug)]
pub(super) enum RemoveError {
    Refused(Errno),
    Stopped(Stopped),
}

impl From<Errno> for RemoveError {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

/// Removes `name` in `parent`, and passes the inode number of every removed file that is not a directory to
/// `removed`.
pub(super) fn remove(
    parent: BorrowedFd<'_>,
    name: &[u8],
    cancel: &Cancel,
    mut removed: impl FnMut(u64),
) -> Result<(), RemoveError> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        removed(stat.st_ino);
        return Ok(rustix::fs::unlinkat(parent, name, AtFlags::empty())?);
    }
    let open = |parent: BorrowedFd<'_>, name: &[u8]| -> Result<OwnedFd, Errno> {
        rustix::fs::openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
    };
    let mut directory = open(parent, name)?;
    let (mut depth, mut empty) = (0_u64, None);
    loop {
        cancel.check().map_err(RemoveError::Stopped)?;
        match clear(directory.as_fd(), empty.take(), &mut removed)? {
            Some(child) => {
                directory = open(directory.as_fd(), child.as_bytes())?;
                depth += 1;
            }
            None if depth == 0 => break,
            None => {
                empty = Some(rustix::fs::fstat(&directory)?.st_ino);
                directory = open(directory.as_fd(), b"..")?;
                depth -= 1;
            }
        }
    }
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Removes everything but directories, and the child directory with the inode `empty`. Returns a child directory that
/// has to be emptied first, or `None` when nothing is left.
fn clear(
    directory: BorrowedFd<'_>,
    mut empty: Option<u64>,
    removed: &mut impl FnMut(u64),
) -> Result<Option<CString>, Errno> {
    loop {
        let mut found = false;
        // Reads the directory again each time, because a listing may skip entries during removals.
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            found = true;
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    FileType::from_raw_mode(stat.st_mode)
                }
                kind => kind,
            };
            if kind != FileType::Directory {
                removed(entry.ino());
                rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
                continue;
            }
            if empty.take_if(|inode| *inode == entry.ino()).is_none() {
                return Ok(Some(name.to_owned()));
            }
            rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?;
        }
        if !found {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::symlink;

    use super::*;

    fn open(path: &std::path::Path) -> OwnedFd {
        rustix::fs::open(path, DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn a_tree_is_removed_and_targets_of_its_links_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("sentinel"), "here").unwrap();
        symlink("../outside", tree.join("link")).unwrap();
        symlink(&outside, tree.join("a/link")).unwrap();
        for name in 0..3000 {
            fs::write(tree.join("a").join(name.to_string()), "").unwrap();
        }
        let mut count = 0;
        remove(open(dir.path()).as_fd(), b"tree", &Cancel::default(), |_| {
            count += 1
        })
        .unwrap();
        assert_eq!(count, 3002);
        assert!(!tree.exists());
        assert!(outside.join("sentinel").exists());
    }

    #[test]
    fn a_deep_tree_needs_no_stack() {
        const DEPTH: usize = 4000;
        let dir = tempfile::tempdir().unwrap();
        let root = open(dir.path());
        let mut deepest = root.try_clone().unwrap();
        for _ in 0..DEPTH {
            rustix::fs::mkdirat(&deepest, "d", Mode::RWXU).unwrap();
            deepest = rustix::fs::openat(&deepest, "d", DIRECTORY, Mode::empty()).unwrap();
        }
        remove(root.as_fd(), b"d", &Cancel::default(), |_| ()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
