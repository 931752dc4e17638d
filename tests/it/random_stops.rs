//! Stops runs at random moments of downloading, unpacking and committing: they end within a second and lose nothing.

use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::compare::{inconsistencies, record_array};
use crate::image::layer::random;
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::{Run, Running, TestNode};

/// What is promised: a pod that is slow to leave is read as a failure.
const PROMISED: Duration = Duration::from_secs(1);

/// What fails the test: on a machine that is busy with other tests a process may wait for its turn.
const BEARABLE: Duration = Duration::from_secs(2);

/// Stops in one store before a run may end by itself.
const STOPS: usize = 5;

/// The slow link, in bytes a second on each connection.
const SLOW: u64 = 4 << 20;

/// A node's `/dev` with a file for the last message, as kubelet mounts it; then the command.
const WITH_TERMINATION_LOG: &str = r#"
set -e
log=$1; shift
mount -t tmpfs tmpfs /dev
: >/dev/termination-log
mount --bind "$log" /dev/termination-log
exec "$@"
"#;

/// How a run is stopped.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Term,
    Int,
    Deadline,
}

impl Stop {
    const ALL: [Self; 3] = [Self::Term, Self::Int, Self::Deadline];

    fn code(self) -> i32 {
        match self {
            Self::Term => 143,
            Self::Int => 130,
            Self::Deadline => 124,
        }
    }

    fn signal(self) -> Option<Signal> {
        match self {
            Self::Term => Some(Signal::TERM),
            Self::Int => Some(Signal::INT),
            Self::Deadline => None,
        }
    }
}

/// Images that keep each step busy for a while: large blobs, a layer that unpacks to much, one of many files, and small
/// ones to commit.
fn images() -> Vec<Image> {
    let layer = |text: &str, compression| Layer::of(text, compression);
    let files: String = (0..1500)
        .map(|n| format!("file /f/{n} 0644 0:0 \"{n}\"\n"))
        .collect();
    let base = layer("file /base random=400000 seed=1", Compression::Gzip);
    let mut of = vec![
        (
            "large",
            vec![layer("file /a random=5000000 seed=2", Compression::None)],
        ),
        ("files", vec![base.clone(), layer(&files, Compression::Gzip)]),
        ("zeros", vec![layer("file /z zeros=40000000", Compression::Zstd)]),
        (
            "two-large",
            vec![
                base.clone(),
                layer("file /b random=3000000 seed=3", Compression::Gzip),
                layer("file /c random=1500000 seed=4", Compression::Zstd),
            ],
        ),
    ];
    for (name, seed) in [("small-1", 5), ("small-2", 6), ("small-3", 7)] {
        let text = format!("file /d random=200000 seed={seed}");
        of.push((name, vec![base.clone(), layer(&text, Compression::Gzip)]));
    }
    let build = |(name, layers)| Image::build(name, Format::Oci, node_architecture(), layers, |_, _| {});
    of.into_iter().map(build).collect()
}

/// A registry with [`images`], and the arguments that ask for them.
fn registry() -> (Registry, Vec<String>) {
    let registry = Registry::start();
    let mut args = Vec::new();
    for image in images() {
        registry.push(&image.name, Some("latest"), &image);
        args.extend(["--image".to_owned(), registry.tagged(&image.name)]);
    }
    (registry, args)
}

/// From 0 to 1, always the same for the same seed.
fn fraction(seed: u64) -> f64 {
    f64::from(u16::from_le_bytes(random(2, seed + 1).try_into().unwrap())) / 65536.0
}

/// Waits until SIGTERM waits for a process; what comes before is the kernel's and the loader's.
fn until_it_listens(process: u32) {
    let term = 1_u64 << (Signal::TERM.as_raw() - 1);
    let began = Instant::now();
    loop {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let held = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        if held.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & term != 0)) {
            return;
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "it waits for no signal: {status}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn termination_log(world: &TestNode) -> PathBuf {
    let path = world.out("termination-log");
    fs::write(&path, "").unwrap();
    path
}

/// The result of a stopped run, and how long it took to end.
struct Stopped {
    run: Run,
    /// None if it had ended by itself.
    latency: Option<Duration>,
}

