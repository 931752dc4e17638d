//! Sets owner, mode, times and extended attributes of unpacked files. `chown` clears set-id bits and file
//! capabilities, so it is first.
//!
//! Attributes that an inode already has are not set again: most files of a layer belong to root and were created with
//! their mode.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, Gid, Mode, Stat, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::error::UnpackError;
use super::parent_directories::ParentDir;
use super::tar_reader::TarEntry;

/// The SELinux label belongs to the host: containers/storage never sets it (`pkg/archive`: `xattrsToIgnore`).
pub(in crate::store) const IGNORED_XATTR: &[u8] = b"security.selinux";

/// setuid and setgid, which a change of owner may clear (`chown(2)`).
const SET_ID: u32 = 0o6000;

/// The times of anything but a symbolic link.
pub(in crate::store) fn timestamps(entry: &TarEntry) -> Timestamps {
    Timestamps {
        last_access: entry.atime.settable(),
        last_modification: entry.mtime.settable(),
    }
}

/// Sets owner and mode of an open file or directory. `stat` has its present attributes. Times are set later, after
/// the last write.
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

/// Sets extended attributes of an open file or directory.
pub(super) fn set_xattrs_open(fd: impl AsFd, entry: &TarEntry) -> Result<(), UnpackError> {
    set_xattrs(entry, &fd, |name, value| {
        rustix::fs::fsetxattr(&fd, name, value, XattrFlags::empty())
    })
}

/// Sets all attributes of a file that is never opened: devices, FIFOs, symbolic links, and hard links to them.
pub(super) fn set_by_name(
    parent: &ParentDir,
    base: &[u8],
    entry: &TarEntry,
    is_symlink: bool,
) -> Result<(), UnpackError> {
    let stat = rustix::fs::statat(parent, base, AtFlags::SYMLINK_NOFOLLOW);
    let stat = stat.map_err(|errno| entry.refused("examine", errno))?;
    own_by_name(parent, base, entry, &stat)?;
    if !is_symlink {
        let result = rustix::fs::chmodat(parent, base, Mode::from_raw_mode(entry.mode), AtFlags::empty());
        result.map_err(|errno| entry.refused("change the mode", errno))?;
        set_times_by_name(parent, base, entry, &timestamps(entry))?;
    }
    set_xattrs_by_name(parent, base, entry)
}

/// Sets the owner of a name, if it differs.
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

/// Sets the times of a name, and not of its target.
pub(super) fn set_times_by_name(
    parent: &ParentDir,
    base: &[u8],
    entry: &TarEntry,
    times: &Timestamps,
) -> Result<(), UnpackError> {
    let result = rustix::fs::utimensat(parent, base, times, AtFlags::SYMLINK_NOFOLLOW);
    result.map_err(|errno| entry.refused("set the times", errno))
}

/// A call on a name in an open directory exists only since Linux 6.13 (`setxattrat(2)`). Before, the directory is
/// reached through `/proc`, and the last component is not followed.
fn set_xattrs_by_name(parent: &ParentDir, base: &[u8], entry: &TarEntry) -> Result<(), UnpackError> {
    let path = [proc_path(parent).as_bytes(), b"/", base].concat();
    set_xattrs(entry, parent, |name, value| {
        rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty())
    })
}

/// The path through which this process reaches an open descriptor.
pub(super) fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Sets extended attributes with `set`. `fd` is on the same file system.
fn set_xattrs(
    entry: &TarEntry,
    fd: impl AsFd,
    set: impl Fn(&[u8], &[u8]) -> Result<(), Errno>,
) -> Result<(), UnpackError> {
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| name != IGNORED_XATTR) {
        match set(name, value) {
            // The file system does not support them, or not this name space.
            Ok(()) | Err(Errno::NOTSUP) => {}
            Err(errno) => return Err(entry.refused_xattr(name, errno, fd)),
        }
    }
    Ok(())
}

/// The owner to set, if it differs. -1, which a hostile header may have, means no change to the kernel, as to
/// containers/storage.
fn owner_to_set(stat: &Stat, entry: &TarEntry) -> Option<(Option<Uid>, Option<Gid>)> {
    let differs = |now: u32, wanted: u32| Some(wanted).filter(|&id| id != now && id != u32::MAX);
    let uid = differs(stat.st_uid, entry.uid).map(Uid::from_raw);
    let gid = differs(stat.st_gid, entry.gid).map(Gid::from_raw);
    (uid.is_some() || gid.is_some()).then_some((uid, gid))
}
