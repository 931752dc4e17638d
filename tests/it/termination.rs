//! Sends signals in every phase of a run: it ends within a second, with the right exit code and a report.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::Signal;

use crate::image::layer::random;
use crate::image::samples::sample_images;
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::{Run, Running, TestNode};

/// The hub reads a pod as failed that does not leave within a second (talm-contract.md 4): 99 % of 200 runs left within 117
/// ms. On a machine that is busy with other tests it takes longer, and who waits for something waits for minutes.
const LEAVES_WITHIN: Duration = Duration::from_secs(3);

/// Long enough to be in the middle of it.
const A_WHILE: Duration = Duration::from_millis(600);

/// The capacity of a pipe (pipe(7)).
const PIPE: usize = 64 << 10;

fn registry_with_samples() -> Registry {
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    registry
}

#[track_caller]
fn stops(run: Running, signal: Signal, code: i32) -> Run {
    std::thread::sleep(A_WHILE);
    let asked = Instant::now();
    run.signal(signal);
    let run = run.wait().exits(code);
    assert!(
        asked.elapsed() < LEAVES_WITHIN,
        "it took {:?}: {run}",
        asked.elapsed()
    );
    assert_eq!(run.report["phase"], "Interrupted", "{run}");
    assert_eq!(run.report["exitCode"], code, "{run}");
    run
}

#[test]
fn while_a_registry_does_not_answer() {
    needs!(root());
    // The kernel accepts the connections, and no process answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let image = format!("127.0.0.1:{}/a:1", silent.local_addr().unwrap().port());
    let world = TestNode::trusting(&[]);
    let run = stops(world.start("run", &["--image", &image]), Signal::TERM, 143);
    assert_eq!(run.images("pending"), [&image], "{run}");
    stops(
        world.start("run", &["--platform-image", &image]),
        Signal::INT,
        130,
    );
    stops(world.start("plan", &["--image", &image]), Signal::HUP, 129);
    let run = world.run(&["--image", &image, "--deadline", "1s"]).exits(124);
    assert!(run.took < Duration::from_secs(1) + LEAVES_WITHIN, "{run}");
}

#[test]
fn while_a_name_is_not_resolved() {
    needs!(root());
    let world = TestNode::trusting(&[]);
    // Without a network, so that no question leaves this machine.
    let args = ["--image", "registry.invalid/a:1"];
    let run = world.start_under(&["unshare", "--net"], "run", &args);
    let run = stops(run, Signal::TERM, 143);
    assert!(!run.stderr.contains("Query {"), "{run}");
}

#[test]
fn while_a_large_layer_is_unpacked() {
    needs!(root());
    let registry = Registry::start();
    // Some thousand files, and zeros that take longer to write than the test waits.
    let mut text = String::new();
    for number in 0..3000 {
        text += &format!("file /f/{number} 0644 0:0 \"{number}\"\n");
    }
    text += "file /zeros 0644 0:0 zeros=1500000000\n";
    let layer = Layer::of(&text, Compression::Zstd);
    let image = Image::build("large", Format::Oci, node_architecture(), vec![layer], |_, _| {});
    registry.push("large", Some("latest"), &image);
    let world = TestNode::trusting(&[registry.host()]);
    let run = world.start("run", &["--image", &registry.tagged("large")]);
    let run = stops(run, Signal::TERM, 143);
    assert_eq!(run.images("pending"), [&registry.tagged("large")], "{run}");
}

#[test]
fn while_another_program_holds_the_lock_of_the_layers() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let image = ["--image", &registry.tagged("zoo/links")];
    world.run(&["--image", &registry.tagged("zoo/base")]).exits(0);
    let path = world.graph_root().join("overlay-layers/layers.lock");
    let lock = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    // A record lock of this process, as containers/storage takes it.
    rustix::fs::fcntl_lock(lock.as_fd(), FlockOperation::LockExclusive).unwrap();
    stops(world.start("run", &image), Signal::TERM, 143);
    drop(lock);
    world.run(&image).exits(0);
}

