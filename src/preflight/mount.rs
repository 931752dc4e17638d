//! Which mount holds a path, for messages: `/dev/sda4 (xfs at /var/lib/containers)` says more than the path.

use std::fmt;
use std::path::{Path, PathBuf};

use sysinfo::{DiskRefreshKind, Disks};

use crate::report::Printable;

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The device, such as `/dev/sda4`, or what stands for it.
    pub name: String,
    /// Its type, such as `xfs`.
    pub file_system: String,
    /// Where it is mounted, as this process sees it.
    pub mount_point: PathBuf,
}

impl Mount {
    /// The mount that `path`, absolute and without symbolic links, lies on; `device` is its `st_dev`. None when the
    /// mount is of a kind that sysinfo leaves out, such as tmpfs and NFS: a message is poorer then, no number wrong.
    pub(super) fn of(path: &Path, device: u64) -> Option<Self> {
        // Sizes come from statvfs on the path itself; asking each mount for its own could hang on a dead one.
        let disks = Disks::new_with_refreshed_list_specifics(DiskRefreshKind::nothing()).ok()?;
        let holding = disks
            .iter()
            .filter(|disk| disk.id() == Some(device) && path.starts_with(disk.mount_point()))
            // Of two mounts on one directory, the last covers the other.
            .max_by_key(|disk| disk.mount_point().components().count())?;
        Some(Self {
            name: holding.name().to_string_lossy().into_owned(),
            file_system: holding.file_system().to_string_lossy().into_owned(),
            mount_point: holding.mount_point().to_owned(),
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
