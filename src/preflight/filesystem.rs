//! The space of a file system, as the kubelet counts it.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{Mount, Threshold};

/// Percent of the capacity: what a node writes in a few days of logs and images of its own.
const NEAR: u8 = 3;

/// The file system that holds a path, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// The path that was examined: the one in question, or the nearest of its ancestors that exists.
    pub path: PathBuf,
    /// The file system's `st_dev`.
    pub device: u64,
    /// `f_blocks * f_frsize`, in bytes.
    pub capacity: u64,
    /// `f_bavail * f_frsize`, in bytes: what is left without the blocks that are reserved for root, for so the kubelet
    /// counts, though root could have them.
    pub available: u64,
    /// The mount, when it is known.
    pub mount: Option<Mount>,
}

/// Why the space is not known.
#[derive(Debug, thiserror::Error)]
pub enum SpaceError {
    /// The path cannot be looked at.
    #[error("cannot read the free space of `{}`: {source}", path.display())]
    Unreadable {
        /// Which path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file system without a size, as pseudo file systems are.
    #[error("the file system of `{}` has no capacity: not a place for a store", .0.display())]
    NoCapacity(PathBuf),
}

impl Space {
    /// Reads the space of the file system that holds `path` or will hold it once it is created.
    pub fn of(path: &Path) -> Result<Self, SpaceError> {
        let unreadable = |path: &Path, source: io::Error| SpaceError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let absolute = std::path::absolute(path).map_err(|error| unreadable(path, error))?;
        let mut existing = absolute.as_path();
        let numbers = loop {
            match (rustix::fs::statvfs(existing), existing.parent()) {
                (Ok(numbers), _) => break numbers,
                (Err(Errno::NOENT), Some(parent)) => existing = parent,
                (Err(error), _) => return Err(unreadable(existing, error.into())),
            }
        };
        let device = rustix::fs::stat(existing)
            .map_err(|error| unreadable(existing, error.into()))?
            .st_dev;
        let capacity = numbers.f_blocks.saturating_mul(numbers.f_frsize);
        if capacity == 0 {
            return Err(SpaceError::NoCapacity(existing.to_owned()));
        }
        let real = existing
            .canonicalize()
            .map_err(|error| unreadable(existing, error))?;
        Ok(Self {
            path: existing.to_owned(),
            device,
            capacity,
            available: numbers.f_bavail.saturating_mul(numbers.f_frsize).min(capacity),
            mount: Mount::of(&real, device),
        })
    }

    /// Bytes that are used or kept back, as the kubelet counts.
    pub fn used(&self) -> u64 {
        self.capacity - self.available.min(self.capacity)
    }

    /// Bytes that can be filled before the kubelet begins to remove images.
    pub fn headroom(&self, threshold: Threshold) -> u64 {
        self.available.saturating_sub(threshold.reserve(self.capacity))
    }

    /// What to tell whoever left it like this, if the kubelet's line is near.
    pub fn nearness(&self, threshold: Threshold) -> Option<String> {
        let headroom = self.headroom(threshold);
        let is_near = u128::from(headroom) * 100 < u128::from(self.capacity) * u128::from(NEAR);
        (is_near && threshold.percent() < 100).then(|| {
            format!(
                "`{}` is {} % full, and from {threshold} % on the kubelet removes images that no container uses, these among \
                 them\nhint: free some space, or pin the images with `--pin`",
                self.path.display(),
                u128::from(self.used()) * 100 / u128::from(self.capacity.max(1)),
            )
        })
    }

    /// Whether both draw on the same blocks. Subvolumes of one btrfs differ in `st_dev` but not in the block device.
    pub fn shares_blocks_with(&self, other: &Self) -> bool {
        let block_device = |space: &Self| match &space.mount {
            Some(mount) if mount.name.starts_with('/') => Some(mount.name.clone()),
            _ => None,
        };
        self.device == other.device
            || block_device(self).is_some_and(|device| block_device(other) == Some(device))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_path_that_does_not_exist_yet_has_the_space_of_its_ancestor() {
        let directory = tempfile::tempdir().unwrap();
        let there = Space::of(directory.path()).unwrap();
        let to_come = Space::of(&directory.path().join("var/lib/containers/storage")).unwrap();
        assert_eq!(to_come.path, directory.path());
        assert_eq!((there.device, there.capacity), (to_come.device, to_come.capacity));
        assert!(there.shares_blocks_with(&to_come));
    }

    #[test]
    fn a_file_in_the_way_is_an_error_that_names_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let below = file.path().join("storage");
        let error = Space::of(&below).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "cannot read the free space of `{}`: Not a directory (os error 20)",
                below.display()
            )
        );
    }

    #[test]
    fn a_pseudo_file_system_is_refused() {
        let error = Space::of(Path::new("/proc/self")).unwrap_err();
        assert!(error.to_string().contains("has no capacity"), "{error}");
    }

    #[test]
    fn two_subvolumes_of_one_device_share_its_blocks_and_two_tmpfs_do_not() {
        let space = |device, name: &str| Space {
            path: "/".into(),
            device,
            capacity: 1,
            available: 1,
            mount: Some(Mount {
                name: name.into(),
                file_system: "any".into(),
                mount_point: "/".into(),
            }),
        };
        assert!(space(1, "/dev/sda4").shares_blocks_with(&space(2, "/dev/sda4")));
        assert!(!space(1, "/dev/sda4").shares_blocks_with(&space(2, "/dev/sda3")));
        assert!(!space(1, "tmpfs").shares_blocks_with(&space(2, "tmpfs")));
        assert!(space(1, "tmpfs").shares_blocks_with(&space(1, "tmpfs")));
    }
}