#[test]
fn while_the_rests_of_a_killed_run_are_removed() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let image = ["--image", &registry.tagged("zoo/base")];
    let stage = world.graph_root().join(".spoke-precache-stage-0123456789abcdef");
    for directory in 0..60 {
        let directory = stage.join(format!("0-aa/diff/{directory}"));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..1000 {
            fs::File::create(directory.join(file.to_string())).unwrap();
        }
    }
    let run = world.start("run", &image);
    std::thread::sleep(Duration::from_millis(150));
    let asked = Instant::now();
    run.signal(Signal::TERM);
    let run = run.wait();
    assert!(
        asked.elapsed() < LEAVES_WITHIN,
        "it took {:?}: {run}",
        asked.elapsed()
    );
    assert!([0, 143].contains(&run.code), "{run}");
    world.run(&image).exits(0);
    assert!(!stage.exists());
}

/// A log that no process reads blocks its writers, which are all threads.
#[test]
fn while_no_process_reads_the_log() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&vec![b'x'; PIPE]).unwrap();
    let full = format!("/proc/{}/fd/{}", std::process::id(), {
        use std::os::fd::AsRawFd as _;
        writer.as_raw_fd()
    });
    let script = format!("exec \"$@\" 2>{full}");
    let args = ["--image", &registry.tagged("zoo/base")];
    let run = world.start_under(&["sh", "-c", &script, "sh"], "run", &args);
    stops(run, Signal::TERM, 143);
    drop(reader);
}

/// This blocks every thread of the runtime too: each registry has a task of its own, and each task logs its retries.
#[test]
fn while_no_process_reads_the_log_of_all_threads() {
    needs!(root());
    let dead = |_| {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("127.0.0.1:{}", free.local_addr().unwrap().port())
    };
    let hosts: Vec<String> = (0..6).map(dead).collect();
    let world = TestNode::trusting(&hosts);
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let log = format!("/proc/{}/fd/{}", std::process::id(), {
        use std::os::fd::AsRawFd as _;
        writer.as_raw_fd()
    });
    let script = format!("exec \"$@\" 2>{log}");
    let images: Vec<String> = hosts.iter().map(|host| format!("{host}/a:1")).collect();
    let args: Vec<&str> = images
        .iter()
        .flat_map(|image| ["--image", image])
        .chain(["--log-level", "debug"])
        .collect();
    for how in [Some(Signal::TERM), None] {
        let mut args = args.clone();
        if how.is_none() {
            args.extend(["--deadline", "4s"]);
        }
        let run = world.start_under(&["sh", "-c", &script, "sh"], "run", &args);
        let mut said = String::new();
        while !said.contains("retrying in") {
            let mut piece = [0; 4096];
            let length = std::io::Read::read(&mut reader, &mut piece).unwrap();
            said += &String::from_utf8_lossy(&piece[..length]);
        }
        // Full from now on, whichever thread writes first.
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while writer.write(&[b'x'; 512]).is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        std::thread::sleep(A_WHILE * 4);
        let asked = Instant::now();
        let code = how.map_or(124, |_| 143);
        how.inspect(|signal| run.signal(*signal));
        let run = run.wait().exits(code);
        let took = match how {
            Some(_) => asked.elapsed(),
            None => run.took.saturating_sub(Duration::from_secs(4)),
        };
        assert!(took < LEAVES_WITHIN, "{how:?}: it took {took:?}: {run}");
        assert_eq!(run.report["exitCode"], code, "{run}");
        let mut rest = vec![0; PIPE];
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        while std::io::Read::read(&mut reader, &mut rest).is_ok_and(|length| length > 0) {}
        rustix::io::ioctl_fionbio(&reader, false).unwrap();
    }
}

#[test]
fn a_signal_that_the_parent_ignores_stays_ignored() {
    needs!(root());
    let registry = registry_with_samples();
    registry.fault(Fault::on("/blobs/").slow(100_000));
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--image", &registry.tagged("zoo/compressions")];
    let nohup = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"];
    let mut run = world.start_under(&nohup, "run", &args);
    std::thread::sleep(A_WHILE);
    run.signal(Signal::HUP);
    std::thread::sleep(A_WHILE);
    assert!(!run.has_ended());
    registry.end_faults();
    run.wait().exits(0);
}

