//! Tests layers that are made from deltas: they equal those that podman pulls, and no delta can make an image fail.

mod by_hand;
mod crash;
mod discovery;
mod disk_space;
mod fallback;
mod parity;
mod published;
mod repair;
mod sources;

use by_hand::{Op, delta};
use published::{Artifact, publish};

use crate::compare::compare;
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

/// The program in the old image.
const APP: &str = "bin/app";

/// Its length: far more than that of a delta.
const LENGTH: usize = 300_000;

/// The repository of both images.
const REPOSITORY: &str = "component";

/// Deterministic bytes that do not compress.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(next).collect()
}

/// An image whose component was built again, its predecessor, and a delta between both.
struct Component {
    old: Image,
    new: Image,
    /// The tar of the new layer.
    tar: Vec<u8>,
}

impl Component {
    fn new(compression: Compression) -> Self {
        let base = || {
            Layer::of(
                "dir /d 0755 0:0\nfile /d/base 0644 0:0 random=2000 seed=1",
                Compression::Gzip,
            )
        };
        let (old_app, new_app) = apps();
        let text = |rest: &str| {
            format!("dir /bin 0755 0:0\nfile /{APP} 0755 3:4 bytes=app mtime=1500000000.25\n{rest}")
        };
        let old_tar =
            crate::image::layer::tar_of(&text("file /gone 0644 0:0 \"gone\""), &[("app", &old_app)]);
        let new = "xattr user.note=\"new\"\nwhiteout /d/base\nsymlink /bin/link -> app";
        let tar = crate::image::layer::tar_of(&text(new), &[("app", &new_app)]);
        let image = |layer| {
            Image::build(
                REPOSITORY,
                Format::Oci,
                node_architecture(),
                vec![base(), layer],
                |_, _| {},
            )
        };
        Self {
            old: image(Layer::of_tar(&old_tar, Compression::Gzip)),
            new: image(Layer::of_tar(&tar, compression)),
            tar,
        }
    }

    /// The new layer's blob.
    fn blob(&self) -> &Layer {
        &self.new.layers[1]
    }

    /// The right operations for the new layer.
    fn ops(&self) -> Vec<Op> {
        let (old_app, new_app) = apps();
        let start = self
            .tar
            .windows(64)
            .position(|window| window == &new_app[..64])
            .expect("the program is in the tar");
        let half = LENGTH / 2;
        let differences = (0..half).map(|at| new_app[at].wrapping_sub(old_app[at]));
        vec![
            Op::Data(self.tar[..start].to_vec()),
            Op::Open(APP.into()),
            Op::AddData(differences.collect()),
            Op::Data(new_app[half..half + 100].to_vec()),
            Op::Seek(half as u64),
            Op::Copy((LENGTH - half) as u64),
            Op::Data(self.tar[start + LENGTH + 100..].to_vec()),
        ]
    }

    /// The right delta.
    fn artifact(&self) -> Artifact {
        Artifact::standard(&self.blob().digest, delta(by_hand::STANDARD, &self.ops()))
    }
}

/// Compares the stores, except for what layer records state about blobs: the manifests are not authenticated, so nothing is
/// recorded about the blob of a layer from a delta.
fn differences(ours: &TestNode, theirs: &TestNode) -> Vec<String> {
    let mut differences = compare(&ours.graph_root(), &theirs.graph_root(), &[]);
    differences.retain(|line| !line.contains(" record compress"));
    differences
}

/// The old and the new program: a byte in a hundred differs, and a hundred bytes are inserted.
fn apps() -> (Vec<u8>, Vec<u8>) {
    let old = noise(LENGTH, 7);
    let mut new = old.clone();
    for byte in new[..LENGTH / 2].iter_mut().step_by(100) {
        *byte = byte.wrapping_add(9);
    }
    new.splice(LENGTH / 2..LENGTH / 2, noise(100, 8));
    (old, new)
}

/// A node with the old image, and a registry with both and with deltas.
struct Scene {
    registry: Registry,
    component: Component,
    node: TestNode,
}

impl Scene {
    fn new(component: Component, artifacts: &[Artifact]) -> Self {
        let registry = Registry::start();
        registry.push(REPOSITORY, Some("old"), &component.old);
        registry.push(REPOSITORY, Some("new"), &component.new);
        publish(
            &registry,
            REPOSITORY,
            &component.new,
            &[&component.old],
            artifacts,
        );
        let node = Self::node_with_old(&registry);
        registry.clear_log();
        Self {
            registry,
            component,
            node,
        }
    }

    /// The same with the right delta.
    fn usual() -> Self {
        let component = Component::new(Compression::Gzip);
        let artifact = component.artifact();
        Self::new(component, &[artifact])
    }

    fn node_with_old(registry: &Registry) -> TestNode {
        let node = TestNode::trusting(&[registry.host()]);
        node.podman_pull(&format!("{}/{REPOSITORY}:old", registry.host()));
        node
    }

    /// The new image by digest.
    fn by_digest(&self) -> String {
        self.registry.at(REPOSITORY, &self.component.new.digest())
    }

    /// The new image by tag.
    fn by_tag(&self) -> String {
        format!("{}/{REPOSITORY}:new", self.registry.host())
    }

    /// Another node, where podman pulled both.
    fn theirs(&self, name: &str) -> TestNode {
        let theirs = Self::node_with_old(&self.registry);
        theirs.podman_pull(name);
        theirs
    }

    /// How often the blob with this digest was requested.
    fn requests(&self, digest: &str) -> usize {
        self.registry.requests_of(digest)
    }

    /// Fails unless the run pulled the image with the delta alone.
    #[track_caller]
    fn used_delta(&self, run: Run) -> Run {
        let run = run.exits(0);
        assert_eq!(self.requests(&self.component.blob().digest), 0, "{run}");
        assert!(run.report["images"][0]["fallbackReason"].is_null(), "{run}");
        run
    }
}
