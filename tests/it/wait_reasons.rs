//! Tests that a run reports what it waits for, and, if it is cut off, the last reason of each unfinished image.

use std::net::TcpListener;
use std::time::Duration;

use rustix::process::Signal;

use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::{Run, TestNode};

/// The reason of each pending image, in the order of the report.
fn reasons(run: &Run) -> Vec<&str> {
    let images = run.report["images"].as_array().unwrap();
    let pending = images.iter().filter(|image| image["state"] == "pending");
    pending
        .map(|image| image["reason"].as_str().unwrap_or("none"))
        .collect()
}

/// The kernel accepts connections, and no process answers.
fn silent() -> (TcpListener, String) {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = silent.local_addr().unwrap().to_string();
    (silent, host)
}

#[test]
fn a_silent_registry_gives_a_log_line_within_ten_seconds_and_a_reason_at_the_end() {
    needs!(root());
    let (_silent, host) = silent();
    let image = format!("{host}/a:1");
    let world = TestNode::trusting(std::slice::from_ref(&host));
    let run = world.start("run", &["--image", &image]);
    while !run.stderr().contains("no answer from") {
        assert!(!run.has_run_for(Duration::from_secs(60)), "{}", run.stderr());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(
        run.stderr().contains(&format!("no answer from `{host}` for ")),
        "{}",
        run.stderr()
    );
    run.signal(Signal::TERM);
    let run = run.wait().exits(143);
    assert!(reasons(&run)[0].contains("no answer from"), "{run}");
    assert!(
        run.stdout.contains("pending: ") && run.stdout.contains("no answer from"),
        "{run}"
    );
}

#[test]
fn the_last_reason_of_each_open_image_is_in_report_and_summary() {
    needs!(root());
    let (_silent, host) = silent();
    let refused = {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().to_string()
    };
    let world = TestNode::trusting(&[host.clone(), refused.clone()]);
    // The second waits behind the first.
    let images = [
        format!("{host}/a:1"),
        format!("{host}/b:1"),
        format!("{refused}/a:1"),
    ];
    let images: Vec<&str> = images.iter().flat_map(|it| ["--image", it]).collect();
    let run = world
        .run(&[&images[..], &["--deadline", "8s"]].concat())
        .exits(124);
    let reasons = reasons(&run);
    assert_eq!(reasons.len(), 3, "{run}");
    for (reason, expected) in reasons
        .iter()
        .zip(["no answer from", "no answer from", "refused"])
    {
        assert!(reason.contains(expected), "{reason}: {run}");
        assert!(run.stdout.contains(reason), "{run}");
    }
}

#[test]
fn an_unavailable_blob_is_the_reason_of_its_image() {
    needs!(root());
    let registry = Registry::start();
    let layer = Layer::of("file /a 0644 0:0 random=100000 seed=1", Compression::Gzip);
    let image = Image::build("busy", Format::Oci, node_architecture(), vec![layer], |_, _| {});
    registry.push("busy", Some("latest"), &image);
    registry.fault(Fault::on(&image.layers[0].digest).status(503));
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--image", &registry.tagged("busy"), "--deadline", "4s"];
    let run = world.run(&args).exits(124);
    assert!(reasons(&run)[0].contains("503"), "{run}");
    registry.end_faults();
    let run = world.run(&args).exits(0);
    assert!(reasons(&run).is_empty(), "{run}");
}

/// The real thing: a mirror of registries.conf that sends ten bytes a second, and its origin.
#[test]
fn a_trickling_mirror_of_registries_conf_is_left_for_the_origin() {
    needs!(root());
    let origin = Registry::start();
    let layers = (0..3).map(|seed| {
        let text = format!("file /{seed} 0644 0:0 random=6000000 seed={seed}");
        Layer::of(&text, Compression::Gzip)
    });
    let image = Image::build(
        "image",
        Format::Oci,
        node_architecture(),
        layers.collect(),
        |_, _| {},
    );
    origin.push("image", Some("latest"), &image);
    let mirror = origin.twin();
    for layer in &image.layers {
        mirror.fault(Fault::on(&layer.digest).slow(10));
    }
    let world = TestNode::trusting(&[]);
    world.write(
        "etc/containers/registries.conf",
        &format!(
            "[[registry]]\nlocation = '{}'\ninsecure = true\n[[registry.mirror]]\nlocation = '{}'\ninsecure = true\n",
            origin.host(),
            mirror.host()
        ),
    );
    let args = ["--image", &origin.tagged("image"), "--deadline", "90s"];
    let run = world.run(&args).exits(0).says("going on with");
    let size: u64 = image.layers.iter().map(|layer| layer.size).sum();
    assert_eq!(run.total("bytesFetched"), size, "nothing twice: {run}");
    assert!(!mirror.layer_requests().is_empty(), "it comes first: {run}");
}