/// It is asked for as long as there is time; the images of others do not wait for that.
#[test]
fn a_registry_that_does_not_answer_keeps_only_its_own_images_waiting() {
    needs!(root());
    if !crate::needs::long() {
        return crate::needs::leave_out("it takes a minute, SPOKE_LONG=1");
    }
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = format!("127.0.0.1:{}/a:1", silent.local_addr().unwrap().port());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let alive = registry.tagged("zoo/base");
    let args = ["--image", &dead, "--image", &alive, "--deadline", "75s"];
    let run = world
        .run(&args)
        .exits(124)
        .says("the registries of 1 images have not answered yet");
    assert_eq!(run.images("pulled"), [&alive], "{run}");
    assert_eq!(run.images("pending"), [&dead], "{run}");
}

/// Unavailable blobs wait without a download slot.
#[test]
fn a_blob_that_is_not_to_be_had_now_leaves_the_link_to_others() {
    needs!(root());
    let (stuck, good) = (registry_with_samples(), registry_with_samples());
    stuck.fault(Fault::on("/blobs/").after(1).status(503));
    let world = TestNode::trusting(&[stuck.host(), good.host()]);
    let (waits, comes) = (stuck.tagged("zoo/compressions"), good.tagged("zoo/base"));
    let args = ["--image", &waits, "--image", &comes, "--max-downloads", "1"];
    let run = world.run(&[&args[..], &["--deadline", "8s"]].concat()).exits(124);
    assert_eq!(run.images("pulled"), [&comes], "{run}");
    assert_eq!(run.images("pending"), [&waits], "{run}");
}

/// Where results cannot go: a reader who has seen enough is none of our business, a full disk is.
#[test]
fn standard_output_that_takes_nothing() {
    needs!(root());
    let registry = registry_with_samples();
    let args = ["--image", &registry.tagged("zoo/base")];
    for (script, code) in [
        ("exec \"$@\" >&-", 0),
        ("exec \"$@\" 2>&-", 0),
        ("exec \"$@\" 2>/dev/full", 0),
        ("exec \"$@\" >/dev/full", 1),
    ] {
        let world = TestNode::trusting(&[registry.host()]);
        let run = world.start_under(&["sh", "-c", script, "sh"], "run", &args);
        let run = run.wait().exits(code);
        assert_eq!(run.report["phase"], "Succeeded", "{script}: {run}");
    }
    let world = TestNode::trusting(&[registry.host()]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = std::process::Command::new(crate::test_node::product());
    command
        .args(["run", "--host-root"])
        .arg(world.host())
        .args(args)
        .args(["--image-gc-high-threshold", "100"])
        .stdout(writer)
        .stderr(std::process::Stdio::null());
    assert_eq!(command.status().unwrap().code(), Some(0));
}

/// A failure that is known when the run is cut off is reported; the image does not count as pending.
#[test]
fn what_failed_before_the_end_is_reported_as_failed() {
    needs!(root());
    let registry = registry_with_samples();
    let layer = Layer::of_blob(
        random(5000, 1).into(),
        format!("sha256:{}", "a".repeat(64)),
        Compression::Gzip,
    );
    let broken = Image::build("broken", Format::Oci, node_architecture(), vec![layer], |_, _| {});
    registry.push("broken", Some("latest"), &broken);
    let images = sample_images(b"no program");
    for layer in &images.image("zoo/compressions").layers {
        registry.fault(Fault::on(&layer.digest).stall(100));
    }
    let world = TestNode::trusting(&[registry.host()]);
    let (endless, broken, never) = (
        registry.tagged("zoo/compressions"),
        registry.tagged("broken"),
        registry.tagged("never-pushed"),
    );
    let run = world.start(
        "run",
        &["--image", &endless, "--image", &broken, "--image", &never],
    );
    std::thread::sleep(A_WHILE);
    let run = stops(run, Signal::TERM, 143);
    assert_eq!(run.images("failed"), [&broken, &never], "{run}");
    assert_eq!(run.images("pending"), [&endless], "{run}");
}
