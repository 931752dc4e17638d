//! Plans a release in a distant registry: the number of requests, and the time.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use super::certificates::Authority;
use super::servers::Program;
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::link::{Link, Quality};
use crate::needs::{leave_out, long, needs, note};
use crate::registry::{Auth, Registry};
use crate::test_node::TestNode;

/// Images of a large release with its operators.
const IMAGES: usize = 200;
/// Labels of an image of a release, in bytes.
const LABELS: usize = 6_000;
/// Where all images of a release are.
const REPOSITORY: &str = "release/art";

/// The names at `host` of [`IMAGES`] images with a base that all have and a layer of their own of `own` bytes.
fn release(registry: &Registry, host: &str, own: usize) -> String {
    let base = Layer::of("file /base random=200000", Compression::Gzip);
    let names = (0..IMAGES).map(|seed| {
        let own = Layer::of(&format!("file /own random={own} seed={seed}"), Compression::Gzip);
        let layers = vec![base.clone(), own];
        let image = Image::build(
            REPOSITORY,
            Format::Docker,
            node_architecture(),
            layers,
            |config, _| {
                config["config"]["Labels"]["description"] = "x".repeat(LABELS).into();
            },
        );
        registry.push(REPOSITORY, None, &image);
        format!("{host}/{REPOSITORY}@{}", image.digest())
    });
    names.collect::<Vec<_>>().join("\n")
}

/// How many of the requests so far were for this.
fn asked(registry: &Registry, part: &str, status: u16) -> usize {
    let log = registry.log();
    let of_it = log
        .iter()
        .filter(|access| access.path.contains(part) && access.status == status);
    of_it.count()
}

#[test]
fn a_plan_asks_for_a_manifest_and_a_config_of_each_image_and_no_more() {
    needs!(root());
    let registry = Registry::start();
    registry.require(Auth::anonymous_bearer());
    // Too small to be asked how long they are; the base is not.
    let names = release(&registry, &registry.host(), 100);
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[("additionalImages", &names)]);
    world.plan(&[]).exits(0);
    assert_eq!(asked(&registry, "/token", 200), 1);
    assert_eq!(asked(&registry, "/manifests/", 200), IMAGES);
    assert_eq!(asked(&registry, "/blobs/", 200), IMAGES, "configs");
    assert_eq!(asked(&registry, "/blobs/", 206), 1, "the base's length");
    assert_eq!(asked(&registry, "/v2/", 401), 1, "the first of all");
    assert_eq!(registry.log().len(), 2 * IMAGES + 3);
}

/// A plan of a release over a link with 150 ms there and back.
fn over_a_long_link(own: usize, is_tls: bool) {
    let quality = Quality {
        rate: 20_000_000,
        delay: Duration::from_millis(75),
        loss: 0.0,
    };
    let link = Link::new(quality).unwrap();
    let address = SocketAddr::from((Link::SERVER, 5000));
    let listen = |address| link.server.within(|| TcpListener::bind(address).unwrap());
    let plain = match is_tls {
        true => SocketAddr::from((Ipv4Addr::LOCALHOST, 5001)),
        false => address,
    };
    let registry = Registry::on(listen(plain));
    let names = release(&registry, &address.to_string(), own);
    let authority = Authority::new("site");
    let _nginx = is_tls.then(|| {
        let certificate = authority.certificate("registry", &format!("IP:{}", Link::SERVER));
        Program::nginx(&link.server, address, &certificate, &plain.to_string(), None)
    });
    let insecure = (!is_tls).then(|| address.to_string());
    let world = TestNode::trusting(insecure.as_slice());
    world.write("etc/ssl/certs/ca-certificates.crt", &authority.pem());
    if !is_tls {
        registry.require(Auth::anonymous_bearer());
    }
    world.spec(&[("additionalImages", &names)]);
    let before = link.received().unwrap();
    let plan = link.client.within(|| world.start("plan", &[])).wait().exits(0);
    note(&format!(
        "{} images, {} by {}: {:.1} s, {} requests, {} kB received",
        IMAGES,
        if own > 1_000 {
            "each with a length to ask for"
        } else {
            "none with a length to ask for"
        },
        if is_tls {
            "HTTP/2 and TLS"
        } else {
            "HTTP/1.1 with a token"
        },
        plan.took.as_secs_f64(),
        registry.log().len(),
        (link.received().unwrap() - before) / 1000
    ));
}

