//! Tests a run that its deadline cuts off: it leaves as many whole images as possible, and the next run pulls only the rest.

use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

const KB: u64 = 1_000;
/// Of the link, a second.
const RATE: u64 = 400 * KB;
/// Images that share a base of 200 KB.
const SMALL: u64 = 8;
/// With their base they need 1.5 s; all of it needs twelve.
const DEADLINE: &str = "4s";
/// Requests for manifests and configs, and what a socket had sent that the product had not received.
const SLACK: u64 = 300 * KB;

#[test]
fn small_images_are_whole_when_the_large_one_is_cut_off() {
    needs!(root());
    let registry = Registry::start();
    let base = layer("base", 200 * KB);
    // Pushed and named first, so that only the order of the plan puts the others before it.
    let large = image("a-large", vec![layer("large", 4_000 * KB)]);
    let small = |n: u64| {
        image(
            &format!("small-{n}"),
            vec![base.clone(), layer(&n.to_string(), 50 * KB)],
        )
    };
    let images: Vec<Image> = [large].into_iter().chain((0..SMALL).map(small)).collect();
    let names: Vec<String> = images.iter().map(|image| registry.tagged(&image.name)).collect();
    for image in &images {
        registry.push(&image.name, Some("latest"), image);
    }
    registry.fault(Fault::on("/blobs/").slow(RATE));
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[("additionalImages", &names.join("\n"))]);

    let args = ["--max-downloads", "1", "--deadline", DEADLINE];
    let run = world.run(&args).exits(124);
    assert_eq!(run.images("pulled"), names[1..], "{run}");
    assert_eq!(run.images("pending"), names[..1], "{run}");

    registry.end_faults();
    let rest = world.run(&[]).exits(0);
    assert_eq!(rest.images("pulled"), names[..1], "{rest}");
    let resumed = rest.total("bytesResumed");
    assert!(resumed > 0, "{rest}");
    let unique: u64 = 200 * KB + SMALL * 50 * KB + 4_000 * KB;
    let sent: u64 = registry.layer_requests().iter().map(|access| access.sent()).sum();
    assert!(sent <= unique + SLACK, "{sent} of {unique} bytes: {rest}");
    assert!(run.total("bytesFetched") + rest.total("bytesFetched") <= sent);
}

fn image(name: &str, layers: Vec<Layer>) -> Image {
    Image::build(name, Format::Docker, node_architecture(), layers, |_, _| {})
}

/// A layer that does not compress.
fn layer(name: &str, bytes: u64) -> Layer {
    let seed: u64 = name.bytes().map(u64::from).sum();
    Layer::of(
        &format!("file /{name} 0644 0:0 random={bytes} seed={seed}"),
        Compression::Gzip,
    )
}