/// Starts it below `wrapper`, and stops it after a delay. `process` finds the process that gets the signal, of the one that
/// was started.
fn stop_after(
    world: &TestNode,
    wrapper: &[&str],
    args: &[&str],
    (how, delay, again): (Stop, Duration, Option<Duration>),
    process: fn(&Running) -> u32,
) -> Stopped {
    let log = termination_log(world);
    let wrapper = [
        wrapper,
        &["sh", "-c", WITH_TERMINATION_LOG, "sh", log.to_str().unwrap()],
    ]
    .concat();
    let deadline = format!("{}ms", delay.as_millis());
    let mut args = args.to_vec();
    if how.signal().is_none() {
        args.extend(["--deadline", &deadline]);
    }
    let running = world.start_under(&wrapper, "run", &args);
    let process = process(&running);
    until_it_listens(process);
    let send = |signal| {
        let pid = Pid::from_raw(process.try_into().unwrap()).unwrap();
        // It may have gone meanwhile.
        let _ = rustix::process::kill_process(pid, signal);
    };
    let mut sent = Instant::now() + delay;
    if let Some(signal) = how.signal() {
        std::thread::sleep(delay);
        sent = Instant::now();
        send(signal);
        if let Some(pause) = again {
            std::thread::sleep(pause);
            send(Signal::TERM);
            std::thread::sleep(pause / 4);
            send(Signal::INT);
        }
    }
    let run = running.wait();
    let latency = sent.elapsed();
    let (code, phase) = match run.code {
        0 => (0, "Succeeded"),
        // On a busy machine the order of several pending signals is unknown.
        143 if again.is_some() => (143, "Interrupted"),
        _ => (
            how.code(),
            match how.signal() {
                Some(_) => "Interrupted",
                None => "Timeout",
            },
        ),
    };
    assert_eq!(run.code, code, "{how:?} after {delay:?}: {run}");
    assert_eq!(run.report["phase"], phase, "{run}");
    assert_eq!(run.report["exitCode"], code, "{run}");
    let message = fs::read_to_string(log).unwrap();
    assert!(
        message.contains(&format!("(exit code {code}: ")),
        "{message:?}: {run}"
    );
    let latency = (run.code != 0).then_some(latency);
    Stopped { run, latency }
}

/// Bytes in the spool of blobs whose layers are not in the store yet.
fn kept(world: &TestNode) -> u64 {
    let layers = record_array(&world.graph_root().join("overlay-layers/layers.json"));
    let stored: HashSet<&str> = layers
        .iter()
        .filter(|layer| layer.get("flags").is_none_or(|flags| flags["incomplete"] != true))
        .filter_map(|layer| layer.get("compressed-diff-digest")?.as_str())
        .collect();
    let spool = world.host().join("var/lib/containers/spoke-precache");
    let files = fs::read_dir(spool).into_iter().flatten().flatten();
    let blobs = files.filter(|file| {
        let name = file.file_name().to_string_lossy().into_owned();
        name.starts_with("sha256:")
            && !name.ends_with(".journal")
            && !stored.contains(name.trim_end_matches(".partial"))
    });
    blobs.map(|file| file.metadata().unwrap().len()).sum()
}

fn left_in_spool(world: &TestNode) -> Vec<String> {
    let spool = world.host().join("var/lib/containers/spoke-precache");
    let files = fs::read_dir(spool).into_iter().flatten().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name != "lock" && !name.contains("history.json"))
        .collect()
}

