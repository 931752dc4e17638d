//! Makes a node's file system below a temporary directory and runs the program on it.
//!
//! ```text
//! DIR/host/                       the host root, given as --host-root
//!   var/lib/containers/storage    the graph root
//!   run/containers/storage        the run root
//!   etc/containers/{storage.conf,registries.conf,policy.json}
//!   var/lib/kubelet               the pull secret goes here
//! DIR/config/                     the version spec as kubelet mounts a ConfigMap: key → ..data/key, ..data → ..2024…/
//! DIR/out/                        reports and archives
//! ```

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

// Benches include this file too, so the path is explicit.
#[path = "conditions.rs"]
mod conditions;

/// The program under test: the one just built, or `SPOKE_PRODUCT`, for a release build.
pub(crate) fn product() -> PathBuf {
    let built = || PathBuf::from(env!("CARGO_BIN_EXE_spoke-precache"));
    std::env::var_os("SPOKE_PRODUCT").map_or_else(built, PathBuf::from)
}

/// No run of a test takes this long; one that does hangs, and is killed.
const PATIENCE: Duration = Duration::from_secs(180);

/// A node.
pub(crate) struct TestNode {
    dir: TempDir,
}

impl TestNode {
    /// A node without images, which trusts the registries at `hosts` (`127.0.0.1:port`) without TLS.
    pub(crate) fn trusting(hosts: &[String]) -> Self {
        Self::below(&std::env::temp_dir(), hosts)
    }

