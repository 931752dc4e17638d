//! Gives the product deltas that are wrong, hostile, or do not fit the node: each costs at most its bounds, the report says
//! why it was not used, and the image is the right one.

use std::fs;

use super::by_hand::{INFLATED, Op, STANDARD, delta};
use super::published::Artifact;
use super::{APP, Component, Scene, differences};
use crate::compare::inconsistencies;
use crate::image::layer::tar_of;
use crate::image::{Compression, Format, Image, node_architecture};
use crate::needs::needs;
use crate::registry::faults::Fault;
use crate::test_node::Run;

/// The image is there, made of its whole blob, and the spool is empty.
#[track_caller]
fn fell_back(scene: &Scene, run: Run, reason: &str) -> Run {
    let run = run.exits(0);
    let said = run.report["images"][0]["fallbackReason"]
        .as_str()
        .unwrap_or_default();
    assert!(said.contains(reason), "not `{reason}`: {said}\n{run}");
    assert_eq!(
        scene.requests(&scene.component.blob().digest),
        1,
        "{reason}: {run}"
    );
    let wrong = inconsistencies(&scene.node.graph_root());
    assert!(wrong.is_empty(), "{reason}:\n{}", wrong.join("\n"));
    let spool = scene.node.graph_root().with_file_name("spoke-precache");
    let left = fs::read_dir(spool)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left
        .filter(|name| name != "lock" && name != "history.json")
        .collect();
    assert!(left.is_empty(), "{reason}: {left:?}");
    run
}

#[test]
fn a_delta_that_cannot_be_used_is_replaced_by_the_whole_blob() {
    needs!(root(), stock());
    let component = Component::new(Compression::Gzip);
    let right = component.ops();
    let with = |position: usize, op: Op| {
        let mut ops = right.clone();
        ops[position] = op;
        ops
    };
    let cut = |mut delta: Vec<u8>| {
        delta.truncate(delta.len() - 10);
        delta
    };
    // A zstd frame with a window of a gibibyte.
    let window = [STANDARD, &[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa0, 0x01, 0x00, 0x00]].concat();
    // The tar begins with a file of a tebibyte, of which zeros or copies come without end.
    let file = |rest: &[Op]| {
        let header = tar_of("file /endless 0644 0:0 size=1099511627776\neof 0", &[]);
        [&[Op::Data(header), Op::Open(APP.into())], rest].concat()
    };
    let zeros = file(&vec![Op::Data(vec![0; 1 << 20]); 100]);
    let copies = file(&vec![[Op::Seek(0), Op::Copy(300_000)]; 20_000].concat());
    let (codec, zlib) = (Op::Any(6, 2, vec![250, 10]), Op::Any(6, 2, vec![6, 10]));
    let ranges = vec![Op::Any(
        5,
        5 + APP.len() as u64,
        [&[0, 0, 100, 200, 1], APP.as_bytes()].concat(),
    )];
    for (name, delta, reason) in [
        (
            "missing",
            delta(STANDARD, &with(1, Op::Open("bin/none".into()))),
            "no such regular file",
        ),
        (
            "escaping",
            delta(STANDARD, &with(1, Op::Open("../../../etc/passwd".into()))),
            "the path of a source",
        ),
        (
            "link",
            delta(STANDARD, &with(1, Op::Open("d".into()))),
            "no such regular file",
        ),
        (
            "shorter",
            delta(STANDARD, &with(4, Op::Seek(250_000))),
            "ends before byte",
        ),
        (
            "other bytes",
            delta(STANDARD, &with(4, Op::Seek(100))),
            "does not match",
        ),
        ("nothing", delta(STANDARD, &[]), "does not match"),
        ("header", delta(b"tardf9\n\0", &right), "does not start with"),
        ("no zstd", [STANDARD, b"no zstd at all"].concat(), "zstd"),
        ("window", window, "zstd"),
        ("cut", cut(delta(STANDARD, &right)), "cut off"),
        (
            "operation",
            delta(STANDARD, &with(4, Op::Any(99, 0, Vec::new()))),
            "unknown operation",
        ),
        (
            "not standard",
            delta(STANDARD, &with(1, Op::OpenIn(0, APP.into()))),
            "unknown operation",
        ),
        (
            "huge",
            delta(STANDARD, &with(4, Op::Seek(u64::MAX))),
            "exceeds 63 bits",
        ),
        (
            "no source",
            delta(STANDARD, &with(1, Op::Seek(0))),
            "opens no source",
        ),
        ("zeros", delta(STANDARD, &zeros), "exceeds the limit"),
        ("copies", delta(STANDARD, &copies), "exceeds the limit"),
    ] {
        let artifact = Artifact::standard(&component.blob().digest, delta);
        let scene = Scene::new(Component::new(Compression::Gzip), std::slice::from_ref(&artifact));
        let run = scene.node.run(&["--image", &scene.by_digest()]);
        let run = fell_back(&scene, run, reason);
        assert_eq!(scene.requests(&artifact.digest()), 1, "{name}: {run}");
        assert!(run.memory < 200 << 20, "{name}: {run}");
    }
    for (name, delta, reason) in [
        ("codec", delta(INFLATED, &[codec]), "unknown codec"),
        ("zlib", delta(INFLATED, &[zlib]), "zlib stream"),
        ("range", delta(INFLATED, &ranges), "compressed content"),
        (
            "image",
            delta(INFLATED, &with(1, Op::OpenIn(7, APP.into()))),
            "old image number 7",
        ),
    ] {
        let artifact = Artifact::ours(&component.blob().digest, delta);
        let scene = Scene::new(Component::new(Compression::Gzip), &[artifact]);
        let run = scene.node.run(&["--image", &scene.by_digest()]);
        fell_back(&scene, run, reason);
        let _ = name;
    }
}

