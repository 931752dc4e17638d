//! Provides a block device whose power can fail at any moment.
//!
//! ```text
//! below TMPDIR:  outer.img, a sparse file
//!   outer/       XFS with reflinks, in outer.img
//!     medium     a file that is the disk of the node
//!     0, 1, …    clones of it (FICLONE): the disk as it was when the power failed
//!   inner/       XFS in medium: where the node lives
//!   lost/        XFS in a clone, whose log is replayed when it is mounted
//! ```
//!
//! The kernel's loop driver writes to `medium` what the inner file system gives to its device. A clone is atomic, XFS
//! holds up writers meanwhile; it has what had reached the device and nothing of what was still in the inner file
//! system's page cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

/// XFS wants 300 MB at least.
const SIZE: u64 = 512 << 20;
/// Sparse: clones share what they have in common.
const OUTER: u64 = 16 << 30;

/// The disk, and what is needed to lose power.
pub(crate) struct Medium {
    inner: Mount,
    outer: Mount,
    clones: AtomicU32,
    _dir: TempDir,
}

/// The disk as it was at one instant. Removed when dropped.
pub(crate) struct Loss(PathBuf);

impl Medium {
    /// A new and empty disk, mounted.
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("spoke-power-").tempdir();
        let dir = dir.expect("a temporary directory");
        let image = dir.path().join("outer.img");
        format(&image, OUTER);
        let outer = Mount::of(&image, dir.path().join("outer"), "loop");
        let medium = outer.0.join("medium");
        format(&medium, SIZE);
        let inner = Mount::of(&medium, dir.path().join("inner"), "loop");
        Self {
            inner,
            outer,
            clones: AtomicU32::new(0),
            _dir: dir,
        }
    }

    /// Where the disk is mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.inner.0
    }

    /// The disk as a power failure at this instant leaves it.
    pub(crate) fn lose_power(&self) -> Loss {
        let number = self.clones.fetch_add(1, Ordering::Relaxed);
        let path = self.outer.0.join(number.to_string());
        let (from, to) = (File::open(self.outer.0.join("medium")), File::create(&path));
        let cloned = rustix::fs::ioctl_ficlone(to.expect("a new file"), from.expect("the disk's file"));
        cloned.expect("XFS clones files");
        Loss(path)
    }
}

impl Loss {
    /// Mounts it below `parent`, as the node does when the power is back.
    pub(crate) fn mount(&self, parent: &Path) -> Mount {
        // Its UUID is that of the disk which is mounted still.
        Mount::of(&self.0, parent.join("lost"), "loop,nouuid")
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        // Goes with the disk otherwise.
        let _ = fs::remove_file(&self.0);
    }
}

/// A mounted file system. Unmounted when dropped, which frees its loop device too.
pub(crate) struct Mount(pub(crate) PathBuf);

impl Mount {
    fn of(image: &Path, point: PathBuf, options: &str) -> Self {
        fs::create_dir_all(&point).expect("a directory to mount on");
        call(
            Command::new("mount")
                .args(["-t", "xfs", "-o", options])
                .args([image, &point]),
        );
        Self(point)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // What was mounted below by a test that failed goes with it.
        let detach = rustix::mount::UnmountFlags::DETACH;
        let plain = rustix::mount::UnmountFlags::empty();
        if rustix::mount::unmount(&self.0, plain).is_err() {
            let _ = rustix::mount::unmount(&self.0, detach);
        }
    }
}

fn format(image: &Path, size: u64) {
    let file = File::create(image).expect("a new file");
    file.set_len(size).expect("a sparse file");
    call(
        Command::new("mkfs.xfs")
            .args(["-q", "-m", "reflink=1"])
            .arg(image),
    );
}

fn call(command: &mut Command) {
    let output = command
        .stdin(Stdio::null())
        .output()
        .expect("a program that `needs!` found");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}