    /// The same on the file system of `parent`.
    pub(crate) fn below(parent: &Path, hosts: &[String]) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("spoke-world-")
            .tempdir_in(parent)
            .expect("a temporary directory");
        let world = Self { dir };
        for path in [
            "etc/containers",
            "run/containers",
            "run/libpod",
            "dev/shm",
            "var/cache/containers",
            "var/lib/containers",
            "var/lib/kubelet",
        ] {
            fs::create_dir_all(world.host().join(path)).expect("creating a directory of the world");
        }
        fs::create_dir(world.out("")).expect("creating a directory of the world");
        world.write(
            "etc/containers/storage.conf",
            "[storage]\ndriver = \"overlay\"\nrunroot = \"/run/containers/storage\"\n\
             graphroot = \"/var/lib/containers/storage\"\n",
        );
        world.write(
            "etc/containers/policy.json",
            r#"{"default": [{"type": "insecureAcceptAnything"}]}"#,
        );
        let registries: String = hosts
            .iter()
            .map(|host| format!("[[registry]]\nlocation = \"{host}\"\ninsecure = true\n\n"))
            .collect();
        world.write("etc/containers/registries.conf", &registries);
        world
    }

    /// The host root.
    pub(crate) fn host(&self) -> PathBuf {
        self.dir.path().join("host")
    }

    /// The graph root.
    pub(crate) fn graph_root(&self) -> PathBuf {
        self.host().join("var/lib/containers/storage")
    }

    /// A path for results, outside of the host root and seen by the stock tools too.
    pub(crate) fn out(&self, name: &str) -> PathBuf {
        self.dir.path().join("out").join(name)
    }

    /// Writes a file below the host root.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.host().join(path);
        fs::create_dir_all(path.parent().expect("a path below the host root")).expect("creating a directory");
        fs::write(path, text).expect("writing a file of the world");
    }

    /// The pull secret of the node, with one `user:password` for `host`.
    pub(crate) fn pull_secret(&self, host: &str, user_and_password: &str) {
        use base64::Engine as _;
        let auth = base64::engine::general_purpose::STANDARD.encode(user_and_password);
        let document = serde_json::json!({"auths": {host: {"auth": auth}}});
        self.write("var/lib/kubelet/config.json", &document.to_string());
    }

    /// The version spec: keys and their text, mounted as kubelet does. Replaces the one before.
    pub(crate) fn spec(&self, keys: &[(&str, &str)]) {
        let mount = self.dir.path().join("config");
        if mount.exists() {
            fs::remove_dir_all(&mount).expect("removing the old spec");
        }
        let version = mount.join("..2024_05_06_07_08_09.123456789");
        fs::create_dir_all(&version).expect("creating the mounted ConfigMap");
        symlink("..2024_05_06_07_08_09.123456789", mount.join("..data")).expect("a symbolic link");
        for (key, text) in keys {
            fs::write(version.join(key), text).expect("writing a key of the ConfigMap");
            symlink(Path::new("..data").join(key), mount.join(key)).expect("a symbolic link");
        }
    }

    /// Binds `overlay` on itself, as c/storage leaves it while containers run (storage-format.md 9.1). A rename from
    /// elsewhere in the graph root into it then crosses a mount. Undone when the world is dropped.
    pub(crate) fn bind_overlay(&self) {
        let overlay = self.graph_root().join("overlay");
        fs::create_dir_all(&overlay).expect("creating overlay/");
        rustix::mount::mount_bind(&overlay, &overlay).expect("binding a directory on itself");
    }

    /// `spoke-precache run ARGS` to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Run {
        self.start("run", args).wait()
    }

    /// `spoke-precache plan ARGS` to its end.
    pub(crate) fn plan(&self, args: &[&str]) -> Run {
        self.start("plan", args).wait()
    }

    /// `spoke-precache verify ARGS` to its end.
    pub(crate) fn verify(&self, args: &[&str]) -> Run {
        self.start("verify", args).wait()
    }

    /// `spoke-precache status ARGS` to its end.
    pub(crate) fn status(&self, args: &[&str]) -> Run {
        self.start("status", args).wait()
    }

    /// Starts the product on this node. It gets the host root, the spec if there is one, and a report file.
    pub(crate) fn start(&self, verb: &str, args: &[&str]) -> Running {
        self.start_under(&[], verb, args)
    }

    /// Starts it under strace, which kills it on entering the `nth` of these calls; each thread counts for itself.
    ///
    /// The lock of the history is held meanwhile: its calls would come before the first of every other thread.
    pub(crate) fn start_to_kill(&self, calls: &str, nth: u64, verb: &str, args: &[&str]) -> Running {
        let spool = self.graph_root().with_file_name("spoke-precache");
        fs::create_dir_all(&spool).expect("creating the spool's directory");
        let lock = fs::File::open(&spool).expect("opening the spool's directory");
        lock.try_lock().expect("nobody else holds the lock");
        let (trace, inject) = (
            format!("trace={calls}"),
            format!("inject={calls}:signal=KILL:when={nth}"),
        );
        let mut running = self.start_with_faults(&["-e", &trace, "-e", &inject], verb, args);
        running.history_lock = Some(lock);
        running
    }

    /// Starts it under strace with these options, which injects faults and prints nothing.
    pub(crate) fn start_with_faults(&self, options: &[&str], verb: &str, args: &[&str]) -> Running {
        let strace = ["/usr/bin/strace", "-f", "-qq", "-o", "/dev/null"];
        self.start_under(&[&strace, options].concat(), verb, args)
    }

    /// Starts it as TALM's script, which means `run`.
    pub(crate) fn start_as_script(&self, args: &[&str]) -> Running {
        // `exec -a` is bash's; a link has the name as well.
        let script = self.out("precache.sh");
        if !script.exists() {
            symlink(product(), &script).expect("a symbolic link");
        }
        self.start_program(&[], &script, &[], args)
    }

    /// Starts it as the last arguments of another program, such as strace. `delta create` is a verb too.
    pub(crate) fn start_under(&self, wrapper: &[&str], verb: &str, args: &[&str]) -> Running {
        let words: Vec<&str> = verb.split(' ').collect();
        self.start_program(wrapper, &product(), &words, args)
    }

    fn start_program(&self, wrapper: &[&str], program: &Path, verb: &[&str], args: &[&str]) -> Running {
        let name = verb.first().copied().unwrap_or("script");
        let number = fs::read_dir(self.out("")).map_or(0, Iterator::count);
        let path = |what: &str| self.out(&format!("{number}-{name}.{what}"));
        let (report, stdout, stderr) = (path("report"), path("stdout"), path("stderr"));
        let create = |path: &Path| fs::File::create(path).expect("creating a file for output");
        let mut words: Vec<OsString> = wrapper.iter().map(OsString::from).collect();
        words.push(program.into());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(verb)
            .arg("--host-root")
            .arg(self.host())
            .arg("--report")
            .arg(&report);
        let config = self.dir.path().join("config");
        if config.exists() {
            command.arg("--config").arg(config);
        }
        command
            .args(args)
            .env_clear()
            // The machine's disk may be fuller than a node's may be; a test of the threshold sets it by flag.
            .env("SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD", "100")
            .stdin(Stdio::null())
            .stdout(create(&stdout))
            .stderr(create(&stderr));
        let child = command.spawn().expect("the product can be started");
        Running {
            child: Some(child),
            begin: Instant::now(),
            report,
            stdout,
            stderr,
            history_lock: None,
        }
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        let below = self.dir.path().to_string_lossy().into_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        // Field 5 is the mount point; the last ones lie on top.
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        let mut points: Vec<&str> = points.filter(|point| point.starts_with(&below)).collect();
        points.reverse();
        for point in points {
            // What stays mounted makes the removal of the directory fail, which is then seen.
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// The product while it runs. Killed when dropped.
pub(crate) struct Running {
    child: Option<Child>,
    begin: Instant,
    report: PathBuf,
    stdout: PathBuf,
    stderr: PathBuf,
    /// Held until the end, so that the run does not write the history.
    history_lock: Option<fs::File>,
}

impl Running {
    /// Its process id; of the wrapper, unless that has replaced itself.
    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().expect("it runs until `wait`").id()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let child = self.child.as_ref().expect("it runs until `wait`");
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, signal).expect("a child that was not waited for can be signalled");
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut().expect("it runs until `wait`");
        child.try_wait().expect("waiting for a child").is_some()
    }

    /// Whether it was started at least so long ago.
    pub(crate) fn has_run_for(&self, time: Duration) -> bool {
        self.begin.elapsed() >= time
    }

    /// Its log so far.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Run {
        let mut child = self.child.take().expect("only `wait` takes it");
        let (mut memory, mut written) = (0, 0);
        let status = loop {
            memory = memory.max(peak_memory(child.id()));
            written = written.max(written_bytes(child.id()));
            if let Some(status) = child.try_wait().expect("waiting for a child") {
                break status;
            }
            if self.begin.elapsed() > PATIENCE {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the product hangs:\n{}", self.stderr());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        let run = Run {
            code: status
                .code()
                .unwrap_or_else(|| 1000 + status.signal().unwrap_or(0)),
            took: self.begin.elapsed(),
            memory,
            written,
            stdout: read(&self.stdout),
            stderr: read(&self.stderr),
            report: serde_json::from_str(&read(&self.report)).unwrap_or(Value::Null),
        };
        let flaws = conditions::flaws(&run.report);
        assert!(flaws.is_empty(), "conditions: {flaws:#?}\n{run}");
        run
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The most bytes of a process that were resident at once; 0 for one that has ended.
fn peak_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Bytes that a process has given to `write` so far; 0 for one that has ended.
fn written_bytes(process: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// A finished run of the product.
pub(crate) struct Run {
    /// Its exit code; 1000 and the number if a signal killed it, so that it differs from every exit code.
    pub(crate) code: i32,
    pub(crate) took: Duration,
    /// The most bytes that were resident at once, as seen last before it ended.
    pub(crate) memory: u64,
    /// Bytes that it gave to `write`, as seen last before it ended.
    pub(crate) written: u64,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The report; null if there is none.
    pub(crate) report: Value,
}

impl Run {
    /// Fails the test, with all output of the run, unless it ended with `code`.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self}");
        self
    }

    /// Fails the test unless standard output, standard error or the report contains `text`.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        let said = [&self.stdout, &self.stderr, &self.report.to_string()]
            .iter()
            .any(|said| said.contains(text));
        assert!(said, "it does not say `{text}`: {self}");
        self
    }

    /// A number of the report's totals.
    #[track_caller]
    pub(crate) fn total(&self, name: &str) -> u64 {
        self.report["totals"][name]
            .as_u64()
            .unwrap_or_else(|| panic!("no total `{name}`: {self}"))
    }

    /// Names of the report's images that are in `state`, sorted.
    pub(crate) fn images(&self, state: &str) -> Vec<&str> {
        let images = self.report["images"].as_array().map_or(&[][..], Vec::as_slice);
        let mut names: Vec<&str> = images
            .iter()
            .filter(|image| image["state"] == state)
            .filter_map(|image| image["name"].as_str())
            .collect();
        names.sort_unstable();
        names
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ended with {} after {:?}", self.code, self.took)?;
        write!(
            f,
            "--- stdout\n{}--- stderr\n{}--- report\n{:#}",
            self.stdout, self.stderr, self.report
        )
    }
}
