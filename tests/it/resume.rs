//! Tests that no byte is downloaded twice: after kills, after a reboot that loses unsynced data, after a wiped store.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::compare::inconsistencies;
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::{Running, TestNode};

const MIB: u64 = 1 << 20;

/// What a kill may cost: bytes between the registry and the page cache.
const PER_KILL: u64 = 4 * MIB;

/// The link of the stories, in bytes a second: 10 pieces of 64 KiB.
const SLOW: u64 = 640 << 10;

/// An image of layers of so many MiB each, which do not compress.
fn image(name: &str, layers: &[u64]) -> Image {
    let layers = layers.iter().enumerate().map(|(number, mib)| {
        let text = format!("file /data{number} 0644 0:0 random={} seed={number}", mib * MIB);
        Layer::of(&text, Compression::None)
    });
    Image::build(
        name,
        Format::Oci,
        node_architecture(),
        layers.collect(),
        |_, _| {},
    )
}

fn unique_bytes(image: &Image) -> u64 {
    image.layers.iter().map(|layer| layer.blob.len() as u64).sum()
}

/// Bytes of layers that the registry sent.
fn sent(registry: &Registry) -> u64 {
    registry.layer_requests().iter().map(|access| access.sent()).sum()
}

fn spool(world: &TestNode) -> PathBuf {
    world.host().join("var/lib/containers/spoke-precache")
}

/// The names in the spool, without the lock and the history, and how long the files are.
fn spooled(world: &TestNode) -> Vec<(String, u64)> {
    let items = fs::read_dir(spool(world)).into_iter().flatten().flatten();
    let mut files: Vec<_> = items
        .map(|item| (item.file_name().to_string_lossy().into_owned(), item.path()))
        .filter(|(name, _)| name != "lock" && name != "history.json")
        .map(|(name, path)| (name, fs::metadata(path).map_or(0, |metadata| metadata.len())))
        .collect();
    files.sort();
    files
}

/// Of blobs, whole or begun.
fn spooled_bytes(world: &TestNode) -> u64 {
    let files = spooled(world).into_iter();
    let blobs = files.filter(|(name, _)| !name.ends_with(".journal"));
    blobs.map(|(_, bytes)| bytes).sum()
}

fn partial_bytes(world: &TestNode) -> u64 {
    let files = spooled(world).into_iter();
    let partials = files.filter(|(name, _)| name.ends_with(".partial"));
    partials.map(|(_, bytes)| bytes).sum()
}

/// Lets it run until that is so.
#[track_caller]
fn until(running: &mut Running, what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(!running.has_ended(), "it ended");
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it does not come so far"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn sound(world: &TestNode) {
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
    assert_eq!(spooled(world), [], "the images are in");
}

#[test]
fn kills_in_the_middle_of_blobs_cost_next_to_nothing() {
    needs!(root());
    let (kills, layers): (u64, &[u64]) = match crate::needs::long() {
        true => (40, &[40, 24, 12, 5, 3, 1]),
        false => (4, &[5, 3, 1]),
    };
    let (registry, image) = (Registry::start(), image("large", layers));
    registry.push("large", Some("latest"), &image);
    let unique = unique_bytes(&image);
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--image", &registry.tagged("large")];
    registry.fault(Fault::on("/blobs/").slow(SLOW));
    for _ in 0..kills {
        let before = spooled_bytes(&world);
        let mut run = world.start("run", &args);
        until(&mut run, || spooled_bytes(&world) > before + MIB);
        run.signal(Signal::KILL);
        assert_eq!(run.wait().code, 1009);
    }
    let there = spooled_bytes(&world);
    registry.end_faults();
    let run = world.run(&args).exits(0);
    let wire = sent(&registry);
    let bound = unique * 102 / 100 + PER_KILL * kills;
    assert!(wire <= bound, "{wire} of {bound}: {run}");
    assert_eq!(run.total("bytesResumed"), there, "{run}");
    assert_eq!(run.total("bytesFetched"), unique - there, "{run}");
    sound(&world);
}

