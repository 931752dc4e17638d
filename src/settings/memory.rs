//! Reads how much memory this process may use: the limit of its cgroup or the memory of the host.

use std::fs;
use std::path::{Path, PathBuf};

/// The cgroup of this process; `0::/path` for version 2.
const OWN_CGROUP: &str = "/proc/self/cgroup";

/// Where cgroup version 2 is mounted.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// The limit of version 1, as a container sees its own.
const VERSION_1_LIMIT: &str = "/sys/fs/cgroup/memory/memory.limit_in_bytes";

/// The memory of the host.
const MEMORY: &str = "/proc/meminfo";

/// If nothing states an amount.
const UNKNOWN: u64 = 4 << 30;

/// The memory of this process's cgroup, or of the host if that is less, in bytes.
pub(super) fn usable_memory() -> u64 {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let host = read(Path::new(MEMORY)).and_then(|text| total(&text));
    let limits = limit_files(&read(Path::new(OWN_CGROUP)).unwrap_or_default());
    let limits = limits.iter().filter_map(|path| read(path)?.trim().parse().ok());
    host.into_iter().chain(limits).min().unwrap_or(UNKNOWN)
}

/// `MemTotal:       16384 kB`
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The files with the limits of the cgroup and of those above it. A container sees its own cgroup as the root.
fn limit_files(own: &str) -> Vec<PathBuf> {
    let root = Path::new(CGROUP_ROOT);
    let path = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or("");
    let groups = Path::new(path)
        .ancestors()
        .map(|group| root.join(group).join("memory.max"));
    groups.chain([PathBuf::from(VERSION_1_LIMIT)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cgroup_above_the_own_one_may_have_a_limit() {
        let files = limit_files("1:name=systemd:/x\n0::/a/b\n");
        let shown: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        let expected = [
            "/sys/fs/cgroup/a/b/memory.max",
            "/sys/fs/cgroup/a/memory.max",
            "/sys/fs/cgroup/memory.max",
            VERSION_1_LIMIT,
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_hosts_memory_is_in_kib() {
        assert_eq!(
            total("MemFree: 1 kB\nMemTotal:       16384 kB\n"),
            None.or(Some(16 << 20))
        );
        assert_eq!(total("MemTotal: many kB"), None);
        assert!(usable_memory() > 1 << 20);
    }
}
