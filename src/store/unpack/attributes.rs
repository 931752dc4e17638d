//! Owner, mode, times and extended attributes, in the order in which none undoes another: `chown` clears setuid
//! bits and file capabilities, so it comes first.
//!
//! What the system says an inode already has is not set again: most files of a layer belong to root, and were
//! created with their mode.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, Gid, Mode, Stat, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::error::UnpackError;
use super::parent_directories::ParentDir;
use super::tar_reader::TarEntry;

/// Belongs to the host: containers/storage never sets it (`pkg/archive`: `xattrsToIgnore`).
pub(in crate::store) const IGNORED_XATTR: &[u8] = b"security.selinux";

/// setuid and setgid, which a change of owner may clear.
const SET_ID: u32 = 0o6000;

/// The times of anything but a symbolic link.
pub(in crate::store) fn timestamps(entry: &TarEntry) -> Timestamps {
    Timestamps {
        last_access: entry.atime.settable(),
        last_modification: entry.mtime.settable(),
    }
}

/// For an open file or directory. `stat` tells what it has now. Times come separately, after the last write.
pub(super) fn own_open(fd: impl AsFd, stat: &Stat, entry: &TarEntry) -> Result<(), UnpackError> {
    let owner = owner_to_set(stat, entry);
    if let Some((uid, gid)) = owner {
        let result = rustix::fs::fchown(&fd, uid, gid);
        result.map_err(|errno| entry.refused("change the owner", errno))?;
    }
    if stat.st_mode & 0o7777 != entry.mode || owner.is_some() && entry.mode & SET_ID != 0 {
        let result = rustix::fs::fchmod(&fd, Mode::from_raw_mode(entry.mode));
        result.map_err(|errno| entry.refused("change the mode", errno))?;
    }
    Ok(())
}

/// For an open file or directory.
pub(super) fn set_xattrs_open(fd: impl AsFd, entry: &TarEntry) -> Result<(), UnpackError> {
    set_xattrs(entry, &fd, |name, value| {
        rustix::fs::fsetxattr(&fd, name, value, XattrFlags::empty())
    })
}

/// For what is never opened: devices, FIFOs, symbolic links, and hard links to any of them.
pub(super) fn set_by_name(
    parent: &ParentDir,
    base: &[u8],
    entry: &TarEntry,
    is_symlink: bool,
) -> Result<(), UnpackError> {
    let stat = rustix::fs::statat(parent, base, AtFlags::SYMLINK_NOFOLLOW);
    let stat = stat.map_err(|errno| entry.refused("look at", errno))?;
    own_by_name(parent, base, entry, &stat)?;
    if !is_symlink {
        let result = rustix::fs::chmodat(parent, base, Mode::from_raw_mode(entry.mode), AtFlags::empty());
        result.map_err(|errno| entry.refused("change the mode", errno))?;
        set_times_by_name(parent, base, entry, &timestamps(entry))?;
    }
    set_xattrs_by_name(parent, base, entry)
}

/// Changes the owner of a name, where it is another.
pub(super) fn own_by_name(
    parent: &ParentDir,
    base: &[u8],
    entry: &TarEntry,
    stat: &Stat,
) -> Result<(), UnpackError> {
    let Some((uid, gid)) = owner_to_set(stat, entry) else {
        return Ok(());
    };
    let result = rustix::fs::chownat(parent, base, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
    result.map_err(|errno| entry.refused("change the owner", errno))
}

/// Sets the times of a name, and not of what it may point to.
pub(super) fn set_times_by_name(
    parent: &ParentDir,
    base: &[u8],
    entry: &TarEntry,
    times: &Timestamps,
) -> Result<(), UnpackError> {
    let result = rustix::fs::utimensat(parent, base, times, AtFlags::SYMLINK_NOFOLLOW);
    result.map_err(|errno| entry.refused("set the times", errno))
}

/// A call on a name in an open directory exists since Linux 6.13 only; before, the directory is reached through
/// `/proc`, and the last component is not followed.
fn set_xattrs_by_name(parent: &ParentDir, base: &[u8], entry: &TarEntry) -> Result<(), UnpackError> {
    let path = [proc_path(parent).as_bytes(), b"/", base].concat();
    set_xattrs(entry, parent, |name, value| {
        rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty())
    })
}

/// The path by which this process reaches what a descriptor is open on.
pub(super) fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// `place` is on the same file system.
fn set_xattrs(
    entry: &TarEntry,
    place: impl AsFd,
    set: impl Fn(&[u8], &[u8]) -> Result<(), Errno>,
) -> Result<(), UnpackError> {
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| name != IGNORED_XATTR) {
        match set(name, value) {
            // The file system has none, or not this name space.
            Ok(()) | Err(Errno::NOTSUP) => {}
            Err(errno) => return Err(entry.refused_xattr(name, errno, place)),
        }
    }
    Ok(())
}

/// Only what differs is set. -1, which a hostile header may have, means to the kernel what it means to
/// containers/storage: no change.
fn owner_to_set(stat: &Stat, entry: &TarEntry) -> Option<(Option<Uid>, Option<Gid>)> {
    let differs = |now: u32, wanted: u32| Some(wanted).filter(|&id| id != now && id != u32::MAX);
    let uid = differs(stat.st_uid, entry.uid).map(Uid::from_raw);
    let gid = differs(stat.st_gid, entry.gid).map(Gid::from_raw);
    (uid.is_some() || gid.is_some()).then_some((uid, gid))
}
