//! Makes the pod of TALM's Job (talm-contract.md 1): the image's root, read-only, and the mounts of its template.
//!
//! ```text
//! /                     the image, read-only
//! /host                 an emptyDir, and single host paths below it
//!   rw  run  tmp  var/lib/containers  var/tmp
//!   ro  etc/containers  etc/pki/ca-trust  etc/resolv.conf  lib64  proc  usr/{bin,lib,lib64,libexec,share/containers}
//!       var/lib/cni  var/lib/kubelet  sys/fs/cgroup
//! /etc/config           the ConfigMap, read-only, with its ..data
//! /etc/resolv.conf      of the pod's network, where no server answers
//! /dev/termination-log  a file of the kubelet
//! ```
//!
//! The product is process 1 of a PID namespace, without capabilities taken away, as a privileged pod has it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::image_build::Built;
use crate::link::Namespace;
use crate::test_node::TestNode;

/// Arguments: the image's root, the node's root, the ConfigMap, the pod's resolv.conf, the termination log, the command.
const ENTER: &str = r#"
set -e
root=$1 node=$2 config=$3 resolv=$4 log=$5; shift 5
mount --bind "$root" "$root"
mount -t tmpfs tmpfs "$root/host"
host() {
  mkdir -p "$root/host/$2"
  mount --rbind "$1" "$root/host/$2"
  [ "$3" = rw ] || mount -o remount,bind,ro "$root/host/$2"
}
for dir in run tmp var/lib/containers var/tmp; do host "$node/$dir" $dir rw; done
for dir in etc/containers etc/pki/ca-trust lib64 usr/bin usr/lib usr/lib64 usr/libexec usr/share/containers \
    var/lib/cni var/lib/kubelet sys/fs/cgroup; do host "$node/$dir" $dir ro; done
host /proc proc ro
: >"$root/host/etc/resolv.conf"
mount --bind "$node/etc/resolv.conf" "$root/host/etc/resolv.conf"
mount -o remount,bind,ro "$root/host/etc/resolv.conf"
mount --bind "$config" "$root/etc/config"
mount -o remount,bind,ro "$root/etc/config"
mount --bind "$resolv" "$root/etc/resolv.conf"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev"
device() { mknod -m 0666 "$root/dev/$1" c 1 "$2"; }
# As every runtime makes them (runtime-spec, "Default Devices").
device null 3; device zero 5; device full 7; device random 8; device urandom 9
: >"$root/dev/termination-log"
mount --bind "$log" "$root/dev/termination-log"
mount -o remount,bind,ro "$root"
exec chroot "$root" "$@"
"#;

/// Paths of the node that the Job mounts and that a [`TestNode`] has not.
const OF_NODE: [&str; 13] = [
    "run",
    "tmp",
    "var/tmp",
    "etc/pki/ca-trust",
    "lib64",
    "usr/bin",
    "usr/lib",
    "usr/lib64",
    "usr/libexec",
    "usr/share/containers",
    "var/lib/cni",
    "var/lib/kubelet",
    "sys/fs/cgroup",
];

/// No run of a test takes this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// The image's root as a runtime has made it ready.
pub(super) struct PodImage {
    dir: TempDir,
}

