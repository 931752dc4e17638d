//! Compares a layer's tree with the inodes that its tar requires, and finds files that the tar does not have.
//!
//! Not compared, because they differ between unpackings: times of whiteouts and of directories without an entry,
//! owner and time of the root, sizes of directories, the host's own labels.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, ResolveFlags, Stat, Timespec};
use rustix::io::Errno;

use super::damage::DamageList;
use super::expected_inode::ExpectedInode;
use super::expected_tree::ExpectedTree;
use crate::cancel::{Cancel, Stopped};
use crate::store::escaped_name::EscapedName;
use crate::store::unpack::{DIRECTORY, IGNORED_XATTR, OPAQUE_XATTR, open_in};

/// The longest list of names, and the largest value, that the kernel supports (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const XATTR_LIMIT: usize = 64 << 10;

/// Attributes that may exist although the tar has none: the kernel and tools of the host set them.
const HOSTS_OWN: [&[u8]; 5] = [
    IGNORED_XATTR,
    b"security.ima",
    b"security.evm",
    b"system.",
    // Access lists again: XFS lists them for root under its internal names too (`xfs_xattr.c`).
    b"trusted.SGI_ACL_",
];

/// Attributes of overlayfs itself; only opaqueness changes what a container sees.
const OVERLAYS_OWN: &[u8] = b"trusted.overlay.";

/// An access list; the kernel stores it in the mode if it is equivalent to one.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// The length of an access list that is equivalent to a mode: a version, then owner, group and others
/// (`posix_acl_xattr.h`).
const MODE_ONLY: usize = 4 + 3 * 8;

/// Times that every file system can store.
const SAFE_SECONDS: std::ops::RangeInclusive<i64> = i32::MIN as i64..=i32::MAX as i64;

/// Compares every inode below `diff`.
pub(super) fn compare(
    diff: &OwnedFd,
    expected: &ExpectedTree,
    found: &mut DamageList,
    cancel: &Cancel,
) -> Result<(), Stopped> {
    let mut buffers = Buffers::default();
    let mut pending = vec![(Vec::new(), expected.root)];
    while let Some((path, inode)) = pending.pop() {
        cancel.check()?;
        let opened = open_in(diff.as_fd(), &path, DIRECTORY, ResolveFlags::NO_SYMLINKS);
        let (items, directory) = match opened.and_then(|it| Ok((Dir::read_from(&it)?, it))) {
            Ok(opened) => opened,
            Err(errno) => {
                found.at(&path, format!("it cannot be opened: {errno}"));
                continue;
            }
        };
        for item in items {
            let item = match item {
                Ok(item) => item,
                Err(errno) => {
                    found.at(&path, format!("it cannot be listed: {errno}"));
                    break;
                }
            };
            let base = item.file_name().to_bytes();
            if matches!(base, b"." | b"..") {
                continue;
            }
            let inside = match path.is_empty() {
                true => base.to_vec(),
                false => [&path[..], b"/", base].concat(),
            };
            let stat = match rustix::fs::statat(&directory, base, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(errno) => {
                    found.at(&inside, format!("it cannot be examined: {errno}"));
                    continue;
                }
            };
            let kind = FileType::from_raw_mode(stat.st_mode);
            let known = expected.of(stat.st_ino);
            let known = known.filter(|_| kind == FileType::Directory || expected.has_name(inode, base));
            let Some(known) = known else {
                found.at(&inside, format!("the layer's tar has no such {}", word(kind)));
                continue;
            };
            let differences = differences(known, &stat, directory.as_fd(), base, &mut buffers);
            if !differences.is_empty() {
                found.at(&inside, differences.join(", "));
            }
            if (kind, known.kind) == (FileType::Directory, FileType::Directory) {
                pending.push((inside, stat.st_ino));
            }
        }
    }
    Ok(())
}

