//! Limits the rate at which a process and its children read from a block device, by a control group of either version.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

const TOP: &str = "/sys/fs/cgroup";

/// A control group. Removed when dropped; all its processes must have ended.
pub(crate) struct RateLimit(PathBuf);

impl RateLimit {
    /// At most so many bytes a second from the device; as fast as it is if there is no number.
    pub(crate) fn new((major, minor): (u32, u32), bytes_per_second: Option<u64>) -> anyhow::Result<Self> {
        let (top, name) = (Path::new(TOP), format!("spoke-bench-{}", std::process::id()));
        let is_v2 = top.join("cgroup.controllers").exists();
        if is_v2 {
            fs::write(top.join("cgroup.subtree_control"), "+io").context("enabling the controller `io`")?;
        }
        let dir = if is_v2 {
            top.join(name)
        } else {
            top.join("blkio").join(name)
        };
        fs::create_dir_all(&dir).with_context(|| format!("making `{}`", dir.display()))?;
        let limit = Self(dir);
        if let Some(rate) = bytes_per_second {
            let (file, line) = match is_v2 {
                true => ("io.max", format!("{major}:{minor} rbps={rate}")),
                false => (
                    "blkio.throttle.read_bps_device",
                    format!("{major}:{minor} {rate}"),
                ),
            };
            fs::write(limit.0.join(file), line).with_context(|| format!("writing to `{file}`"))?;
        }
        Ok(limit)
    }

    /// The file to which a process writes its number to enter.
    pub(crate) fn entrance(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for RateLimit {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            println!("cannot remove `{}`: {error}", self.0.display());
        }
    }
}
