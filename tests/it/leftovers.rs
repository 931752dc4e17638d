//! Tests leftovers of killed runs: the next run removes them, and keeps what is still useful.

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use rustix::process::Signal;

use crate::compare::inconsistencies;
use crate::image::samples::sample_images;
use crate::image::{Image, Images, sha256};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn registry_with_samples() -> Registry {
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    registry
}

fn spool(world: &TestNode) -> PathBuf {
    world.host().join("var/lib/containers/spoke-precache")
}

fn make(path: &Path, bytes: &[u8], age: Duration) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}

fn images_dir(world: &TestNode) -> PathBuf {
    let images = fs::read_dir(world.graph_root().join("overlay-images")).unwrap();
    let mut images = images
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir());
    images.next().unwrap()
}

/// Also by a run that has nothing to pull: podman may have pulled the images since.
#[test]
fn stages_and_temporary_files_of_dead_runs_go_and_those_of_live_ones_stay() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--image", &registry.tagged("zoo/base")];
    world.run(&args).exits(0);

    let root = world.graph_root();
    let dead = [
        root.join(".spoke-precache-stage-00000000deadbeef/0-aa/diff/file"),
        root.join("overlay-layers/.tmp-layers.json123"),
        root.join("overlay-images/.tmp-images.json123"),
        images_dir(&world).join(".tmp-manifest123"),
        images_dir(&world).join(".tmp-=c2hhMjU2OjAw123"),
    ];
    let live = [
        root.join(".spoke-precache-stage-0000000000000001/0-aa/diff/file"),
        // The hour is for clocks that jump.
        root.join("overlay-layers/.tmp-layers.json456"),
        images_dir(&world).join(".tmp-manifest456"),
    ];
    dead.iter().for_each(|path| make(path, b"x", 2 * HOUR));
    live.iter().for_each(|path| make(path, b"x", HOUR / 2));
    let lock = File::create(root.join(".spoke-precache-stage-0000000000000001/lock")).unwrap();
    rustix::fs::fcntl_lock(lock.as_fd(), FlockOperation::LockExclusive).unwrap();

    world.plan(&args).exits(0);
    world.verify(&args).exits(0);
    assert!(dead.iter().all(|path| path.exists()), "lookers change nothing");
    // The next report's name begins with the number of the files that are there.
    let next = fs::read_dir(world.out("")).unwrap().count() + 2;
    let [old, young] = ["1", "2"].map(|process| world.out(&format!(".{next}-run.report.tmp-{process}")));
    make(&old, b"{", 2 * HOUR);
    make(&young, b"{", HOUR / 2);
    let run = world.run(&args).exits(0);
    assert!(!old.exists() && young.exists(), "{run}");
    let rests: Vec<_> = dead.iter().filter(|path| path.exists()).collect();
    assert!(rests.is_empty(), "{rests:?}: {run}");
    let lost: Vec<_> = live.iter().filter(|path| !path.exists()).collect();
    assert!(lost.is_empty(), "{lost:?}: {run}");
}

/// A run that was killed between commit and removal leaves a blob that no later run requests.
#[test]
fn the_spool_gives_up_what_is_in_the_store_or_forgotten_and_nothing_else() {
    needs!(root());
    let registry = registry_with_samples();
    let images = sample_images(b"no program");
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--image", &registry.tagged("zoo/compressions")];
    world.run(&args).exits(0);
    let blob = |image: &str, layer: usize| {
        let image: &Image = images.image(image);
        (
            image.layers[layer].digest.clone(),
            image.layers[layer].blob.to_vec(),
        )
    };
    let (stored, bytes) = blob("zoo/compressions", 0);
    let (wanted, wanted_bytes) = blob("zoo/links", 0);
    let dir = spool(&world);
    let in_the_store = dir.join(&stored);
    let begun_and_in_the_store = dir.join(format!("{}.partial", blob("zoo/compressions", 1).0));
    let forgotten = dir.join(format!("{}.partial", sha256(b"of long ago")));
    let forgotten_journal = dir.join(format!("{}.journal", sha256(b"of long ago")));
    let other = dir.join(format!("{}.partial", sha256(b"of another release")));
    let foreign = dir.join("notes.txt");
    let old_and_wanted = dir.join(format!("{wanted}.partial"));
    let arrange = || {
        make(&in_the_store, &bytes, HOUR);
        make(&begun_and_in_the_store, b"begun", HOUR);
        make(&forgotten, b"begun", 31 * DAY);
        make(&forgotten_journal, b"", 31 * DAY);
        make(&other, b"begun", 29 * DAY);
        make(&foreign, b"not ours", 300 * DAY);
        make(&old_and_wanted, &wanted_bytes[..100], 300 * DAY);
    };
    arrange();
    // An image that is unavailable now may need it.
    let missing = registry.tagged("never-pushed");
    world.run(&[&args[..], &["--image", &missing]].concat()).exits(8);
    for (path, is_kept) in [
        (&forgotten, true),
        (&old_and_wanted, true),
        (&other, true),
        (&in_the_store, false),
        (&begun_and_in_the_store, false),
    ] {
        assert_eq!(path.exists(), is_kept, "{}", path.display());
    }

    arrange();
    let links = registry.tagged("zoo/links");
    let both = [&args[..], &["--image", &links]].concat();
    world.plan(&both).exits(0);
    world.verify(&args).exits(0);
    assert!(
        in_the_store.exists() && forgotten.exists(),
        "lookers change nothing"
    );
    let run = world.run(&both).exits(0).says("removed 3 blobs of earlier runs");
    assert_eq!(run.total("bytesResumed"), 100, "{run}");
    for gone in [
        &in_the_store,
        &begun_and_in_the_store,
        &forgotten,
        &forgotten_journal,
        &old_and_wanted,
    ] {
        assert!(!gone.exists(), "{}: {run}", gone.display());
    }
    assert!(other.exists() && foreign.exists(), "{run}");
}

