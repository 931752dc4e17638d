//! Tests where deltas are found, what is requested for that, and that nothing found there harms a run.

use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::{Value, json};

use super::by_hand::{self, Op, delta};
use super::published::{Artifact, INDEX, publish, publish_index, refer, referrers};
use super::{Component, REPOSITORY, Scene};
use crate::compare::record_array;
use crate::image::release::{EXCLUDE, Release};
use crate::image::{Compression, Format, Image, Layer, node_architecture, sha256};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::{Run, TestNode};

/// A repository without images.
const DELTAS: &str = "deltas";

impl Scene {
    /// Images whose repository has no deltas.
    fn without_deltas() -> Self {
        let registry = Registry::start();
        let component = Component::new(Compression::Gzip);
        registry.push(REPOSITORY, Some("old"), &component.old);
        registry.push(REPOSITORY, Some("new"), &component.new);
        let node = Self::node_with_old(&registry);
        registry.clear_log();
        Self {
            registry,
            component,
            node,
        }
    }

    fn publish_in(&self, repository: &str) -> String {
        let Component { old, new, .. } = &self.component;
        publish(
            &self.registry,
            repository,
            new,
            &[old],
            &[self.component.artifact()],
        )
    }

    /// Requests that look for deltas.
    fn lookups(&self) -> Vec<String> {
        let log = self.registry.log().into_iter().map(|access| access.path);
        log.filter(|path| path.contains("/referrers/")).collect()
    }

    /// Fails unless the run pulled the whole image.
    #[track_caller]
    fn used_no_delta(&self, run: Run) -> Run {
        let run = run.exits(0);
        assert_eq!(self.requests(&self.component.blob().digest), 1, "{run}");
        assert_eq!(run.total("bytesSaved"), 0, "{run}");
        run
    }
}

#[test]
fn deltas_are_found_by_the_referrers_api() {
    needs!(root(), stock());
    let scene = Scene::without_deltas();
    let index = scene.publish_in(REPOSITORY);
    let of_other_types = format!("sha256:{}", "0".repeat(64));
    // A registry may ignore the filter.
    let mut list: Value = serde_json::from_str(&referrers(&[(&of_other_types, 7), (&index, 500)])).unwrap();
    list["manifests"][0]["artifactType"] = json!("application/vnd.example.sbom");
    let path = format!("/{REPOSITORY}/referrers/{}", scene.component.new.digest());
    let answer = Fault::on(&path).replace(list.to_string());
    scene.registry.fault(answer.header("Content-Type", INDEX));
    refer(&scene.registry, REPOSITORY, &scene.component.new, &referrers(&[]));
    let name = scene.by_digest();
    let run = scene.used_delta(scene.node.run(&["--image", &name]));
    assert_eq!(scene.lookups().len(), 1, "{:#?}", scene.registry.log());
    let old = sha256(&scene.component.old.config);
    assert_eq!(run.report["images"][0]["delta"], old.as_str(), "{run}");
    assert!(run.total("bytesSaved") > 200_000, "{run}");
    assert!(run.stdout.contains(" instead of "), "{run}");
}

#[test]
fn another_repository_may_have_the_deltas() {
    needs!(root(), stock());
    for by_digest in [false, true] {
        let scene = Scene::without_deltas();
        let index = scene.publish_in(DELTAS);
        let repository = format!("{}/{DELTAS}", scene.registry.host());
        let location = match by_digest {
            true => format!("{repository}@{index}"),
            false => repository,
        };
        let run = scene
            .node
            .run(&["--image", &scene.by_digest(), "--deltas", &location]);
        scene.used_delta(run);
    }
    let scene = Scene::without_deltas();
    let nowhere = format!("{}/nowhere:1", scene.registry.host());
    let run = scene
        .node
        .run(&["--image", &scene.by_digest(), "--deltas", &nowhere]);
    scene.used_no_delta(run).says("is unavailable");
}

#[test]
fn a_plan_shows_the_bytes_of_deltas_and_of_whole_blobs() {
    needs!(root(), stock());
    let scene = Scene::usual();
    let name = scene.by_digest();
    let plan = scene.node.plan(&["--image", &name, "-o", "json"]).exits(0);
    let document: Value = serde_json::from_str(&plan.stdout).unwrap();
    let (image, totals) = (&document["images"][0], &document["totals"]);
    let number = |value: &Value| value.as_u64().unwrap();
    assert_eq!(number(&totals["layersFromDeltas"]), 1, "{document:#}");
    assert_eq!(image["bytes"], image["deltaBytes"], "{document:#}");
    assert_eq!(number(&image["bytesWhole"]), scene.component.blob().size);
    let saved = number(&image["bytesWhole"]) - number(&image["bytes"]);
    assert_eq!(number(&totals["bytesSaved"]), saved);
    let option = &image["layers"][1]["delta"];
    assert_eq!(
        option["blob"],
        scene.component.artifact().digest(),
        "{document:#}"
    );
    assert_eq!(scene.requests(scene.component.artifact().digest().as_str()), 0);
    // The last bytes of the whole blob state the length of the tar.
    assert!(scene.requests(&scene.component.blob().digest) <= 1);
    let table = scene.node.plan(&["--image", &name]).exits(0);
    assert!(
        table.stdout.contains("WHOLE") && table.stdout.contains("deltas:    "),
        "{table}"
    );
}

