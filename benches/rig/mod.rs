//! Provides what benchmarks of whole programs share: a registry to pull from, a disk to pull to, and the program's memory and
//! CPU time.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::image::release::{COMPONENTS, RELEASE, Release};
use crate::registry::Registry;
use crate::stock::docker_registry::DockerRegistry;
use crate::test_node::TestNode;

/// The size of the file system that holds a store. Its file is sparse.
const DISK: u64 = 16 << 30;
/// The unit of the kernel's block counters, independent of the device.
const SECTOR: u64 = 512;
/// The interval of memory samples. One sample costs 2 ms of CPU time with a hundred processes on the machine.
pub(crate) const SAMPLING: Duration = Duration::from_millis(50);

/// Copies the release from a registry in this process.
pub(crate) fn fill(registry: &DockerRegistry, release: &Release) {
    let source = Registry::start();
    source.push_release(release);
    let world = TestNode::trusting(&[source.host(), registry.host()]);
    let copy = |from: String, to: String| {
        let (from, to) = (
            format!("docker://{}/{from}", source.host()),
            format!("docker://{}/{to}", registry.host()),
        );
        world.skopeo(&["copy", "--quiet", &from, &to]).ok();
    };
    copy(format!("{RELEASE}:4.99.0"), format!("{RELEASE}:4.99.0"));
    for (name, image) in &release.components {
        copy(
            format!("{COMPONENTS}@{}", image.digest()),
            format!("{COMPONENTS}:{name}"),
        );
    }
}

/// Waits for the leader of a process group, and returns the peak memory of the group and the CPU time.
pub(crate) fn watch(child: Child) -> anyhow::Result<(f64, f64)> {
    let group = child.id();
    let mut most = 0;
    loop {
        let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
        // SAFETY: both pointers are to live values of the right types. No other thread waits for this child.
        let ended = unsafe {
            libc::wait4(
                group.cast_signed(),
                &mut status,
                libc::WNOHANG,
                usage.as_mut_ptr(),
            )
        };
        ensure!(ended >= 0, "wait4: {}", std::io::Error::last_os_error());
        if ended > 0 {
            ensure!(status == 0, "it failed: wait status {status}");
            // SAFETY: all zeros is a valid `rusage`, and the kernel has filled it.
            let usage = unsafe { usage.assume_init() };
            let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
            let cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime);
            return Ok((most as f64 / f64::from(1 << 20), cpu));
        }
        most = most.max(resident(group)?);
        std::thread::sleep(SAMPLING);
    }
}

/// The resident bytes of all processes in `group`. Shared pages count once per process.
fn resident(group: u32) -> anyhow::Result<usize> {
    let mut pages = 0;
    for process in fs::read_dir("/proc")? {
        // Most entries are not processes, and any process may have ended meanwhile.
        let Ok(stat) = fs::read_to_string(process?.path().join("stat")) else {
            continue;
        };
        // proc_pid_stat(5): the second field is a name in parentheses that may contain blanks, the fifth the group, the 24th the
        // resident pages.
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        if fields.get(2).and_then(|field| field.parse().ok()) == Some(group) {
            pages += fields
                .get(21)
                .and_then(|field| field.parse::<usize>().ok())
                .unwrap_or(0);
        }
    }
    Ok(pages * rustix::param::page_size())
}

/// Seconds of user and system time of this process so far.
pub(crate) fn cpu_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a live value of the right type, of which all zeros is a valid one.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The file system of a node during a measurement. Unmounted and removed when dropped.
pub(crate) struct Disk {
    dir: TempDir,
    image: Option<tempfile::NamedTempFile>,
}

impl Disk {
    /// A new XFS, as on nodes, in a file below `TMPDIR`. The loop device uses direct I/O: with the page cache a kernel thread
    /// copies every byte once more on the measured cores, and writes 0.4 GB/s to a disk that takes 2 GB/s.
    pub(crate) fn xfs() -> anyhow::Result<Self> {
        let (file, dir) = (tempfile::NamedTempFile::new()?, tempfile::tempdir()?);
        file.as_file().set_len(DISK)?;
        call(Command::new("mkfs.xfs").arg("-q").arg(file.path()))?;
        let attach = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on"])
            .arg(file.path())
            .output()
            .context("losetup")?;
        ensure!(
            attach.status.success(),
            "losetup: {}",
            attach.stderr.escape_ascii()
        );
        let device = String::from_utf8(attach.stdout)?;
        let mounted = call(Command::new("mount").arg(device.trim_end()).arg(dir.path()));
        // The device disappears with its last user, the mount.
        call(Command::new("losetup").arg("--detach").arg(device.trim_end()))?;
        mounted?;
        let image = Some(file);
        Ok(Self { dir, image })
    }

    /// A directory on the file system of `TMPDIR`.
    pub(crate) fn plain() -> anyhow::Result<Self> {
        let (dir, image) = (tempfile::tempdir()?, None);
        Ok(Self { dir, image })
    }

    /// Bytes written to its block device so far.
    pub(crate) fn written(&self) -> anyhow::Result<u64> {
        let device = rustix::fs::stat(self.path())?.st_dev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"))?;
        let sectors = stat.split_whitespace().nth(6).context("no counter of sectors")?;
        Ok(sectors.parse::<u64>()? * SECTOR)
    }

    /// Its mount point.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.image.is_some()
            && let Err(error) = call(Command::new("umount").arg(self.dir.path()))
        {
            println!("{error:#}");
        }
    }
}

fn call(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
