//! Reads the capacity and the available space of a file system, as the kubelet counts them.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{Mount, Threshold};

/// Percent of the capacity. A node's own logs and images take about as much in a few days, so with less headroom the threshold
/// counts as near.
const NEAR: u8 = 3;

/// The file system of a path, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// The given path, or its nearest ancestor that exists.
    pub path: PathBuf,
    /// The file system's `st_dev`.
    pub device: u64,
    /// `f_blocks * f_frsize`, in bytes.
    pub capacity: u64,
    /// `f_bavail * f_frsize`, in bytes: without the blocks that are reserved for root, as the kubelet counts.
    pub available: u64,
    /// The mount, if it is known.
    pub mount: Option<Mount>,
}

/// Why the space is unknown.
#[derive(Debug, thiserror::Error)]
pub enum FilesystemError {
    /// The path cannot be read.
    #[error("cannot read the free space of `{}`: {source}", path.display())]
    Unreadable {
        /// Which path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file system without a size, as pseudo file systems are.
    #[error("the file system of `{}` has no capacity\nhint: a pseudo file system cannot contain a store or a spool", .0.display())]
    NoCapacity(PathBuf),
}

impl Space {
    /// Reads the space of the file system of `path`, which need not exist yet.
    pub fn of(path: &Path) -> Result<Self, FilesystemError> {
        let unreadable = |path: &Path, source: io::Error| FilesystemError::Unreadable {
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
            return Err(FilesystemError::NoCapacity(existing.to_owned()));
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

    /// Bytes that are used or reserved, as the kubelet counts.
    pub fn used(&self) -> u64 {
        self.capacity - self.available.min(self.capacity)
    }

    /// The same in percent of the capacity.
    pub fn used_percent(&self) -> u64 {
        let percent = u128::from(self.used()) * 100 / u128::from(self.capacity.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }

    /// Bytes that can be filled before the kubelet starts to remove images.
    pub fn headroom(&self, threshold: Threshold) -> u64 {
        self.available.saturating_sub(threshold.reserve(self.capacity))
    }

    /// A warning if the threshold is near.
    pub fn threshold_warning(&self, threshold: Threshold) -> Option<String> {
        let headroom = self.headroom(threshold);
        let is_near = u128::from(headroom) * 100 < u128::from(self.capacity) * u128::from(NEAR);
        (is_near && threshold.percent() < 100).then(|| {
            format!(
                "`{}` is {} % full; from {threshold} % on the kubelet removes images that no container uses, and the cached \
                 images are such images\nhint: free some space, or pin the images with `--pin`",
                self.path.display(),
                self.used_percent(),
            )
        })
    }

    /// Whether both have the same blocks. Subvolumes of one btrfs differ in `st_dev` but not in the block device.
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
        let existing = Space::of(directory.path()).unwrap();
        let missing = Space::of(&directory.path().join("var/lib/containers/storage")).unwrap();
        assert_eq!(missing.path, directory.path());
        assert_eq!(
            (existing.device, existing.capacity),
            (missing.device, missing.capacity)
        );
        assert!(existing.shares_blocks_with(&missing));
    }

    #[test]
    fn a_path_below_a_file_is_an_error_with_the_path() {
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
