//! Fails each system call on the disk: the run reports it, leaves nothing half-visible, and the next run continues.

use std::fs;
use std::io::Write as _;
use std::time::Duration;

use crate::compare::inconsistencies;
use crate::image::{Image, Images};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

/// Two layers with every kind of entry.
fn image() -> Image {
    let text = "image all docker
        layer gzip
        dir  /d 0750 1:1
        file /d/a 0640 2:2 \"a\"
        link /d/hard -> /d/a 0640 2:2
        symlink /d/soft -> a
        layer gzip
        whiteout /d/a
        file /b 0644 0:0 random=70000 seed=1";
    Images::of(text, &[]).images.remove(0)
}

/// Calls, and what they answer. Of `write` only what goes to files counts, for it is also what wakes threads up; those of
/// the spool are `failing_spool`'s, a full disk is `disk_full`'s.
const CALLS: [(&str, &str); 19] = [
    ("write", "EIO"),
    ("fsync", "EIO"),
    ("fdatasync", "EIO"),
    ("syncfs", "EIO"),
    ("rename", "ENOSPC"),
    ("rename", "EIO"),
    ("renameat,renameat2", "EIO"),
    ("mkdir,mkdirat", "ENOSPC"),
    ("mkdir,mkdirat", "EIO"),
    ("symlink,symlinkat", "ENOSPC"),
    ("linkat", "EIO"),
    ("pwrite64", "ENOSPC"),
    ("pwrite64", "EIO"),
    ("pread64", "EIO"),
    ("getdents64", "EIO"),
    ("unlink,unlinkat,rmdir", "EIO"),
    ("fchmodat,fchmod,chmod", "EIO"),
    ("fchownat,fchown", "EDQUOT"),
    ("statfs,fstatfs", "EIO"),
];

/// What tokio panics with when it cannot write to its eventfd.
const RUNTIME: &str = "failed to wake I/O driver";

/// How long a run without its runtime may still take to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time between two checks of a run.
const GLANCE: Duration = Duration::from_millis(5);

/// Fewer errors than this mean that the calls have other names on this platform.
const ERRORS: usize = 10;

/// Of an image whose layers are cut off from each other.
const LAYERS: usize = 6;

/// Of how many errors a quick test tries one.
const SAMPLE: usize = 4;

/// What became of a run with one call that fails.
enum Struck {
    /// There are not so many calls.
    Nothing,
    /// A call that is no disk's: one that wakes a thread of the runtime up, which does not go on without, or one that
    /// prints.
    Elsewhere,
    /// Any other.
    Disk(Run),
}

/// Runs it with one call that fails; `when` counts in each thread.
fn run_with_error(world: &TestNode, args: &[&str], calls: &str, error: &str, when: &str) -> Struck {
    let log = world.out("strace");
    let (trace, inject) = (
        format!("trace={calls}"),
        format!("inject={calls}:error={error}:when={when}"),
    );
    let strace = [
        "/usr/bin/strace",
        "-f",
        "-qq",
        "-y",
        "-o",
        log.to_str().unwrap(),
        "-e",
        &trace,
        "-e",
        &inject,
    ];
    let mut running = world.start_under(&strace, "run", args);
    while !running.has_ended() {
        if running.stderr().contains(RUNTIME) && running.has_run_for(PATIENCE) {
            // The first column is the thread's number, and strace ends with the last process.
            let thread = fs::read_to_string(&log)
                .ok()
                .and_then(|log| log.split(' ').next()?.parse().ok());
            let thread = rustix::process::Pid::from_raw(thread.expect("a call is in the log"));
            let thread = thread.expect("no thread is 0");
            // It may have ended just now.
            let _ = rustix::process::kill_process(thread, rustix::process::Signal::KILL);
        }
        std::thread::sleep(GLANCE);
    }
    let run = running.wait();
    let log = fs::read_to_string(log).unwrap_or_else(|error| panic!("strace has no log: {error}: {run}"));
    let injected: Vec<&str> = log.lines().filter(|line| line.contains("(INJECTED)")).collect();
    match injected[..] {
        [] => Struck::Nothing,
        [line, ..] if run.stderr.contains(RUNTIME) || line.contains("-run.std") => Struck::Elsewhere,
        _ => Struck::Disk(Run {
            stderr: format!("{}--- strace\n{}\n", run.stderr, injected.join("\n")),
            ..run
        }),
    }
}

/// That code, or 0 if it could do without.
fn expected(error: &str) -> [i32; 2] {
    match error {
        "ENOSPC" | "EDQUOT" => [0, 3],
        _ => [0, 7],
    }
}

