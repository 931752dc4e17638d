//! Compares images that were made from deltas with the same images that podman pulled.

use serde_json::Value;

use super::by_hand::{Op, STANDARD, delta};
use super::published::{Artifact, publish};
use super::{Component, REPOSITORY, Scene, differences, noise};
use crate::compare::{compare, inconsistencies, record_array};
use crate::image::samples::{EMPTY_XATTR, STOCK_TAR_SPLIT_IS_WRONG, sample_images};
use crate::image::{Compression, Format, Image, Layer, layer};
use crate::needs::needs;
use crate::registry::Registry;
use crate::stock::docker_registry::DockerRegistry;
use crate::test_node::TestNode;

/// Bytes that an old and a new layer have in common, and how many more for each byte of the sample's tar, so that a delta is
/// worth it.
const COMMON: usize = 20_000;
const MORE: usize = 5;

fn check(problems: Vec<String>) {
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The sample image as an old and a new version: each layer begins with a large file that both have, and the new one with
/// another file as well. With the deltas of the new layers.
fn versions(sample: &Image) -> (Image, Image, Artifact) {
    let format = match sample.media_type.contains("docker") {
        true => Format::Docker,
        false => Format::Oci,
    };
    let image = |layers| Image::build(&sample.name, format, &sample.architecture, layers, |_, _| {});
    let (mut old, mut new, mut deltas) = (Vec::new(), Vec::new(), Vec::new());
    for (number, layer) in sample.layers.iter().enumerate() {
        let length = COMMON + MORE * layer.tar().len();
        let common = noise(length, number as u64);
        let path = format!("common-{number}");
        let entry = |text: String| {
            let tar = layer::tar_of(&format!("{text}\neof 0"), &[("common", &common)]);
            [tar, layer.tar()].concat()
        };
        let line = format!("file /{path} 0644 0:0 bytes=common");
        let (old_tar, new_tar) = (
            entry(line.clone()),
            entry(format!("{line}\nfile /new-{number} 0644 0:0 \"new\"")),
        );
        let start = new_tar.windows(64).position(|window| window == &common[..64]);
        let start = start.expect("the tar has the common file");
        let ops = [
            Op::Data(new_tar[..start].to_vec()),
            Op::Open(path.into()),
            Op::Copy(length as u64),
            Op::Data(new_tar[start + length..].to_vec()),
        ];
        old.push(Layer::of_tar(&old_tar, layer.compression));
        let new_layer = Layer::of_tar(&new_tar, layer.compression);
        deltas.push((new_layer.digest.clone(), delta(STANDARD, &ops).into()));
        new.push(new_layer);
    }
    let artifact = Artifact::standard("", Vec::new()).with_layers(deltas);
    (image(old), image(new), artifact)
}

#[test]
fn sample_images_from_deltas_are_those_that_podman_pulls() {
    needs!(root(), stock());
    let registry = Registry::start();
    let (mut names, mut wrong, mut empty_xattr) = (Vec::new(), Vec::new(), Vec::new());
    for sample in &sample_images(b"no program").images {
        // The same layer twice is one delta, but a tar cannot have a common file twice either.
        if sample.layers.is_empty() || sample.architecture != crate::image::node_architecture() {
            continue;
        }
        let (old, new, artifact) = versions(sample);
        registry.push(&sample.name, Some("old"), &old);
        registry.push(&sample.name, None, &new);
        publish(&registry, &sample.name, &new, &[&old], &[artifact]);
        names.push((
            format!("{}/{}:old", registry.host(), sample.name),
            registry.at(&sample.name, &new.digest()),
        ));
        for version in [&old, &new] {
            let id = version.layers[0].diff_id["sha256:".len()..].to_owned();
            if STOCK_TAR_SPLIT_IS_WRONG.contains(&sample.name.as_str()) {
                wrong.push(id);
            } else if sample.name == EMPTY_XATTR {
                empty_xattr.push(id);
            }
        }
    }
    let [ours, theirs] = [(), ()].map(|()| TestNode::trusting(&[registry.host()]));
    let old: Vec<&str> = names.iter().flat_map(|(old, _)| ["--image", old]).collect();
    ours.run(&old).exits(0);
    for (old, _) in &names {
        theirs.podman_pull(old);
    }
    registry.clear_log();
    let args: Vec<&str> = names.iter().flat_map(|(_, new)| ["--image", new]).collect();
    let run = ours.run(&args).exits(0);
    assert!(
        run.total("bytesSaved") > names.len() as u64 * COMMON as u64 / 2,
        "{run}"
    );
    for image in run.report["images"].as_array().into_iter().flatten() {
        assert!(
            image["fallbackReason"].is_null() && image["delta"].is_string(),
            "{image}"
        );
    }
    for (_, new) in &names {
        theirs.podman_pull(new);
    }
    let mut differences = compare(&ours.graph_root(), &theirs.graph_root(), &wrong);
    // The manifests are not authenticated, so nothing is recorded about their blobs.
    differences.retain(|line| !line.contains(" record compress"));
    if theirs.podman_version().starts_with("4.") {
        for id in empty_xattr {
            differences.retain(|line| !line.starts_with(&format!("layer {id} tree user")));
        }
    }
    check(differences);
    check(inconsistencies(&ours.graph_root()));
    ours.verify(&args).exits(0);
}

/// The record of the layer in the store of `node`.
fn record(node: &TestNode, layer: &Layer) -> Value {
    let records = record_array(&node.graph_root().join("overlay-layers/layers.json"));
    let mut records = records.into_iter();
    let found = records.find(|record| record["diff-digest"] == layer.diff_id.as_str());
    Value::Object(found.expect("the layer is in the store"))
}

#[test]
fn stock_tools_accept_an_image_from_a_delta_without_the_digest_of_its_blob() {
    needs!(root(), stock(), docker_registry());
    for compression in [Compression::Gzip, Compression::Zstd, Compression::None] {
        // The digest says which manifest is requested, and not that its author is trusted.
        for is_by_digest in [true, false] {
            let component = Component::new(compression);
            let artifact = component.artifact();
            let scene = Scene::new(component, &[artifact]);
            let name = match is_by_digest {
                true => scene.by_digest(),
                false => scene.by_tag(),
            };
            let node = &scene.node;
            let run = scene.used_delta(node.run(&["--image", &name]));
            let theirs = scene.theirs(&name);
            let (our, their) = [node, &theirs]
                .map(|node| record(node, scene.component.blob()))
                .into();
            let mut differences = compare(&node.graph_root(), &theirs.graph_root(), &[]);
            let fields = ["compressed-diff-digest", "compressed-size", "compression"];
            for field in fields {
                assert!(our[field].is_null(), "{our}");
                differences.retain(|line| !line.contains(&format!(" record {field}\n")));
            }
            assert_eq!(our["diff-size"], their["diff-size"], "{run}");
            check(differences);
            for args in [
                &["images", "--digests", "--all"][..],
                &["image", "inspect", &name],
                &["image", "diff", &name],
            ] {
                let [our, their] = [node, &theirs].map(|node| node.podman(args).ok());
                let sorted = |text: String| {
                    // Names of link files differ.
                    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                    lines.retain(|line| !line.contains("overlay/l/") && !line.contains("Dir\":"));
                    lines.sort();
                    lines
                };
                assert_eq!(sorted(our), sorted(their), "{args:?}");
            }
            let archive = node.out("saved.tar");
            node.podman(&[
                "save",
                "--format",
                "oci-archive",
                "-o",
                archive.to_str().unwrap(),
                &name,
            ])
            .ok();
            let mirror = DockerRegistry::start();
            let copy = format!("docker://{}/copy:1", mirror.host());
            let stored = format!("containers-storage:{name}");
            node.skopeo(&["copy", "--dest-tls-verify=false", &stored, &copy])
                .ok();
            node.podman(&[
                "push",
                "--tls-verify=false",
                &name,
                &format!("{}/pushed:1", mirror.host()),
            ])
            .ok();
            if node.has_system_check() {
                // The whiteout changes the time of its directory, of which the layer has no entry.
                let [our, their] = [node, &theirs].map(TestNode::complaints_of_system_check);
                assert_eq!(our, their);
            }
            node.verify(&["--image", &name]).exits(0);
            node.empty_blob_info_cache();
            node.podman_pull(&name);
            check(inconsistencies(&node.graph_root()));
            let run = node.run(&["--image", &name]).exits(0);
            assert_eq!(run.images("present"), [name.as_str()], "{run}");
        }
    }
}

/// The layer has another id there, because its parent differs; its content comes from a second delta or from the first.
#[test]
fn another_image_with_the_same_layer_is_made_from_the_same_delta() {
    needs!(root(), stock());
    let scene = Scene::usual();
    let base = Layer::of("file /base 0644 0:0 \"another\"", Compression::Gzip);
    let sister = Image::build(
        "sister",
        Format::Oci,
        crate::image::node_architecture(),
        vec![base, scene.component.blob().clone()],
        |_, _| {},
    );
    scene.registry.push(REPOSITORY, Some("sister"), &sister);
    let sister = scene.registry.at(REPOSITORY, &sister.digest());
    let delta = scene.component.artifact().digest();
    let run = scene
        .node
        .run(&["--image", &scene.by_digest(), "--image", &sister]);
    scene.used_delta(run);
    assert_eq!(scene.requests(&delta), 1);
    let theirs = scene.theirs(&scene.by_digest());
    theirs.podman_pull(&sister);
    check(differences(&scene.node, &theirs));
    // The spool is empty but for its lock.
    let spool = scene.node.graph_root().with_file_name("spoke-precache");
    let left = std::fs::read_dir(spool)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left
        .filter(|name| name != "lock" && name != "history.json")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// As `podman load` leaves it: the old image never had a compressed blob.
#[test]
fn an_old_image_that_podman_loaded_is_a_source() {
    needs!(root(), stock());
    let scene = Scene::usual();
    let old = format!("{}/{REPOSITORY}:old", scene.registry.host());
    let archive = scene.node.out("old.tar");
    let save = [
        "save",
        "--format",
        "oci-archive",
        "-o",
        archive.to_str().unwrap(),
        &old,
    ];
    scene.node.podman(&save).ok();
    let other = TestNode::trusting(&[scene.registry.host()]);
    let loaded = other.out("old.tar");
    std::fs::copy(&archive, &loaded).unwrap();
    other.podman(&["load", "-i", loaded.to_str().unwrap()]).ok();
    let scene = Scene { node: other, ..scene };
    scene.used_delta(scene.node.run(&["--image", &scene.by_digest()]));
    check(inconsistencies(&scene.node.graph_root()));
}