/// The same for an orderly end: the bytes that were received before the signal are there for the next run.
#[test]
fn a_stopped_run_keeps_all_downloaded_bytes() {
    needs!(root());
    let (registry, image) = (Registry::start(), image("large", &[6]));
    registry.push("large", Some("latest"), &image);
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--image", &registry.tagged("large")];
    registry.fault(Fault::on("/blobs/").stall(3 * MIB));
    let mut run = world.start("run", &args);
    until(&mut run, || partial_bytes(&world) == 3 * MIB);
    run.signal(Signal::TERM);
    let ended = run.wait().exits(143);
    assert_eq!(ended.total("bytesFetched"), 3 * MIB, "{ended}");
    // The node is shut down and comes up again.
    fs::write(spool(&world).join("lock"), "another boot\n").unwrap();
    registry.end_faults();
    let run = world.run(&args).exits(0);
    assert_eq!(run.total("bytesResumed"), 3 * MIB, "{run}");
    assert_eq!(sent(&registry), unique_bytes(&image));
    sound(&world);
}

/// What the disk had not been given yet is zeros afterwards, and the kernel names another boot.
#[test]
fn a_power_loss_costs_what_came_since_the_last_record() {
    needs!(root());
    let (registry, image) = (Registry::start(), image("large", &[12]));
    registry.push("large", Some("latest"), &image);
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--image", &registry.tagged("large")];
    let blob = spool(&world).join(&image.layers[0].digest);
    let journal = blob.with_added_extension("journal");
    let partial = blob.with_added_extension("partial");
    registry.fault(Fault::on("/blobs/").slow(SLOW));
    let mut run = world.start("run", &args);
    until(&mut run, || {
        fs::metadata(&journal).is_ok_and(|file| file.len() > 0)
    });
    run.signal(Signal::KILL);
    run.wait();
    let text = fs::read_to_string(&journal).unwrap();
    let durable: u64 = text.lines().last().unwrap()[..20].parse().unwrap();
    let length = fs::metadata(&partial).unwrap().len();
    assert!(durable >= MIB && durable <= length, "{durable} of {length}");
    let file = fs::OpenOptions::new().write(true).open(&partial).unwrap();
    file.set_len(durable).unwrap();
    file.set_len(length + MIB).unwrap();
    fs::write(spool(&world).join("lock"), "another boot\n").unwrap();

    registry.clear_log();
    registry.end_faults();
    let run = world.run(&args).exits(0);
    assert_eq!(run.total("bytesResumed"), durable, "{run}");
    let left = unique_bytes(&image) - durable;
    assert_eq!(
        run.total("bytesPlanned"),
        left,
        "cut before it was planned: {run}"
    );
    assert_eq!(sent(&registry), left);
    sound(&world);
}

/// As CRI-O does after a reboot of a node that was not shut down in order.
#[test]
fn a_wiped_graph_root_takes_no_fetched_bytes_along() {
    needs!(root());
    let (registry, image) = (Registry::start(), image("large", &[5, 2]));
    registry.push("large", Some("latest"), &image);
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--image", &registry.tagged("large")];
    registry.fault(Fault::on(&image.layers[0].digest).stall(3 * MIB));
    let mut run = world.start("run", &args);
    // The small layer is whole, and waits for the large one.
    let whole = spool(&world).join(&image.layers[1].digest);
    until(&mut run, || partial_bytes(&world) == 3 * MIB && whole.exists());
    run.signal(Signal::KILL);
    run.wait();
    fs::remove_dir_all(world.graph_root()).unwrap();

    let there = 3 * MIB + image.layers[1].blob.len() as u64;
    registry.end_faults();
    let run = world.run(&args).exits(0);
    assert_eq!(run.total("bytesResumed"), there, "{run}");
    assert_eq!(sent(&registry), unique_bytes(&image));
    sound(&world);
}
