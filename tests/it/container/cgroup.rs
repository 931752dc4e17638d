//! Creates a control group for one program, as a container runtime does for the `resources` of a Job.
//!
//! Of either version: with 1 each controller has a hierarchy of its own, with 2 there is one for all.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const TOP: &str = "/sys/fs/cgroup";

/// In microseconds; the kernel's own default.
const PERIOD: u64 = 100_000;

/// Removed when dropped; all its processes must have ended.
pub(super) struct Cgroup {
    /// One for each controller, the same for all with version 2.
    memory: PathBuf,
    cpu: PathBuf,
    pids: PathBuf,
    is_v2: bool,
}

impl Cgroup {
    /// Without limits.
    ///
    /// # Errors
    /// Where there are no control groups, or none may be made.
    pub(super) fn new() -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("spoke-test-{}-{number}", std::process::id());
        let top = Path::new(TOP);
        let is_v2 = top.join("cgroup.controllers").exists();
        let dir = |controller| match is_v2 {
            true => top.join(&name),
            false => top.join(controller).join(&name),
        };
        let cgroup = Self {
            memory: dir("memory"),
            cpu: dir("cpu"),
            pids: dir("pids"),
            is_v2,
        };
        if is_v2 {
            write(&top.join("cgroup.subtree_control"), "+memory +cpu +pids")?;
        }
        for dir in [&cgroup.memory, &cgroup.cpu, &cgroup.pids] {
            fs::create_dir_all(dir).map_err(|error| format!("cannot make `{}`: {error}", dir.display()))?;
        }
        Ok(cgroup)
    }

    /// At most so many bytes of memory, the page cache among them, and no swap.
    pub(super) fn limit_memory(&self, bytes: u64) -> Result<(), String> {
        let name = self.either("memory.max", "memory.limit_in_bytes");
        write(&self.memory.join(name), &bytes.to_string())
    }

    /// As much processor time as `percent` of one CPU gives.
    pub(super) fn limit_cpu(&self, percent: u64) -> Result<(), String> {
        let quota = PERIOD * percent / 100;
        if self.is_v2 {
            return write(&self.cpu.join("cpu.max"), &format!("{quota} {PERIOD}"));
        }
        write(&self.cpu.join("cpu.cfs_period_us"), &PERIOD.to_string())?;
        write(&self.cpu.join("cpu.cfs_quota_us"), &quota.to_string())
    }

    /// At most so many threads.
    pub(super) fn limit_threads(&self, count: u64) -> Result<(), String> {
        write(&self.pids.join("pids.max"), &count.to_string())
    }

    /// The beginning of a command line: the program after it replaces the shell, and is in the group from its first
    /// instruction on.
    pub(super) fn wrapper(&self) -> Vec<String> {
        let mut dirs = [&self.memory, &self.cpu, &self.pids].map(|dir| dir.display().to_string());
        dirs.sort();
        let enter = r#"for dir in $1; do echo $$ >"$dir/cgroup.procs"; done; shift; exec "$@""#;
        ["sh", "-c", enter, "sh", &dirs.join(" ")]
            .map(str::to_owned)
            .into()
    }

    fn either(&self, of_version_2: &'static str, of_version_1: &'static str) -> &'static str {
        match self.is_v2 {
            true => of_version_2,
            false => of_version_1,
        }
    }

    /// The most bytes that were charged at once.
    pub(super) fn peak(&self) -> u64 {
        let name = self.either("memory.peak", "memory.max_usage_in_bytes");
        read(&self.memory.join(name)).trim().parse().unwrap_or(0)
    }

    /// Processes that the kernel killed for lack of memory.
    pub(super) fn kills(&self) -> u64 {
        let name = self.either("memory.events", "memory.oom_control");
        let text = read(&self.memory.join(name));
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.parse().ok()).unwrap_or(u64::MAX)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // One that is still in use stays, and the machine's next boot removes it; with version 2 they are all one.
        for dir in [&self.memory, &self.cpu, &self.pids] {
            let _ = fs::remove_dir(dir);
        }
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write `{}`: {error}", path.display()))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
