//! Removes a directory tree of any shape.
//!
//! A layer may nest directories deeper than a stack or a table of descriptors allows, on purpose. So nothing
//! recurses: each subdirectory is first moved next to its parent under a new name and then removed in the same way.
//! At any time two directories are open, no symlink is followed, and every path has one component.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Removes `name` in `dir`, whatever it is; a missing name is not an error. `dir` receives temporary names that begin
/// with `name`.
pub(super) fn remove_tree(dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // Which of the two a directory returns depends on the file system.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    let mut pending = vec![name.to_owned()];
    while let Some(next) = pending.pop() {
        let opened = open_dir(dir, &next)?;
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let child = entry.file_name();
            if child == c"." || child == c".." {
                continue;
            }
            if entry.file_type() != FileType::Directory {
                match rustix::fs::unlinkat(opened.as_fd(), child, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => continue,
                    // The file system returned no type in its listing.
                    Err(Errno::ISDIR | Errno::PERM) => {}
                    Err(error) => return Err(error),
                }
            }
            // An empty directory needs no move.
            match rustix::fs::unlinkat(opened.as_fd(), child, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            // Random, because a killed removal leaves such names too.
            let mut fresh = name.to_bytes().to_vec();
            fresh.extend_from_slice(format!(".{:016x}", rand::random::<u64>()).as_bytes());
            let fresh = CString::new(fresh).map_err(|_| Errno::INVAL)?;
            rustix::fs::renameat(opened.as_fd(), child, dir, &fresh)?;
            pending.push(fresh);
        }
        match rustix::fs::unlinkat(dir, &next, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
    fn leftovers_of_a_killed_removal_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let fd = OwnedFd::from(File::open(dir.path()).unwrap());
        for rest in ["tree/a/b", "tree.1/c"] {
            fs::create_dir_all(dir.path().join(rest)).unwrap();
        }
        remove_tree(fd.as_fd(), c"tree").unwrap();
        remove_tree(fd.as_fd(), c"tree.1").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
