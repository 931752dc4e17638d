//! Runs podman, skopeo and containers-storage on a test node, as the reference.
//!
//! They run as on a node: in a mount namespace of their own, where `/var/lib/containers`, `/var/cache/containers`,
//! `/etc/containers` and `/run` are those of the [`TestNode`]. So they read the same configuration as the program, keep their
//! blob-info cache in the node, and leave nothing mounted. With `SPOKE_STOCK_ROOT` set to what `.ci/stock-trixie` prints, the
//! tools of another Debian run in the same way.

pub(crate) mod docker_registry;
pub(crate) mod hello;
pub(crate) mod signer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::test_node::TestNode;

/// Arguments: the node's root, the tools' root, `run` when containers are to run, the command.
///
/// The tools' root is bound on itself, else c/storage's "remount /" fails in a chroot; containers run only with a pure
/// cgroup2 (storage-format.md 12.1).
const ENTER: &str = r#"
set -e
node=$1 top=${2%/} mode=$3; shift 3
if [ -n "$top" ]; then
  mount --bind "$top" "$top"
  mount -t proc proc "$top/proc"
  mount --rbind /sys "$top/sys"
  mount --rbind /dev "$top/dev"
  mount -t tmpfs tmpfs "$top/tmp"
  mkdir -p "$top${node%/*}"
  mount --rbind "${node%/*}" "$top${node%/*}"
fi
for dir in var/lib/containers var/cache/containers etc/containers run/containers run/libpod dev/shm; do
  mkdir -p "$top/$dir"
  mount --bind "$node/$dir" "$top/$dir"
done
if [ "$mode" = run ]; then
  umount -R "$top/sys/fs/cgroup"
  mount -t cgroup2 none "$top/sys/fs/cgroup"
fi
exec chroot "${top:-/}" "$@"
"#;

/// Seconds after which a tool is ended, with all that it started: podman expands a sparse tar of 6 KB to 60 GB of zeros if
/// it is let.
const PATIENCE: &str = "60";

/// The root directory of the tools' Debian.
pub(crate) fn top() -> PathBuf {
    std::env::var_os("SPOKE_STOCK_ROOT").map_or_else(|| PathBuf::from("/"), PathBuf::from)
}

/// Every available Debian with a podman: the one of [`top`], and this machine's.
pub(crate) fn tops() -> Vec<PathBuf> {
    let mut tops = vec![top(), PathBuf::from("/")];
    tops.dedup();
    tops.retain(|top| top.join("usr/bin/podman").exists());
    tops
}

/// What a tool answered.
pub(crate) struct Answer {
    command: String,
    code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Answer {
    /// Whether it ended with 0.
    pub(crate) fn is_ok(&self) -> bool {
        self.code == Some(0)
    }

    /// Its standard output, without the last newline; the test ends here if it failed.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert!(self.is_ok(), "{self}");
        self.stdout.trim_end().to_owned()
    }

    /// Its standard output as JSON; the test ends here if it failed.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in:\n{text}"))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}` ended with {:?}", self.command, self.code)?;
        write!(f, "--- stdout\n{}--- stderr\n{}", self.stdout, self.stderr)
    }
}

impl TestNode {
    /// Runs `podman` on this node.
    pub(crate) fn podman(&self, args: &[&str]) -> Answer {
        self.podman_of(&top(), args)
    }

    /// Runs the `podman` of the Debian at `top` on this node.
    pub(crate) fn podman_of(&self, top: &Path, args: &[&str]) -> Answer {
        self.tool_of(top, "pull", &[&["podman"], args].concat())
    }

    /// Pulls with podman.
    #[track_caller]
    pub(crate) fn podman_pull(&self, reference: &str) -> String {
        self.podman(&["pull", "--quiet", reference]).ok()
    }

    /// Runs a container of `image` as `user` (`uid:gid`) with `command`, as storage-format.md 12.1 found it to work in a
    /// small machine.
    pub(crate) fn podman_run(&self, image: &str, user: &str, command: &[&str]) -> Answer {
        let old = self.podman_version().starts_with("4.");
        let limits: &[&str] = if old {
            &["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]
        } else {
            &["--ulimit=host"]
        };
        let fixed = [
            "podman",
            "run",
            "--rm",
            "--network=none",
            "--cgroups=disabled",
            "--user",
            user,
        ];
        self.tool("run", &[&fixed, limits, &[image], command].concat())
    }

    /// Runs `skopeo` on this node, without a signature policy.
    pub(crate) fn skopeo(&self, args: &[&str]) -> Answer {
        self.tool("pull", &[&["skopeo", "--insecure-policy"], args].concat())
    }

    /// Runs `containers-storage` on this node.
    pub(crate) fn containers_storage(&self, args: &[&str]) -> Answer {
        self.tool("pull", &[&["containers-storage"], args].concat())
    }

    /// `4.3.1`, `5.4.2`
    pub(crate) fn podman_version(&self) -> String {
        let text = self.podman(&["--version"]).ok();
        text.rsplit(' ').next().unwrap_or_default().to_owned()
    }

    /// Whether this podman has `system check`, as 5 has and 4.3.1 has not.
    pub(crate) fn has_system_check(&self) -> bool {
        let help = self.podman(&["system", "check", "--help"]);
        help.stdout.contains("system check")
    }

    /// What `podman system check` says of the store, sorted, without the values that it found: a time of "now" differs
    /// between any two pulls.
    pub(crate) fn complaints_of_system_check(&self) -> Vec<String> {
        let answer = self.podman(&["system", "check"]);
        // They stand after an arrow.
        let without_found = |line: &str| {
            let mut parts = line.split('\u{ffeb}');
            let mut kept = parts.next().unwrap_or_default().to_owned();
            parts.for_each(|part| {
                kept.push_str(part.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric()))
            });
            kept
        };
        let text = format!("{}{}", answer.stdout, answer.stderr);
        let mut lines: Vec<String> = text.lines().map(without_found).collect();
        lines.sort();
        lines
    }

    /// Forgets which blobs belong to which layers, so that only the store itself shows it.
    pub(crate) fn empty_blob_info_cache(&self) {
        let cache = self.host().join("var/lib/containers/cache");
        if cache.exists() {
            std::fs::remove_dir_all(&cache).expect("the cache of this world can be removed");
        }
    }

    /// A command line to be started by the caller, of the Debian at `top`; `mode` is `run` where containers run.
    pub(crate) fn tool_command(&self, top: &Path, mode: &str, command: &[&str]) -> Command {
        self.tool_command_within(PATIENCE, top, mode, command)
    }

    /// The same, for what takes up to `seconds`.
    pub(crate) fn tool_command_within(
        &self,
        seconds: &str,
        top: &Path,
        mode: &str,
        command: &[&str],
    ) -> Command {
        let mut tool = Command::new("timeout");
        tool.args(["--signal=KILL", seconds, "unshare", "--mount"])
            .args(["--propagation", "private", "sh", "-c", ENTER, "sh"])
            .args([self.host().as_os_str(), top.as_os_str()])
            .arg(mode)
            .args(command)
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("HOME", "/root")
            .env("PODMAN_IGNORE_CGROUPSV1_WARNING", "1")
            .stdin(Stdio::null());
        tool
    }

    pub(crate) fn tool(&self, mode: &str, command: &[&str]) -> Answer {
        self.tool_of(&top(), mode, command)
    }

    fn tool_of(&self, top: &Path, mode: &str, command: &[&str]) -> Answer {
        let output = self.tool_command(top, mode, command).output();
        let output = output.expect("`timeout` can be started");
        Answer {
            command: command.join(" "),
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