/// All differences of one inode.
fn differences(
    expected: &ExpectedInode,
    stat: &Stat,
    directory: BorrowedFd<'_>,
    base: &[u8],
    buffers: &mut Buffers,
) -> Vec<String> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != expected.kind {
        return vec![format!("it is a {}, not a {}", word(kind), word(expected.kind))];
    }
    let mut wrong = Vec::new();
    let has_list = expected.xattrs.iter().any(|(name, _)| name == ACCESS_LIST);
    // With an access list, the group's bits of the mode are its mask.
    let mask = expected.mode_mask & if has_list { !0o070 } else { !0 };
    if stat.st_mode & mask != expected.mode & mask {
        wrong.push(format!(
            "its mode is {:04o}, not {:04o}",
            stat.st_mode & 0o7777,
            expected.mode
        ));
    }
    let (uid, gid) = (
        expected.uid.unwrap_or(stat.st_uid),
        expected.gid.unwrap_or(stat.st_gid),
    );
    if (stat.st_uid, stat.st_gid) != (uid, gid) {
        wrong.push(format!(
            "its owner is {}:{}, not {uid}:{gid}",
            stat.st_uid, stat.st_gid
        ));
    }
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    if let Some(expected) = expected.size.filter(|expected| *expected != size) {
        wrong.push(format!("it has {size} bytes, not {expected}"));
    }
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    if let Some((major, minor)) = expected.device.filter(|expected| *expected != device) {
        wrong.push(format!(
            "it is device {}:{}, not {major}:{minor}",
            device.0, device.1
        ));
    }
    if let Some(target) = &expected.target {
        match rustix::fs::readlinkat(directory, base, Vec::new()) {
            Ok(found) if found.as_bytes() == &**target => {}
            Ok(found) => wrong.push(format!(
                "it leads to `{}`, not `{}`",
                EscapedName::new(found.as_bytes()),
                EscapedName::new(target)
            )),
            Err(errno) => wrong.push(format!("it cannot be read: {errno}")),
        }
    }
    // Through `/proc`, because a call on a name in a directory exists only since Linux 6.13 (`getxattrat(2)`).
    let path = [
        format!("/proc/self/fd/{}/", directory.as_raw_fd()).as_bytes(),
        base,
    ]
    .concat();
    xattr_differences(expected, &path, buffers, &mut wrong);
    // Last, because it changes with everything else.
    let mtime = Timespec {
        tv_sec: stat.st_mtime,
        tv_nsec: stat.st_mtime_nsec as _,
    };
    if let Some(expected) = expected.mtime.filter(|expected| !is_same_time(expected, &mtime)) {
        wrong.push(format!(
            "it was modified at {}.{:09}, not {}.{:09}",
            mtime.tv_sec, mtime.tv_nsec, expected.tv_sec, expected.tv_nsec
        ));
    }
    wrong
}

fn is_same_time(expected: &Timespec, found: &Timespec) -> bool {
    match expected.tv_sec == found.tv_sec {
        // Some file systems store whole seconds.
        true => found.tv_nsec == 0 || expected.tv_nsec == found.tv_nsec,
        // And some end in 2038.
        false => !SAFE_SECONDS.contains(&expected.tv_sec),
    }
}

struct Buffers {
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Default for Buffers {
    fn default() -> Self {
        let (names, value) = (vec![0; XATTR_LIMIT], vec![0; XATTR_LIMIT]);
        Self { names, value }
    }
}

fn xattr_differences(expected: &ExpectedInode, path: &[u8], buffers: &mut Buffers, wrong: &mut Vec<String>) {
    let Buffers { names, value } = buffers;
    let listed = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(length) => &names[..length],
        // A file system without any.
        Err(Errno::NOTSUP) => return,
        // XFS can store more names than it can list. Each can be read by its name.
        Err(Errno::TOOBIG) if length_of_names(expected) > XATTR_LIMIT => &[],
        Err(errno) => {
            wrong.push(format!("its extended attributes cannot be listed: {errno}"));
            return;
        }
    };
    for name in listed.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let is_expected = expected.xattrs.iter().any(|(known, _)| known == name);
        let is_hosts = HOSTS_OWN.iter().any(|own| name.starts_with(own))
            || name.starts_with(OVERLAYS_OWN) && name != OPAQUE_XATTR.0.as_bytes();
        if !is_expected && !is_hosts {
            wrong.push(format!(
                "it has an extended attribute `{}`",
                EscapedName::new(name)
            ));
        }
    }
    for (name, expected_value) in expected.xattrs.iter().filter(|(name, _)| name != IGNORED_XATTR) {
        let shown = EscapedName::new(name);
        match rustix::fs::lgetxattr(path, &name[..], &mut value[..]) {
            Ok(length) if value[..length] == expected_value[..] => {}
            Ok(_) => wrong.push(format!("its extended attribute `{shown}` has another value")),
            Err(Errno::NOTSUP) => {}
            // Podman 4.3 omits attributes without a value; the kernel omits those that are equivalent to the mode.
            Err(Errno::NODATA) if expected_value.is_empty() => {}
            Err(Errno::NODATA) if name == ACCESS_LIST && expected_value.len() <= MODE_ONLY => {}
            Err(Errno::NODATA) if expected.loose_capability && name == b"security.capability" => {}
            Err(Errno::NODATA) => wrong.push(format!("its extended attribute `{shown}` is missing")),
            Err(errno) => wrong.push(format!(
                "its extended attribute `{shown}` cannot be read: {errno}"
            )),
        }
    }
}

/// The length of a list of the expected names.
fn length_of_names(expected: &ExpectedInode) -> usize {
    expected.xattrs.iter().map(|(name, _)| name.len() + 1).sum()
}

fn word(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::Unknown => "file of an unknown type",
    }
}
