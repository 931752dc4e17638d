//! Tests a registry and a link that fail for a while: the run continues, and what it stores is correct.

mod dns;
mod docker_registry;
mod random_faults;
mod slow_link;

use std::time::Duration;

use crate::compare::inconsistencies;
use crate::image::samples::sample_images;
use crate::image::{Compression, Format, Layer};
use crate::image::{Image, node_architecture};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

/// One layer large enough to be cut several times.
pub(super) fn image() -> Image {
    let layer = Layer::of("file /data 0644 0:0 random=1000000 seed=1", Compression::Gzip);
    Image::build(
        "image",
        Format::Docker,
        node_architecture(),
        vec![layer],
        |_, _| {},
    )
}

#[test]
fn passing_faults_cost_time_and_nothing_else() {
    needs!(root());
    for fault in [
        Fault::on("/manifests/").times(2).status(503),
        Fault::on("/manifests/")
            .times(1)
            .status(429)
            .header("Retry-After", "1"),
        Fault::on("/blobs/").times(2).status(500),
        Fault::on("/blobs/")
            .times(2)
            .status(429)
            .header("Retry-After", "1"),
        Fault::on("/manifests/").times(1).cut(100),
        Fault::on("/blobs/").times(1).cut(0),
        Fault::on("/blobs/").times(4).cut(200_000),
        Fault::on("/blobs/").after(1).times(1).flip(500_000),
        Fault::on("/blobs/").times(1).flip(100),
    ] {
        let registry = Registry::start();
        registry.push("image", Some("latest"), &image());
        registry.fault(fault.clone());
        let world = TestNode::trusting(&[registry.host()]);
        let run = world.run(&["--image", &registry.tagged("image")]);
        assert_eq!(run.code, 0, "{fault:?}: {run}\n{:#?}", registry.log());
        assert_eq!(
            inconsistencies(&world.graph_root()),
            Vec::<String>::new(),
            "{fault:?}"
        );
    }
}

#[test]
fn retry_after_is_obeyed() {
    needs!(root());
    let registry = Registry::start();
    registry.push("image", Some("latest"), &image());
    registry.fault(
        Fault::on("/manifests/")
            .times(1)
            .status(429)
            .header("Retry-After", "2"),
    );
    TestNode::trusting(&[registry.host()])
        .run(&["--image", &registry.tagged("image")])
        .exits(0);
    let log = registry.log();
    let refused = log.iter().position(|access| access.status == 429).unwrap();
    let waited = log[refused + 1].at - log[refused].at;
    assert!(waited >= Duration::from_secs(2), "it waited {waited:?}");
}

/// More blobs wait for it than are fetched at a time, and all of them come first.
#[test]
fn a_registry_that_wants_to_be_left_alone_holds_up_no_other() {
    needs!(root());
    let (quiet, other) = (Registry::start(), Registry::start());
    let layer = |seed| {
        let text = format!("file /data{seed} 0644 0:0 random=2000000 seed={seed}");
        Layer::of(&text, Compression::Gzip)
    };
    let large = Image::build(
        "large",
        Format::Docker,
        node_architecture(),
        (2..12).map(layer).collect(),
        |_, _| {},
    );
    quiet.push("large", Some("latest"), &large);
    for layer in &large.layers {
        quiet.fault(Fault::on(&layer.digest).status(503).header("Retry-After", "600"));
    }
    other.push("image", Some("latest"), &image());
    let world = TestNode::trusting(&[quiet.host(), other.host()]);
    let (large, image) = (quiet.tagged("large"), other.tagged("image"));
    let run = world.run(&[
        "--image",
        &large,
        "--image",
        &image,
        "--max-downloads",
        "1",
        "--max-unpacks",
        "1",
        "--deadline",
        "15s",
    ]);
    assert_eq!(run.images("pulled"), [image.as_str()], "{run}");
    assert_eq!(run.code, 124, "{run}");
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
}

/// A server that cuts, and answers the resuming request in every wrong way.
#[test]
fn resuming_survives_servers_that_do_ranges_wrongly() {
    needs!(root());
    for wrong in [
        Fault::on("/blobs/").times(1).ignore_range(),
        Fault::on("/blobs/").times(1).shift_range(7),
        Fault::on("/blobs/").times(1).refuse_range(),
        Fault::on("/blobs/")
            .times(1)
            .header("Content-Range", "bytes 0-9/10"),
    ] {
        let registry = Registry::start();
        let image = image();
        registry.push("image", Some("latest"), &image);
        let layer = &image.layers[0].digest;
        registry.fault(Fault::on(layer).times(1).cut(300_000));
        registry.fault(wrong.clone());
        let world = TestNode::trusting(&[registry.host()]);
        let run = world.run(&["--image", &registry.tagged("image")]);
        assert_eq!(run.code, 0, "{wrong:?}: {run}\n{:#?}", registry.log());
        assert_eq!(
            inconsistencies(&world.graph_root()),
            Vec::<String>::new(),
            "{wrong:?}"
        );
    }
}

#[test]
fn blobs_are_downloaded_from_another_host() {
    needs!(root());
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    let cdn = registry.twin();
    registry.fault(Fault::on("/blobs/").redirect(&cdn.host()));
    let world = TestNode::trusting(&[registry.host()]);
    world
        .run(&["--image", &registry.tagged("zoo/compressions")])
        .exits(0);
    assert!(!cdn.log().is_empty());
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
}

#[test]
fn lasting_faults_end_a_run_when_nothing_moves() {
    needs!(root());
    for fault in [
        Fault::on("/blobs/").status(503),
        Fault::on("/manifests/").status(500),
        Fault::on("/blobs/").cut(0),
    ] {
        let registry = Registry::start();
        registry.push("image", Some("latest"), &image());
        registry.fault(fault.clone());
        let world = TestNode::trusting(&[registry.host()]);
        let run = world.run(&["--image", &registry.tagged("image"), "--give-up-after", "2s"]);
        assert_eq!(run.code, 1, "{fault:?}: {run}");
        assert!(run.took < Duration::from_secs(30), "{fault:?}: {run}");
        assert_eq!(
            inconsistencies(&world.graph_root()),
            Vec::<String>::new(),
            "{fault:?}"
        );
    }
}

#[test]
fn a_stalled_blob_is_asked_for_again() {
    needs!(root());
    if !crate::needs::long() {
        return crate::needs::leave_out("it takes minutes; SPOKE_LONG=1 asks for it");
    }
    let registry = Registry::start();
    registry.push("image", Some("latest"), &image());
    registry.fault(Fault::on("/blobs/").after(1).times(1).stall(100_000));
    let world = TestNode::trusting(&[registry.host()]);
    world.run(&["--image", &registry.tagged("image")]).exits(0);
}
