//! Tests layers that are unpacked for the next round while the release image is still being pulled.

use crate::image::release::{COMPONENTS, RELEASE, image_references, release_image};
use crate::image::{Compression, Format, Image, Layer, node_architecture, sha256};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

/// Bytes of the release image's base layer, and its rate: other downloads start when half of it has arrived, a second before
/// its end.
const BASE: usize = 300_000;
const RATE: u64 = 150_000;

/// A registry that sends the base layer of a release image slowly; returns the release by digest, and its component.
fn slow_release(component_layer: Layer) -> (Registry, String, String) {
    let registry = Registry::start();
    let component = Image::build(
        "component",
        Format::Oci,
        node_architecture(),
        vec![component_layer],
        |_, _| {},
    );
    registry.push(COMPONENTS, None, &component);
    let by_digest = registry.at(COMPONENTS, &component.digest());
    let references = image_references([("component", by_digest.clone())].into_iter());
    let text = format!("file /base 0644 0:0 random={BASE} seed=1");
    let base = Layer::of(&text, Compression::Gzip);
    let release = release_image(&base, &references.to_string());
    registry.push(RELEASE, Some("4.99.0"), &release);
    registry.fault(Fault::on(&base.digest).slow(RATE).times(u64::MAX));
    let release = registry.at(RELEASE, &release.digest());
    (registry, release, by_digest)
}

#[test]
fn a_layer_is_unpacked_before_the_release_image_is_stored() {
    needs!(root());
    let layer = Layer::of("file /component 0644 0:0 random=200000 seed=2", Compression::Gzip);
    let blob = layer.digest.clone();
    let (registry, release, component) = slow_release(layer);
    let node = TestNode::trusting(&[registry.host()]);
    let run = node.run(&["--platform-image", &release, "--log-level", "debug"]);
    let run = run.exits(0).says("a prefetch unpacked 1 layer of this blob");
    assert_eq!(run.images("pulled").len(), 2, "{run}");
    assert!(run.images("pulled").contains(&&*component), "{run}");
    assert_eq!(registry.requests_of(&blob), 1, "{run}");
    node.verify(&["--platform-image", &release]).exits(0);
}

/// Its digest is that of the manifest, its content is not that of the config.
#[test]
fn a_layer_with_another_content_fails_its_image_alone() {
    needs!(root());
    let other = Layer::of("file /other 0644 0:0 random=200000 seed=3", Compression::Gzip);
    let layer = Layer::of_blob(other.blob.clone(), sha256(b"another tar"), Compression::Gzip);
    let (registry, release, component) = slow_release(layer);
    let node = TestNode::trusting(&[registry.host()]);
    let run = node.run(&["--platform-image", &release]);
    let run = run.exits(6);
    assert_eq!(run.images("pulled"), [release.as_str()], "{run}");
    assert_eq!(run.images("failed"), [component.as_str()], "{run}");
}
