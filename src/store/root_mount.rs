//! Renames between the directories of the store, in a private clone of the graph root's mount.
//!
//! containers/storage may have bind-mounted `overlay/` onto itself, and a rename between two mounts fails with EXDEV
//! although the file system is the same (`rename(2)`).

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

use super::error::{StoreError, io_error};
use super::layout::Layout;

/// Clones the mount of the graph root, without the mounts below it. No other process sees the clone.
pub(super) fn clone_mount(root: &Path) -> Result<OwnedFd, StoreError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match rustix::mount::open_tree(rustix::fs::CWD, root, flags) {
        Ok(clone) => Ok(clone),
        // Before Linux 5.2, or without CAP_SYS_ADMIN. If `overlay/` is mounted onto itself, the first rename fails.
        Err(error @ (Errno::NOSYS | Errno::PERM)) => {
            tracing::warn!(%error, "cannot clone the mount of the graph root, renaming in the existing mounts");
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(root, flags, Mode::empty()).map_err(io_error("open", root))
        }
        Err(error) => Err(io_error("clone the mount of", root)(error)),
    }
}

/// Renames within a clone of the graph root's mount.
pub(super) fn rename(
    layout: &Layout,
    root: &OwnedFd,
    from: &Path,
    to: &Path,
    action: &'static str,
) -> Result<(), StoreError> {
    rustix::fs::renameat(root, from, root, to).map_err(io_error(action, &layout.root().join(to)))
}
