//! Runs the program in poor environments: no devices, no streams, refused system calls, an unusable termination log.

use std::fs;

use super::image_build::is_static;
use crate::compare::inconsistencies;
use crate::image::samples::sample_images;
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

/// Calls that older kernels lack and sandboxes refuse; the C library, the runtime or we do without.
const RARE: &str = "ioprio_set,ioprio_get,setpriority,fadvise64,sync_file_range,copy_file_range,statx,open_tree,close_range,\
                    renameat2,membarrier,sched_getaffinity,prlimit64,io_uring_setup,faccessat2,pidfd_open";

/// Files that a static C library would look for, had anybody asked it for a name, a user or a character set; and devices
/// that an image from scratch has only where a runtime makes them.
const NEVER_OPENED: [&str; 8] = [
    ".so",
    "nsswitch.conf",
    "gai.conf",
    "/etc/passwd",
    "gconv",
    "locale",
    "/dev/random",
    "/dev/urandom",
];

struct Site {
    registry: Registry,
    world: TestNode,
    image: String,
}

impl Site {
    fn new() -> Self {
        let registry = Registry::start();
        registry.push_all(&sample_images(b"no program"));
        let world = TestNode::trusting(&[registry.host()]);
        let image = registry.tagged("zoo/base");
        Self {
            registry,
            world,
            image,
        }
    }

    /// Runs it by a shell that is given its command line, in a mount namespace of its own.
    fn run(&self, shell: &str, args: &[&str]) -> Run {
        let wrapper = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "bash",
            "-c",
            shell,
            "bash",
        ];
        let args = [&["--image", &self.image], args].concat();
        self.world.start_under(&wrapper, "run", &args).wait()
    }

    /// On a new node each time.
    #[track_caller]
    fn works(&mut self, shell: &str) -> Run {
        self.world = TestNode::trusting(&[self.registry.host()]);
        let run = self.run(shell, &["--ionice", "idle", "--nice", "1"]);
        assert_eq!(run.code, 0, "{shell}: {run}");
        assert_eq!(inconsistencies(&self.world.graph_root()), [""; 0], "{shell}");
        run
    }
}

#[test]
fn it_works_with_little_around_it() {
    needs!(root());
    let mut site = Site::new();
    for shell in [
        // No container runtime starts a process like this, but a shell or a test harness may.
        "exec \"$@\" <&- >&- 2>&-",
        // The reader of the log disappears.
        "exec \"$@\" 2> >(head -n 1 >/dev/null)",
        "TMPDIR=/nowhere HOME=/nowhere exec \"$@\"",
        "mkdir /tmp/gone.$$; cd /tmp/gone.$$; rmdir /tmp/gone.$$; umask 777; exec \"$@\"",
        "export LANG=$'\\xff' NODE_NAME=$'\\xff' POD_NAME=$'\\xfe' KUBERNETES_SERVICE_HOST=$'\\xff'; exec \"$@\"",
        "mount -t tmpfs none /sys; mount -t tmpfs none /dev; exec \"$@\"",
        "mount -t tmpfs none /dev; mkdir /dev/termination-log; exec \"$@\"",
        "mount -t tmpfs none /dev; mkfifo /dev/termination-log; exec \"$@\"",
        "mount -t tmpfs none /dev; >/dev/termination-log; mount -o remount,ro /dev; exec \"$@\"",
    ] {
        site.works(shell);
    }
}

#[test]
fn a_variable_that_makes_no_sense_is_named() {
    needs!(root());
    let site = Site::new();
    for (shell, named) in [
        ("PRE_CACHE_LOG_LEVEL=loud exec \"$@\"", "`PRE_CACHE_LOG_LEVEL`"),
        (
            "PRE_CACHE_LOG_LEVEL=$'\\xff' exec \"$@\"",
            "`PRE_CACHE_LOG_LEVEL`",
        ),
        ("MAX_PULL_THREADS=0 exec \"$@\"", "`MAX_PULL_THREADS`"),
        ("HTTPS_PROXY=$'\\xff' exec \"$@\"", "`HTTPS_PROXY`"),
    ] {
        let run = site.run(shell, &[]);
        assert_eq!(run.code, 2, "{shell}: {run}");
        run.says(named);
    }
}

#[test]
fn calls_that_are_refused_are_done_without() {
    needs!(root(), strace());
    let mut site = Site::new();
    for errno in ["ENOSYS", "EPERM"] {
        let refuse =
            format!("exec strace -f -qq -o /dev/null -e trace={RARE} -e inject={RARE}:error={errno} \"$@\"");
        let run = site.works(&refuse);
        // One warning each.
        for flag in ["`--nice` has no effect", "`--ionice` has no effect"] {
            assert_eq!(run.stderr.matches(flag).count(), 1, "{run}");
        }
    }
    // Without this one no path of an image is safe.
    let refuse = "exec strace -f -qq -o /dev/null -e trace=openat2 -e inject=openat2:error=ENOSYS \"$@\"";
    site.world = TestNode::trusting(&[site.registry.host()]);
    let run = site.run(refuse, &[]).exits(7);
    assert!(run.stderr.contains("Function not implemented"), "{run}");
}

#[test]
fn the_shipped_binary_opens_no_library() {
    needs!(root(), strace());
    if !is_static("whoever has a loader looks for libraries") {
        return;
    }
    let site = Site::new();
    let trace = site.world.out("trace");
    let shell = format!(
        "exec strace -f -qq -o {} -e trace=open,openat,openat2,execve \"$@\"",
        trace.display()
    );
    // Also with a name that must be resolved.
    let unknown = ["--image", "registry.invalid/a:1", "--deadline", "2s"];
    site.run(&shell, &unknown).exits(124);
    let trace = fs::read_to_string(trace).unwrap();
    assert!(trace.contains("/etc/resolv.conf"), "{trace}");
    let opened = trace
        .lines()
        .filter(|line| NEVER_OPENED.iter().any(|never| line.contains(never)));
    assert_eq!(opened.collect::<Vec<_>>(), [""; 0]);
}