/// Each has a stage in the same store, and the second begins in the middle of the first.
#[test]
fn two_agents_with_spools_of_their_own_share_a_store() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let (spool_a, spool_b) = (world.out("spool-a"), world.out("spool-b"));
    let args = [
        "--image",
        &registry.tagged("zoo/compressions"),
        "--image",
        &registry.tagged("zoo/links"),
    ];
    let of = |spool: &Path| {
        [&args[..], &["--spool", spool.to_str().unwrap()]]
            .concat()
            .join("\n")
    };
    let slow = &sample_images(b"no program").image("zoo/compressions").layers[0]
        .digest
        .clone();
    registry.fault(Fault::on(slow).slow(100_000).times(1));
    let first = of(&spool_a);
    let first = world.start("run", &first.lines().collect::<Vec<_>>());
    let stages = || {
        let names = fs::read_dir(world.graph_root()).into_iter().flatten().flatten();
        names
            .filter(|name| name.file_name().to_string_lossy().contains("stage"))
            .count()
    };
    let began = std::time::Instant::now();
    while stages() == 0 {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = of(&spool_b);
    let second = world.run(&second.lines().collect::<Vec<_>>()).exits(0);
    let first = first.wait().exits(0);
    assert!(!second.stderr.contains("of a killed run"), "{second}");
    assert_eq!(
        inconsistencies(&world.graph_root()),
        Vec::<String>::new(),
        "{first}{second}"
    );
    for spool in [spool_a, spool_b] {
        assert_eq!(
            fs::read_dir(spool).unwrap().count(),
            2,
            "only the lock and the history"
        );
    }
    world.verify(&args).exits(0);
}

fn stages(world: &TestNode) -> Vec<PathBuf> {
    let entries = fs::read_dir(world.graph_root()).into_iter().flatten().flatten();
    let stages = entries.filter(|entry| {
        entry
            .file_name()
            .to_string_lossy()
            .starts_with(".spoke-precache-stage-")
    });
    stages.map(|entry| entry.path()).collect()
}

#[test]
fn no_stage_is_left_after_a_signal_or_a_deadline() {
    needs!(root());
    let registry = Registry::start();
    let files: String = (0..300)
        .map(|n| format!("file /f/{n} 0644 0:0 \"{n}\"\n"))
        .collect();
    let text =
        format!("image two oci\nlayer gzip\n{files}layer gzip\nfile /slow 0644 0:0 random=300000 seed=1\n");
    let images = Images::of(&text, &[]);
    registry.push_all(&images);
    let image = images.image("two");
    registry.fault(Fault::on(&image.layers[1].digest).stall(1000));
    let args = ["--image", &registry.tagged("two")];
    for (signal, code) in [(Some(Signal::INT), 130), (Some(Signal::TERM), 143), (None, 124)] {
        let world = TestNode::trusting(&[registry.host()]);
        let deadline = if signal.is_none() {
            &["--deadline", "5s"][..]
        } else {
            &[]
        };
        let mut run = world.start("run", &[&args[..], deadline].concat());
        let has_last = |stage: &PathBuf| {
            let layers = fs::read_dir(stage).into_iter().flatten().flatten();
            layers
                .map(|layer| layer.path())
                .any(|layer| layer.join("diff/f/299").exists())
        };
        let is_staged = || stages(&world).iter().any(has_last);
        while !is_staged() && !run.has_ended() {
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(signal) = signal {
            run.signal(signal);
        }
        let run = run.wait().exits(code);
        assert_eq!(stages(&world), Vec::<PathBuf>::new(), "{run}");
    }
}

#[test]
fn verify_and_plan_report_a_stage_of_a_killed_run() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--image", &registry.tagged("zoo/base")];
    world.run(&args).exits(0);
    let (dead, live) = [
        ".spoke-precache-stage-00000000deadbeef",
        ".spoke-precache-stage-0000000011111111",
    ]
    .map(|name| world.graph_root().join(name))
    .into();
    make(&dead.join("0-aa/diff/file"), &[1; 5 << 20], HOUR);
    make(&live.join("lock"), b"", HOUR);
    let lock = File::options()
        .read(true)
        .write(true)
        .open(live.join("lock"))
        .unwrap();
    rustix::fs::fcntl_lock(lock.as_fd(), FlockOperation::LockExclusive).unwrap();
    for verb in ["verify", "plan"] {
        let run = world.start(verb, &args).wait().exits(0);
        let run = run.says(&format!("`{}` takes 5.0 MiB", dead.display()));
        assert!(!run.stderr.contains(live.to_str().unwrap()), "{run}");
        assert!(dead.exists(), "the stage is removed");
        assert!(!dead.join("lock").exists(), "the stage has a lock");
    }
    world.run(&args).exits(0);
    assert_eq!(stages(&world), [live]);
}