#[test]
fn nothing_is_asked_without_need() {
    needs!(root(), stock());
    let scene = Scene::usual();
    let name = scene.by_digest();
    // No image has files to make layers from.
    let empty = TestNode::trusting(&[scene.registry.host()]);
    empty.run(&["--image", &name]).exits(0);
    assert_eq!(scene.lookups(), Vec::<String>::new());
    // The user does not want deltas.
    scene.registry.clear_log();
    scene.used_no_delta(scene.node.run(&["--image", &name, "--no-deltas"]));
    assert_eq!(scene.lookups(), Vec::<String>::new());
    // No layer is missing.
    scene.registry.clear_log();
    scene.node.run(&["--image", &name]).exits(0);
    scene.node.verify(&["--image", &name]).exits(0);
    assert_eq!(scene.lookups(), Vec::<String>::new());
}

#[test]
fn a_mirror_may_have_the_deltas() {
    needs!(root(), stock());
    let scene = Scene::usual();
    // Only the mirror answers.
    let conf = format!(
        "[[registry]]\nprefix = \"hub.test/component\"\nlocation = \"hub.test/component\"\n\
         [[registry.mirror]]\nlocation = \"{}/{REPOSITORY}\"\ninsecure = true\n",
        scene.registry.host()
    );
    scene.node.write("etc/containers/registries.conf", &conf);
    let name = format!("hub.test/component@{}", scene.component.new.digest());
    scene.used_delta(scene.node.run(&["--image", &name]));
}

/// What a hostile or broken registry may have as the index of the deltas.
fn hostile_indexes(scene: &Scene) -> Vec<(&'static str, Vec<u8>)> {
    let Component { old, new, .. } = &scene.component;
    let artifact = |number: usize, target: &str, source: &str| {
        json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": sha256(&number.to_be_bytes()),
            "size": 900,
            "artifactType": "application/vnd.spoke-precache.delta.v1",
            "annotations": {
                "io.github.containers.delta.target": target,
                "io.spoke-precache.delta.sources": source,
            },
        })
    };
    let index = |artifacts: Vec<Value>| {
        let index = json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "artifactType": "application/vnd.spoke-precache.delta-index.v1",
            "manifests": artifacts,
        });
        index.to_string().into_bytes()
    };
    let (target, source) = (new.digest(), sha256(&old.config));
    let of = |count: usize, source: &str| {
        index(
            (0..count)
                .map(|number| artifact(number, &target, source))
                .collect(),
        )
    };
    let mut deep = String::new();
    for _ in 0..100_000 {
        let _ = write!(deep, "[");
    }
    vec![
        ("thousands of artifacts that do not exist", of(4_000, &source)),
        ("more artifacts than any release has", of(9_000, &source)),
        ("images that the node does not have", of(3, &sha256(b"nothing"))),
        ("no image at all", of(3, "")),
        ("the new image", of(3, &sha256(&new.config))),
        ("text", b"no index".to_vec()),
        ("nested arrays", deep.into_bytes()),
        ("5 MiB", vec![b' '; 5 << 20]),
    ]
}

#[test]
fn no_index_makes_a_run_fail() {
    needs!(root(), stock());
    let scene = Scene::without_deltas();
    let name = scene.by_digest();
    for (what, index) in hostile_indexes(&scene) {
        let node = Scene::node_with_old(&scene.registry);
        let (digest, size) = (sha256(&index), index.len());
        let content = Bytes::from(index);
        scene
            .registry
            .content()
            .put_manifest(REPOSITORY, &digest, INDEX, content);
        refer(
            &scene.registry,
            REPOSITORY,
            &scene.component.new,
            &referrers(&[(&digest, size)]),
        );
        scene.registry.clear_log();
        let run = node.run(&["--image", &name]);
        scene.used_no_delta(run);
        // Of each format one, whatever the index lists.
        let artifacts = scene.registry.log().into_iter();
        let artifacts =
            artifacts.filter(|access| access.status == 404 && access.path.contains("/manifests/sha256:"));
        assert!(artifacts.count() <= 2, "{what}: {:#?}", scene.registry.log());
    }
}

#[test]
fn a_lie_about_an_artifact_costs_a_request() {
    needs!(root(), stock());
    let scene = Scene::without_deltas();
    let Component { old, new, .. } = &scene.component;
    // The index states another target than the artifact, which makes a layer of the old image.
    let other = Artifact::standard(&old.layers[1].digest, delta(by_hand::STANDARD, &[]));
    let index = publish_index(&scene.registry, DELTAS, old, &[(old, &[old], &other)]);
    for list in [
        // A digest that its content does not have.
        referrers(&[(&sha256(b"other"), 100)]),
        // Of another image.
        referrers(&[(&index, 500)]),
        // Too many.
        referrers(&vec![(sha256(b"many").as_str(), 10); 3_000]),
        "{".to_owned(),
        String::new(),
    ] {
        let node = Scene::node_with_old(&scene.registry);
        refer(&scene.registry, DELTAS, new, &list);
        let location = format!("{}/{DELTAS}", scene.registry.host());
        scene.registry.clear_log();
        let run = node.run(&["--image", &scene.by_digest(), "--deltas", &location]);
        scene.used_no_delta(run);
    }
}