#[test]
fn at_any_instant_it_is_gone_within_a_second_and_keeps_what_it_has() {
    needs!(root());
    let (registry, args) = registry();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let stops = if long() { 400 } else { 25 };
    let whole = TestNode::trusting(&[registry.host()]).run(&args).exits(0).took;
    let mut latencies = Vec::new();
    let mut ended = 0;
    let mut seed = 0;
    while latencies.len() < stops {
        let world = TestNode::trusting(&[registry.host()]);
        for stop in 0..STOPS.min(stops - latencies.len()) {
            seed += 10;
            let is_slow = fraction(seed) < 0.5;
            if is_slow {
                registry.fault(Fault::on("/blobs/").slow(SLOW));
            }
            // What the runs before it did is done.
            let left = whole.mul_f64(f64::from(u8::try_from(STOPS - stop).unwrap()) / STOPS as f64);
            let delay = left.mul_f64(fraction(seed + 1));
            let how = Stop::ALL[seed as usize / 10 % Stop::ALL.len()];
            let again = (fraction(seed + 2) < 0.5).then(|| {
                Duration::from_millis(1).max(Duration::from_millis(300).mul_f64(fraction(seed + 3)))
            });
            let wrapper = ["unshare", "--mount", "--propagation", "private"];
            let stopped = stop_after(&world, &wrapper, &args, (how, delay, again), Running::id);
            registry.end_faults();
            match stopped.latency {
                Some(latency) => {
                    assert!(
                        latency < BEARABLE,
                        "{latency:?} after {how:?} at {delay:?}: {}",
                        stopped.run
                    );
                    latencies.push(latency);
                }
                None => {
                    ended += 1;
                    break;
                }
            }
        }
        let kept = kept(&world);
        let run = world.run(&args).exits(0);
        assert_eq!(run.total("bytesResumed"), kept, "{run}");
        assert_eq!(
            inconsistencies(&world.graph_root()),
            Vec::<String>::new(),
            "{run}"
        );
        assert_eq!(left_in_spool(&world), Vec::<String>::new(), "{run}");
    }
    report("exit latency", latencies, ended);
}

/// As in a container: no other process reaps children, and signals without a handler are ignored.
#[test]
fn as_process_1_it_leaves_as_anybody_does() {
    needs!(root());
    let (registry, args) = registry();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    registry.fault(Fault::on("/blobs/").slow(SLOW));
    let world = TestNode::trusting(&[registry.host()]);
    let wrapper = [
        "unshare",
        "--fork",
        "--pid",
        "--mount-proc",
        "--mount",
        "--propagation",
        "private",
        "--kill-child",
    ];
    let rounds = if long() { 60 } else { 6 };
    let mut latencies = Vec::new();
    for round in 0..rounds {
        let delay = Duration::from_millis(100) + Duration::from_secs(1).mul_f64(fraction(9000 + round));
        let how = Stop::ALL[round as usize % Stop::ALL.len()];
        let again = (round >= 3).then_some(Duration::from_millis(20));
        let stopped = stop_after(&world, &wrapper, &args, (how, delay, again), process_1_of);
        latencies.extend(stopped.latency);
    }
    assert!(
        latencies.iter().all(|latency| *latency < BEARABLE),
        "{latencies:?}"
    );
    registry.end_faults();
    let kept = kept(&world);
    let run = world.start_under(&wrapper, "run", &args);
    let process = process_1_of(&run);
    until_it_listens(process);
    assert_eq!(
        children(process),
        Vec::<u32>::new(),
        "it starts no programs, so there are none to reap"
    );
    let run = run.wait().exits(0);
    assert_eq!(run.total("bytesResumed"), kept, "{run}");
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
    report("exit latency of process 1", latencies, 0);
}

fn children(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let children = fs::read_to_string(path).unwrap_or_default();
    children
        .split_whitespace()
        .map(|id| id.parse().unwrap())
        .collect()
}

/// The one child of `unshare`, by its number out here.
fn process_1_of(running: &Running) -> u32 {
    let began = Instant::now();
    loop {
        if let Some(child) = children(running.id()).first() {
            return *child;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "nothing was started");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn report(what: &str, mut latencies: Vec<Duration>, ended: usize) {
    latencies.sort_unstable();
    let late = latencies.iter().filter(|latency| **latency > PROMISED).count();
    let (count, median) = (latencies.len(), latencies.get(latencies.len() / 2));
    // Not `eprintln!`: the test runner hides what passing tests print.
    let _ = writeln!(
        std::io::stderr(),
        "{what}: {count} stops, median {median:?}, worst {:?}, {late} over {PROMISED:?}; {ended} had ended",
        latencies.last()
    );
}
