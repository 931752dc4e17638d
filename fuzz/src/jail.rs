//! A mount name space in which nothing can be written but the fuzzer's own directory and a fresh `/tmp`.
//!
//! A layer that got out of its directory would do so as root. Here it meets a read-only file system, and the error that
//! comes of it ends the fuzzer.

use std::ffi::CStr;
use std::io;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_remount};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Where libFuzzer keeps corpora and finds.
const FUZZ: &str = env!("CARGO_MANIFEST_DIR");

const TMPFS: &CStr = c"size=512m,mode=0700";

/// Goes in. For all threads, so it must be called while there is one.
pub fn enter() -> io::Result<()> {
    // SAFETY: libFuzzer has one thread when it initialises a target, and no descriptor of it is shared by this.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount_bind(FUZZ, FUZZ)?;
    mount("tmpfs", "/tmp", "tmpfs", MountFlags::empty(), TMPFS)?;
    mount("tmpfs", "/dev/shm", "tmpfs", MountFlags::RDONLY, TMPFS)?;
    mount_remount("/", MountFlags::BIND | MountFlags::RDONLY, "")?;
    // The directory of before the mount would still be writable nowhere.
    std::env::set_current_dir(FUZZ)
}