#[test]
fn a_plan_over_a_long_link_takes_seconds() {
    needs!(root(), links(), nginx());
    if !long() {
        return leave_out("it is a measurement; SPOKE_LONG=1 asks for it");
    }
    for (own, is_tls) in [(100, false), (70_000, false), (100, true), (70_000, true)] {
        over_a_long_link(own, is_tls);
    }
}

/// A single blob that is larger than all else, over a link that loses packets: the rate at which it comes, with each way in
/// which the registry's kernel may judge what the link bears.
fn alone_over_a_bad_link(control: &str, megabytes: usize) {
    let quality = Quality {
        rate: 100_000_000,
        delay: Duration::from_millis(75),
        loss: 0.0001,
    };
    let link = Link::new(quality).unwrap();
    let registry = link.server.within(|| {
        // That of the namespace that this thread is in.
        std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", control).unwrap();
        Registry::on(TcpListener::bind((Link::SERVER, 5000)).unwrap())
    });
    let text = format!("file /own random={}", megabytes * 1_000_000);
    let layers = vec![Layer::of(&text, Compression::Gzip)];
    let image = Image::build("large", Format::Docker, node_architecture(), layers, |_, _| {});
    registry.push("large", Some("latest"), &image);
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[("additionalImages", &registry.tagged("large"))]);
    let before = link.received().unwrap();
    let run = link.client.within(|| world.start("run", &[])).wait().exits(0);
    let received = link.received().unwrap() - before;
    note(&format!(
        "a layer of {megabytes} MB alone, {control}: {:.1} s, {:.1} Mbit/s, {} requests, {received} bytes received",
        run.took.as_secs_f64(),
        8.0 * megabytes as f64 / run.took.as_secs_f64(),
        registry.log().len(),
    ));
}

#[test]
fn a_large_layer_is_pulled_over_a_bad_link() {
    needs!(root(), links());
    if !long() {
        return leave_out("it takes minutes; SPOKE_LONG=1 asks for it");
    }
    for control in ["bbr", "reno"] {
        alone_over_a_bad_link(control, 60);
    }
}

/// Four blobs at a time over such a link, by TLS and HTTP/2, which would have one connection for all of them.
fn together_over_a_bad_link(control: &str, megabytes: usize) {
    let quality = Quality {
        rate: 100_000_000,
        delay: Duration::from_millis(75),
        loss: 0.0001,
    };
    let link = Link::new(quality).unwrap();
    let (address, plain) = (
        SocketAddr::from((Link::SERVER, 5000)),
        SocketAddr::from((Ipv4Addr::LOCALHOST, 5001)),
    );
    let registry = link.server.within(|| {
        std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", control).unwrap();
        Registry::on(TcpListener::bind(plain).unwrap())
    });
    let layers = (0..4).map(|seed| {
        let text = format!("file /own{seed} random={} seed={seed}", megabytes * 1_000_000);
        Layer::of(&text, Compression::Gzip)
    });
    let image = Image::build(
        "large",
        Format::Docker,
        node_architecture(),
        layers.collect(),
        |_, _| {},
    );
    registry.push("large", Some("latest"), &image);
    let authority = Authority::new("site");
    let certificate = authority.certificate("registry", &format!("IP:{}", Link::SERVER));
    let _nginx = Program::nginx(&link.server, address, &certificate, &plain.to_string(), None);
    let world = TestNode::trusting(&[]);
    world.write("etc/ssl/certs/ca-certificates.crt", &authority.pem());
    world.spec(&[("additionalImages", &format!("{address}/large:latest"))]);
    let run = link.client.within(|| world.start("run", &[])).wait().exits(0);
    note(&format!(
        "4 layers of {megabytes} MB together by HTTP/2, {control}: {:.1} s, {:.1} Mbit/s",
        run.took.as_secs_f64(),
        8.0 * 4.0 * megabytes as f64 / run.took.as_secs_f64(),
    ));
}

#[test]
fn several_large_layers_are_pulled_over_a_bad_link() {
    needs!(root(), links(), nginx());
    if !long() {
        return leave_out("it takes minutes; SPOKE_LONG=1 asks for it");
    }
    for control in ["bbr", "reno"] {
        together_over_a_bad_link(control, 15);
    }
}
