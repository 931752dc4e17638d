//! Pulls over a link with a rate, a delay, loss and outages, in network namespaces.

use std::io::Write as _;
use std::net::TcpListener;
use std::time::Duration;

use crate::compare::inconsistencies;
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::link::{Link, Quality};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::test_node::TestNode;

/// A packet of 1500 bytes carries 1448 of TCP's (timestamps are on), and TLS is not used here.
const HEADERS: f64 = 1500.0 / 1448.0;
/// Manifests, configs, heads of answers, handshakes, and acknowledgements of requests.
const SLACK: u64 = 256 << 10;
const MBIT: u64 = 1_000_000;
/// After so long a silence the product gives a connection up.
const IDLE: Duration = Duration::from_secs(30);
/// How long `tbf` keeps a packet at most.
const QUEUE: Duration = Duration::from_millis(100);

/// What may have arrived behind a lost packet, and goes with connections that are given up: all that was under way.
fn behind_holes(quality: Quality, outage: Duration) -> u64 {
    if outage < IDLE {
        return 0;
    }
    let under_way = 2 * quality.delay + QUEUE;
    (quality.rate as f64 / 8.0 * under_way.as_secs_f64()) as u64
}

/// Pulls `megabytes` over a link of that quality that is down for `outage` in the middle.
fn pull(quality: Quality, megabytes: u64, outage: Duration) {
    let link = Link::new(quality).unwrap();
    let listener = link
        .server
        .within(|| TcpListener::bind((Link::SERVER, 5000)).unwrap());
    let registry = Registry::on(listener);
    let images: Vec<Image> = (0..3)
        .map(|number| {
            let layers = (0..2).map(|layer| {
                let seed = 10 * number + layer;
                let bytes = megabytes * 1_000_000 / 6;
                let text = format!("file /{seed} 0644 0:0 random={bytes} seed={seed}");
                Layer::of(&text, Compression::Gzip)
            });
            let name = format!("image-{number}");
            Image::build(
                &name,
                Format::Docker,
                node_architecture(),
                layers.collect(),
                |_, _| {},
            )
        })
        .collect();
    for image in &images {
        registry.push(&image.name, Some("latest"), image);
    }
    let world = TestNode::trusting(&[registry.host()]);
    let names: Vec<String> = images.iter().map(|image| registry.tagged(&image.name)).collect();
    world.spec(&[("additionalImages", &names.join("\n"))]);
    let layers = images.iter().flat_map(|image| &image.layers);
    let unique: u64 = layers.map(|layer| layer.size).sum();

    let mut run = link.client.within(|| world.start("run", &[]));
    while link.received().unwrap() < unique / 2 && !run.has_ended() {
        std::thread::sleep(Duration::from_millis(10));
    }
    link.cut();
    std::thread::sleep(outage);
    link.end_faults();
    let run = run.wait().exits(0);
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
    let received = link.received().unwrap();
    let allowed = (unique as f64 * 1.02 * HEADERS) as u64 + SLACK + behind_holes(quality, outage);
    assert!(
        received <= allowed,
        "{received} bytes arrived, {unique} are wanted and {allowed} allowed: {quality:?}: {run}"
    );
    // Not `eprintln!`: the test runner hides what passing tests print.
    let _ = writeln!(
        std::io::stderr(),
        "{quality:?}, down for {outage:?}: {received} bytes arrived for {unique} of layers, in {:?}",
        run.took
    );
}

#[test]
fn an_outage_in_the_middle_costs_time_and_nothing_else() {
    needs!(root(), links());
    pull(
        Quality {
            rate: 20 * MBIT,
            delay: Duration::from_millis(20),
            loss: 0.0001,
        },
        5,
        Duration::from_secs(2),
    );
}

/// Among them outages that are longer than the idle time, after which connections are given up.
#[test]
fn links_of_all_kinds_transfer_each_byte_once() {
    needs!(root(), links());
    if !long() {
        return crate::needs::leave_out("it takes minutes; SPOKE_LONG=1 asks for it");
    }
    for rate in [20 * MBIT, 100 * MBIT] {
        for delay in [40, 150].map(Duration::from_millis) {
            for (loss, outage) in [(0.0001, 5), (0.01, 5), (0.0001, 45)] {
                let outage = Duration::from_secs(outage);
                pull(Quality { rate, delay, loss }, rate / MBIT, outage);
            }
        }
    }
}