#[test]
fn after_our_format_the_standard_one_is_tried() {
    needs!(root(), stock());
    let component = Component::new(Compression::Zstd);
    let wrong = delta(INFLATED, &component.ops()[..1]);
    let (ours, standard) = (
        Artifact::ours(&component.blob().digest, wrong),
        component.artifact(),
    );
    let scene = Scene::new(component, &[ours.clone(), standard.clone()]);
    let run = scene.node.run(&["--image", &scene.by_digest()]).exits(0);
    assert_eq!(scene.requests(&scene.component.blob().digest), 0, "{run}");
    assert_eq!(
        [&ours, &standard].map(|artifact| scene.requests(&artifact.digest())),
        [1, 1],
        "{run}"
    );
    let theirs = scene.theirs(&scene.by_digest());
    let differences = differences(&scene.node, &theirs);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn a_delta_that_no_registry_sends_is_replaced_by_the_whole_blob() {
    needs!(root(), stock());
    for (is_sent, reason) in [(false, "404"), (true, "digest")] {
        let scene = Scene::usual();
        let delta = Fault::on(&scene.component.artifact().digest());
        scene.registry.fault(match is_sent {
            true => delta.flip(100),
            false => delta.status(404),
        });
        let run = scene.node.run(&["--image", &scene.by_digest()]);
        fell_back(&scene, run, reason);
    }
}

/// The kubelet removes the old image after the plan was made.
#[test]
fn an_old_image_that_is_removed_meanwhile_costs_the_delta_alone() {
    needs!(root(), stock());
    let scene = Scene::usual();
    let delta = scene.component.artifact().digest();
    // The base layer is in use by another image, so it stays.
    let base = vec![scene.component.new.layers[0].clone()];
    let keeper = Image::build("keeper", Format::Oci, node_architecture(), base, |_, _| {});
    scene.registry.push("keeper", Some("latest"), &keeper);
    scene.node.podman_pull(&scene.registry.tagged("keeper"));
    scene.registry.fault(Fault::on(&delta).slow(100).times(1));
    let running = scene.node.start("run", &["--image", &scene.by_digest()]);
    while scene.requests(&delta) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let old = format!("{}/component:old", scene.registry.host());
    scene.node.podman(&["rmi", &old]).ok();
    fell_back(&scene, running.wait(), "no such regular file");
}