impl PodImage {
    pub(super) fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("spoke-pod-")
            .tempdir()
            .expect("a temporary directory");
        let image = Self { dir };
        Built::new().unpack_to_start(&image.root());
        for mount_point in ["host", "etc/config", "proc", "dev"] {
            fs::create_dir_all(image.root().join(mount_point)).expect("a mount point");
        }
        fs::write(image.root().join("etc/resolv.conf"), "").expect("a mount point");
        image
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Starts TALM's command on the node. `pod_resolv` is the text of the pod's resolv.conf.
    pub(super) fn start(&self, world: &TestNode, namespace: &Namespace, pod_resolv: &str) -> Pod {
        for path in OF_NODE {
            fs::create_dir_all(world.host().join(path)).expect("a directory of the node");
        }
        let out = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| out.path().join(name);
        fs::write(path("resolv.conf"), pod_resolv).expect("writing");
        fs::write(path("termination-log"), "").expect("writing");
        let stderr = fs::File::create(path("stderr")).expect("a file for output");
        let config = world.host().with_file_name("config");
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--propagation",
                "private",
                "--pid",
                "--fork",
                "--kill-child",
            ])
            .args(["sh", "-c", ENTER, "sh"])
            .args([self.root(), world.host(), config])
            .args([path("resolv.conf"), path("termination-log")])
            .args(["/bin/bash", "-c", "/opt/precache/precache.sh"])
            .env_clear()
            .env("config_volume_path", "/tmp/precache/config")
            .env("NODE_NAME", "spoke")
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let child = namespace.within(|| command.spawn().expect("`unshare` can be started"));
        Pod { child, out }
    }
}

/// A pod that runs. Killed when dropped.
pub(super) struct Pod {
    child: Child,
    out: TempDir,
}

impl Pod {
    /// Number out here of process 1, once that is the product and SIGTERM waits for it or is caught; and how long after its
    /// first sight that was, while the kernel and the loader had it.
    pub(super) fn process(&self) -> (u32, Duration) {
        let began = Instant::now();
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let mut seen = None;
        loop {
            let children = read(Path::new(&path));
            if let Some(child) = children.split_whitespace().next() {
                let status = read(&Path::new("/proc").join(child).join("status"));
                if status.starts_with("Name:\tbash\n") {
                    let seen = *seen.get_or_insert_with(Instant::now);
                    if heeds(&status) {
                        return (child.parse().expect("a number"), seen.elapsed());
                    }
                }
            }
            assert!(
                began.elapsed() < PATIENCE,
                "nothing was started: {}",
                self.stderr()
            );
        }
    }

    /// Sends SIGTERM to the program, and returns when.
    pub(super) fn terminate(process: u32) -> Instant {
        let told = Instant::now();
        let pid = Pid::from_raw(process.try_into().expect("a number")).expect("it is not 0");
        // It may have gone meanwhile.
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        told
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("waiting for a child").is_some()
    }

    pub(super) fn stderr(&self) -> String {
        read(&self.out.path().join("stderr"))
    }

    pub(super) fn termination_message(&self) -> String {
        read(&self.out.path().join("termination-log"))
    }

    /// Its exit code.
    #[track_caller]
    pub(super) fn wait(&mut self) -> i32 {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("waiting for a child") {
                return code(status);
            }
            assert!(began.elapsed() < PATIENCE, "it hangs: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Whether SIGTERM is blocked or caught, as `/proc/PID/status` has it.
fn heeds(status: &str) -> bool {
    let term = 1_u64 << (Signal::TERM.as_raw() - 1);
    let masks = status.lines().filter_map(|line| {
        line.strip_prefix("SigBlk:")
            .or_else(|| line.strip_prefix("SigCgt:"))
    });
    let mut masks = masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    masks.any(|mask| mask & term != 0)
}

/// Niceness and disk priority of each thread of a process that runs.
pub(super) fn priorities(process: u32) -> Vec<(i32, i64)> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let of_thread = |thread: fs::DirEntry| {
        let number: libc::id_t = thread.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
        // proc(5): the nineteenth field; the second is in brackets and may hold blanks.
        let nice = stat
            .rsplit_once(')')?
            .1
            .split_whitespace()
            .nth(16)?
            .parse()
            .ok()?;
        // SAFETY: numbers alone; 1 is IOPRIO_WHO_PROCESS, which means a thread.
        let disk = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, number) };
        (disk >= 0).then_some((nice, disk))
    };
    threads.filter_map(of_thread).collect()
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(1000)
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

impl Drop for Pod {
    fn drop(&mut self) {
        // `--kill-child` takes process 1 along, and with it the namespaces and their mounts.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
