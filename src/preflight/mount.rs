//! Finds the mount of a path, for messages: `/dev/sda4 (xfs at /var/lib/containers)`.

use std::fmt;
use std::path::{Path, PathBuf};

use sysinfo::{DiskRefreshKind, Disks};

use crate::report::Printable;

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The device, such as `/dev/sda4`, or the name that stands for it.
    pub name: String,
    /// Its type, such as `xfs`.
    pub file_system: String,
    /// Where it is mounted, as this process sees it.
    pub mount_point: PathBuf,
}

impl Mount {
    /// The mount of `path`, which is absolute and without symbolic links; `device` is its `st_dev`. None for kinds that
    /// sysinfo leaves out, such as tmpfs and NFS; only messages use it.
    pub(super) fn of(path: &Path, device: u64) -> Option<Self> {
        // Without sizes: reading them could hang on a dead mount, and statvfs on the path gives them.
        let disks = Disks::new_with_refreshed_list_specifics(DiskRefreshKind::nothing()).ok()?;
        let found = disks
            .iter()
            .filter(|disk| disk.id() == Some(device) && path.starts_with(disk.mount_point()))
            // Of two mounts on one directory, the last covers the other.
            .max_by_key(|disk| disk.mount_point().components().count())?;
        Some(Self {
            name: found.name().to_string_lossy().into_owned(),
            file_system: found.file_system().to_string_lossy().into_owned(),
            mount_point: found.mount_point().to_owned(),
        })
    }
}

impl fmt::Display for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mount_point = self.mount_point.to_string_lossy();
        write!(
            f,
            "{} ({} at {})",
            Printable(&self.name),
            Printable(&self.file_system),
            Printable(&mount_point)
        )
    }
}