#[test]
fn after_an_error_at_any_call_the_next_run_completes() {
    needs!(root(), strace());
    let (registry, image) = (Registry::start(), image());
    registry.push("all", Some("latest"), &image);
    let args = ["--image", &registry.tagged("all")];
    let (mut errors, mut borne, mut point) = (0, 0, 0);
    let mut wrong = Vec::new();
    for (calls, error) in CALLS {
        for nth in 1.. {
            point += 1;
            if !long() && point % SAMPLE != 0 && nth < 40 {
                if nth > 12 {
                    break;
                }
                continue;
            }
            let world = TestNode::trusting(&[registry.host()]);
            let run = match run_with_error(&world, &args, calls, error, &nth.to_string()) {
                Struck::Disk(run) => run,
                Struck::Elsewhere => continue,
                Struck::Nothing => break,
            };
            // The loader's own reads.
            if run.code == 127 {
                continue;
            }
            errors += 1;
            borne += usize::from(run.code == 0);
            let when = format!("{error} at the {nth}th of {calls}");
            if !expected(error).contains(&run.code) {
                wrong.push(format!("{when}: {run}"));
            }
            let said = [
                "Input/output error",
                "No space left",
                "no space left",
                "disk is full",
                "quota",
            ];
            let needs_none = ["cannot write the report", "cannot read the free space"];
            let has_hint = ["hint: "]
                .iter()
                .chain(&needs_none)
                .any(|said| run.stderr.contains(said));
            if run.code != 0 && !has_hint {
                wrong.push(format!("{when}: no hint: {run}"));
            }
            if run.code != 0 && !said.iter().any(|said| run.stderr.contains(said)) {
                wrong.push(format!("{when}: nothing is said: {run}"));
            }
            let inconsistencies = inconsistencies(&world.graph_root());
            // What could not be removed stays, and is found by the next run.
            if !inconsistencies.is_empty() && !calls.contains("unlink") && calls != "getdents64" {
                wrong.push(format!("{when}: {}: {run}", inconsistencies.join("\n")));
            }
            let next = world.run(&args);
            if next.code != 0 {
                wrong.push(format!("{when}: the next run: {next}"));
            }
            let inconsistencies = crate::compare::inconsistencies_after_kills(&world.graph_root());
            if !inconsistencies.is_empty() {
                wrong.push(format!(
                    "{when}: at last: {}: {run}{next}",
                    inconsistencies.join("\n")
                ));
            }
        }
    }
    // Not `eprintln!`: the test runner hides what passing tests print.
    let _ = writeln!(
        std::io::stderr(),
        "{errors} calls failed, {borne} of them did not matter"
    );
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n=====\n")
    );
    assert!(errors >= ERRORS, "only {errors} errors");
}

/// The layers below the one that cannot be stored are in: they are counted, and their blobs are not kept.
#[test]
fn layers_that_were_stored_before_another_failed_are_accounted_for() {
    needs!(root(), strace());
    // So many layers that a thread places some of them, whichever renamed something before.
    let layers = (0..LAYERS).map(|layer| format!("layer gzip\nfile /{layer} 0644 0:0 \"{layer}\"\n"));
    let text = format!("image all docker\n{}", layers.collect::<String>());
    let (registry, image) = (Registry::start(), Images::of(&text, &[]).images.remove(0));
    registry.push("all", Some("latest"), &image);
    let args = ["--image", &registry.tagged("all")];
    let mut met = 0;
    for nth in 1..=8 {
        let world = TestNode::trusting(&[registry.host()]);
        let Struck::Disk(run) = run_with_error(&world, &args, "renameat,renameat2", "EIO", &nth.to_string())
        else {
            continue;
        };
        let layers = crate::compare::record_array(&world.graph_root().join("overlay-layers/layers.json"));
        let spool = world.host().join("var/lib/containers/spoke-precache");
        for (number, layer) in image.layers.iter().enumerate() {
            let is_stored = layers.len() > number;
            assert!(
                !(is_stored && spool.join(&layer.digest).exists()),
                "{nth}: layer {number}: {run}"
            );
        }
        // The same error may have struck the report.
        if run.code == 7 && !run.report.is_null() {
            assert_eq!(run.total("layersPulled"), layers.len() as u64, "{nth}: {run}");
            met += usize::from((1..LAYERS).contains(&layers.len()));
        }
        world.run(&args).exits(0);
        assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
    }
    assert!(met > 0, "no rename stands between two layers");
}
