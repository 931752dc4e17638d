//! Takes the files of old images from where a node has them: an additional store, or several images.

use super::by_hand::{INFLATED, Op, delta};
use super::published::{Artifact, publish};
use super::{APP, Component, REPOSITORY, Scene};
use crate::compare::inconsistencies;
use crate::image::{Compression, Images};
use crate::needs::needs;
use crate::test_node::TestNode;

const MORE: &str = "/var/lib/containers/more";

#[test]
fn an_old_image_in_an_additional_store_is_a_source() {
    needs!(root(), stock());
    let scene = Scene::usual();
    let node = TestNode::trusting(&[scene.registry.host()]);
    let old = format!("{}/{REPOSITORY}:old", scene.registry.host());
    node.podman(&[
        "--root",
        MORE,
        "--runroot",
        "/run/containers/more",
        "pull",
        "--quiet",
        &old,
    ])
    .ok();
    node.write(
        "etc/containers/storage.conf",
        &format!(
            "[storage]\ndriver = \"overlay\"\nrunroot = \"/run/containers/storage\"\n\
             graphroot = \"/var/lib/containers/storage\"\n[storage.options]\nadditionalimagestores = [\"{MORE}\"]\n"
        ),
    );
    scene.registry.clear_log();
    let scene = Scene { node, ..scene };
    scene.used_delta(scene.node.run(&["--image", &scene.by_digest()]));
    let wrong = inconsistencies(&scene.node.graph_root());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_delta_may_read_several_old_images() {
    needs!(root(), stock());
    let component = Component::new(Compression::Gzip);
    let mut ops = component.ops();
    let text = "image other docker\nlayer gzip\nfile /other 0644 0:0 \"not needed\"";
    let other = Images::of(text, &[]).images.remove(0);
    ops[1] = Op::OpenIn(1, APP.into());
    let artifact = Artifact::ours(&component.blob().digest, delta(INFLATED, &ops));
    let scene = Scene::new(component, &[]);
    scene.registry.push("other", Some("latest"), &other);
    publish(
        &scene.registry,
        REPOSITORY,
        &scene.component.new,
        &[&other, &scene.component.old],
        &[artifact],
    );
    scene.node.podman_pull(&scene.registry.tagged("other"));
    scene.used_delta(scene.node.run(&["--image", &scene.by_digest()]));
}