#[test]
fn a_registry_that_does_not_answer_for_deltas_delays_a_run_and_no_more() {
    needs!(root(), stock());
    let scene = Scene::usual();
    scene.registry.fault(Fault::on("/manifests/sha256-").stall(0));
    let run = scene.node.run(&["--image", &scene.by_digest()]);
    scene.used_no_delta(run).says("no more deltas are requested from");
}

/// An image that has, as files, the tars of these layers, and the deltas that copy them.
fn predecessor(layers: &[Layer]) -> (Image, Artifact) {
    let tars: Vec<Vec<u8>> = layers
        .iter()
        .map(|layer| {
            let mut tar = Vec::new();
            let mut decoder = flate2::read::MultiGzDecoder::new(&layer.blob[..]);
            std::io::copy(&mut decoder, &mut tar).unwrap();
            tar
        })
        .collect();
    let mut text = String::new();
    for number in 0..tars.len() {
        let _ = writeln!(text, "file /tar{number} 0644 0:0 bytes=t{number}");
    }
    let names: Vec<String> = (0..tars.len()).map(|number| format!("t{number}")).collect();
    let named: Vec<(&str, &[u8])> = names
        .iter()
        .map(String::as_str)
        .zip(tars.iter().map(Vec::as_slice))
        .collect();
    let tar = crate::image::layer::tar_of(&text, &named);
    let old = Layer::of_tar(&tar, Compression::Gzip);
    let image = Image::build("old", Format::Oci, node_architecture(), vec![old], |_, _| {});
    let deltas = layers
        .iter()
        .zip(&tars)
        .enumerate()
        .map(|(number, (layer, tar))| {
            let ops = [
                Op::Open(format!("tar{number}").into()),
                Op::Copy(tar.len() as u64),
            ];
            (layer.digest.clone(), Bytes::from(delta(by_hand::STANDARD, &ops)))
        });
    let artifact = Artifact::standard("", Vec::new()).with_layers(deltas.collect());
    (image, artifact)
}

#[test]
fn one_request_finds_the_deltas_of_a_release() {
    needs!(root(), stock());
    let registry = Registry::start();
    let release = Release::build(&registry.host(), 300_000);
    registry.push_release(&release);
    let components: Vec<(&Image, (Image, Artifact))> = release
        .components
        .iter()
        .enumerate()
        .map(|(number, (_, image))| {
            // All have the same two layers below. The release image has the first of them, and the delta of the second one
            // is in one artifact.
            let own = &image.layers[if number == 0 { 1 } else { 2 }..];
            (image, predecessor(own))
        })
        .collect();
    let node = TestNode::trusting(&[registry.host()]);
    for (number, (_, (old, _))) in components.iter().enumerate() {
        registry.push(&format!("old/{number}"), Some("1"), old);
        node.podman_pull(&format!("{}/old/{number}:1", registry.host()));
    }
    let artifacts: Vec<(&Image, [&Image; 1], &Artifact)> = components
        .iter()
        .map(|(new, (old, artifact))| (*new, [old], artifact))
        .collect();
    let artifacts: Vec<(&Image, &[&Image], &Artifact)> = artifacts
        .iter()
        .map(|(new, old, artifact)| (*new, &old[..], *artifact))
        .collect();
    publish_index(
        &registry,
        crate::image::release::RELEASE,
        &release.release,
        &artifacts,
    );
    registry.clear_log();
    let args = ["--platform-image", &release.by_digest(), "--exclude", EXCLUDE];
    let run = node.run(&args).exits(0);
    let lookups: Vec<_> = registry.log().into_iter().map(|access| access.path).collect();
    let lookups = lookups.iter().filter(|path| path.contains("/referrers/")).count();
    assert_eq!(lookups, 1, "{:#?}", registry.log());
    let requests = registry.layer_requests();
    for (tag, image) in release
        .components
        .iter()
        .filter(|(tag, _)| !tag.contains(EXCLUDE))
    {
        for layer in &image.layers[1..] {
            let whole = requests.iter().any(|access| access.path.ends_with(&layer.digest));
            assert!(!whole, "{tag}: {run}");
        }
    }
    assert!(run.total("bytesSaved") > 0, "{run}");
    // The release is given by digest, so what its images state about their blobs is recorded.
    let records = record_array(&node.graph_root().join("overlay-layers/layers.json"));
    for (tag, image) in release
        .components
        .iter()
        .filter(|(tag, _)| !tag.contains(EXCLUDE))
    {
        for layer in &image.layers {
            let record = records
                .iter()
                .find(|it| it["diff-digest"] == layer.diff_id.as_str());
            let blob = record.map(|record| record["compressed-diff-digest"].clone());
            assert_eq!(blob, Some(json!(layer.digest)), "{tag}");
        }
    }
    node.verify(&args).exits(0);
}
