//! What `delta create` publishes, and when it fails.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use spoke_precache::delta::Format;
use spoke_precache::delta::artifact::{DeltaArtifact, DeltaIndex};
use spoke_precache::oci::Reference;

use super::releases::{Hub, REPOSITORY, TinyRelease, component, image, program, tag};
use crate::image::release::{COMPONENTS, RELEASE};
use crate::image::{Compression, Layer};
use crate::needs::needs;
use crate::registry::faults::Fault;
use crate::test_node::Run;

/// The row of an image in the first index of the report.
fn row<'a>(run: &'a Run, name: &str) -> &'a Value {
    let images = run.report["indexes"][0]["images"].as_array();
    let mut images = images.map_or(&[][..], Vec::as_slice).iter();
    images
        .find(|image| image["name"] == name)
        .unwrap_or_else(|| panic!("no `{name}`: {run}"))
}

/// Digests of the blobs that the artifact of each image makes, by the digest of the image's manifest.
fn targets(
    hub: &Hub,
    artifacts: &[spoke_precache::delta::artifact::ArtifactDescriptor],
) -> Vec<(String, DeltaArtifact)> {
    let standard = artifacts
        .iter()
        .filter(|artifact| artifact.format == Format::TarDiff);
    let read = standard.map(|it| (it.target.to_string(), hub.artifact(&it.digest.to_string())));
    read.collect()
}

#[test]
fn each_new_layer_of_a_release_gets_one_delta_and_the_index_names_the_release() {
    needs!(docker_registry());
    let hub = Hub::with_versions(2);
    let run = hub.create_and_push().exits(0);
    let [old, new] = [0, 1].map(|version| &hub.releases[version]);
    let (index, json) = hub.index(&old.release, &new.release).expect("an index");
    assert_eq!(json["subject"]["digest"], new.release.digest());
    // Nodes compare this digest with those of their images.
    let from: Reference = index.from.expect("a name").parse().expect("a reference");
    let digest = from.digest().expect("a digest").to_string();
    assert_eq!(digest, old.release.digest());

    let mut made = BTreeSet::new();
    for (target, artifact) in targets(&hub, &index.artifacts) {
        let image = new.components.iter().find(|(_, image)| image.digest() == target);
        let (name, image) = image.unwrap_or_else(|| panic!("{target} is no component: {run}"));
        // A new component has that of the image which is built from the same source.
        let predecessor = if *name == "added" { "etcd" } else { name };
        let predecessor = format!("sha256:{}", old.component(predecessor).id());
        let sources: Vec<String> = artifact
            .sources
            .iter()
            .map(|source| source.config.to_string())
            .collect();
        assert_eq!(sources, [predecessor]);
        for layer in &artifact.layers {
            let whole = image
                .layers
                .iter()
                .find(|whole| whole.digest == layer.target.to_string());
            let whole = whole.expect("a layer of the image");
            assert!(layer.size < whole.size / 5, "{layer:?}: {run}");
            let (status, blob) = hub.get(&format!("blobs/{}", layer.blob));
            assert_eq!(
                (status, crate::image::sha256(&blob)),
                (200, layer.blob.to_string())
            );
            assert!(
                made.insert(layer.target.to_string()),
                "two deltas of {}: {run}",
                layer.target
            );
        }
    }
    let wanted = ["etcd", "cli", "added"].map(|name| new.component(name).layers[1].digest.clone());
    let base = new.component("etcd").layers[0].digest.clone();
    assert_eq!(made, wanted.into_iter().chain([base]).collect(), "{run}");

    assert_eq!(row(&run, "added")["oldImages"][0]["name"], "etcd", "{run}");
    assert_eq!(row(&run, "added")["oldImages"][0]["reason"], "source", "{run}");
    assert!(
        run.stdout.contains("made from etcd, which has the same source"),
        "{run}"
    );
    assert_eq!(row(&run, "etcd")["state"], "created");
    assert_eq!(run.report["indexes"][0]["imagesEqual"], 1, "{run}");
    assert_eq!(run.report["kind"], "DeltaCreation");
    assert_eq!(run.report["indexes"][0]["tag"], tag(&old.release, &new.release));
    assert!(
        run.stdout.contains("etcd") && run.stdout.contains("created"),
        "{run}"
    );
    let left = fs::read_dir(hub.work_dir().join("tars"))
        .unwrap()
        .chain(fs::read_dir(hub.work_dir().join("deltas")).unwrap());
    assert_eq!(left.count(), 0, "{run}");
}

#[test]
fn a_program_that_moved_between_images_of_one_source_is_read_from_the_other_image() {
    needs!(docker_registry());
    let hub = Hub::of(2, TinyRelease::with_a_moved_program);
    let run = hub.create_and_push().exits(0);
    let [old, new] = [0, 1].map(|version| &hub.releases[version]);
    let (index, _) = hub.index(&old.release, &new.release).expect("an index");
    let config = |name: &str| format!("sha256:{}", old.component(name).id());
    let sources = |format: Format| -> Vec<String> {
        let tools = new.component("tools").digest();
        let mut artifacts = index.artifacts.iter();
        let artifact = artifacts.find(|it| it.format == format && it.target.to_string() == tools);
        let artifact = artifact.unwrap_or_else(|| panic!("no artifact in {format:?}: {run}"));
        let listed: Vec<String> = artifact.sources.iter().map(ToString::to_string).collect();
        let read = hub.artifact(&artifact.digest.to_string()).sources;
        let read: Vec<String> = read.iter().map(|source| source.config.to_string()).collect();
        assert_eq!(listed, read);
        listed
    };
    assert_eq!(sources(Format::InflatedTarDiff), [config("tools"), config("cli")]);
    assert_eq!(sources(Format::TarDiff), [config("tools")]);

    let tools = row(&run, "tools");
    let (whole, delta) = (tools["bytesWhole"].as_u64(), tools["bytesDelta"].as_u64());
    assert!(delta < whole.map(|whole| whole / 5), "{run}");
    assert!(
        tools["bytesStandard"].as_u64() > whole.map(|whole| whole / 3),
        "{run}"
    );
    assert_eq!(tools["oldImages"][1]["name"], "cli", "{run}");
    assert_eq!(tools["oldImages"][1]["reason"], "files", "{run}");
    let foreign = row(&run, "foreign");
    assert_eq!(foreign["state"], "skipped", "{run}");
    assert_eq!(
        foreign["whyNot"],
        "no predecessor: the old release has no image with this name, source or base"
    );
    let left = fs::read_dir(hub.work_dir().join("tars")).unwrap();
    assert_eq!(left.count(), 0, "{run}");

    hub.source.clear_log();
    let again = hub.create_and_push().exits(0);
    assert_eq!(row(&again, "tools")["state"], "present", "{again}");
    assert_eq!(hub.source.layer_requests().len(), 0, "{again}");
    assert_eq!(hub.index(&old.release, &new.release).expect("an index").0, index);

    let other = Hub::of(2, TinyRelease::with_a_moved_program);
    other.create_and_push().exits(0);
    let [old, new] = [0, 1].map(|version| &other.releases[version].release);
    let same = other.index(old, new).expect("an index").0;
    let tools = hub.releases[1].component("tools").digest();
    let digests = |index: &DeltaIndex| -> BTreeSet<String> {
        let artifacts = index.artifacts.iter();
        let of_tools = artifacts.filter(|artifact| artifact.target.to_string() == tools);
        of_tools.map(|artifact| artifact.digest.to_string()).collect()
    };
    assert_eq!(
        digests(&same),
        digests(&index),
        "the same images make the same artifacts"
    );
}

#[test]
fn a_second_run_downloads_no_layer_and_changes_nothing() {
    needs!(docker_registry());
    let hub = Hub::with_versions(2);
    hub.create_and_push().exits(0);
    let [old, new] = [0, 1].map(|version| &hub.releases[version].release);
    let before = hub.index(old, new).expect("an index").1;
    hub.source.clear_log();
    let again = hub.create_and_push().exits(0);
    assert_eq!(hub.source.layer_requests().len(), 0, "{again}");
    assert_eq!(hub.index(old, new).expect("an index").1, before);
    assert_eq!(again.report["totals"]["created"], 0, "{again}");
    assert_eq!(row(&again, "etcd")["state"], "present");
}

#[test]
fn another_run_lists_an_index_that_an_earlier_one_published_but_did_not_list() {
    needs!(docker_registry());
    let hub = Hub::with_versions(2);
    hub.create_and_push().exits(0);
    let referrers = format!("sha256-{}", &hub.releases[1].release.digest()["sha256:".len()..]);
    let listed = || hub.get(&format!("manifests/{referrers}"));
    let before = listed();
    assert_eq!(before.0, 200);
    hub.deltas.remove_tag(REPOSITORY, &referrers);
    assert_eq!(listed().0, 404);
    let again = hub.create_and_push().exits(0);
    assert!(listed() == before, "{again}");
}

#[test]
fn each_old_release_gets_an_index_of_its_own() {
    needs!(docker_registry());
    let hub = Hub::with_versions(3);
    let (to, repository) = (hub.release(2), hub.repository());
    let from = [hub.release(0), hub.release(1)].join(",");
    let run = hub
        .create(&["--from", &from, "--to", &to, "--push", &repository])
        .exits(0);
    for version in [0, 1] {
        let index = hub.index(&hub.releases[version].release, &hub.releases[2].release);
        let (index, json) = index.unwrap_or_else(|| panic!("no index from {version}: {run}"));
        assert_eq!(json["subject"]["digest"], hub.releases[2].release.digest());
        let old = format!("sha256:{}", hub.releases[version].component("etcd").id());
        assert!(
            index
                .artifacts
                .iter()
                .any(|artifact| artifact.sources[0].to_string() == old),
            "{run}"
        );
    }
}

#[test]
fn a_single_image_gets_an_index_for_itself() {
    needs!(docker_registry());
    let hub = Hub::with_versions(1);
    let [old, new] = [0, 1].map(|version| component("operator", 0, 9, version));
    let references = [&old, &new].map(|image| {
        hub.source.push("operators/one", None, image);
        hub.source.at("operators/one", &image.digest())
    });
    let run = hub
        .create(&[
            "--image",
            &references[0],
            &references[1],
            "--push",
            &hub.repository(),
        ])
        .exits(0);
    let (index, json) = hub.index(&old, &new).expect("an index");
    assert_eq!(json["subject"]["digest"], new.digest());
    let artifacts = targets(&hub, &index.artifacts);
    assert_eq!(artifacts.len(), 1, "{run}");
    let layers: Vec<String> = artifacts[0]
        .1
        .layers
        .iter()
        .map(|layer| layer.target.to_string())
        .collect();
    assert_eq!(layers, [new.layers[1].digest.clone()], "the base has not changed");
}

#[test]
fn deltas_go_to_an_oci_layout() {
    needs!(docker_registry());
    let hub = Hub::with_versions(2);
    let (from, to, layout) = (hub.release(0), hub.release(1), hub.host.out("layout"));
    let args = ["--from", &from, "--to", &to, "--output", layout.to_str().unwrap()];
    hub.create(&args).exits(0);
    let read = |path: &str| -> Value {
        let text = fs::read(layout.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        serde_json::from_slice(&text).unwrap()
    };
    assert_eq!(read("oci-layout")["imageLayoutVersion"], "1.0.0");
    let top = read("index.json");
    let expected = tag(&hub.releases[0].release, &hub.releases[1].release);
    let manifests = top["manifests"].as_array().unwrap();
    let tagged = manifests
        .iter()
        .find(|it| it["annotations"]["org.opencontainers.image.ref.name"] == expected.as_str());
    let digest = tagged.unwrap_or_else(|| panic!("no `{expected}`: {top:#}"))["digest"]
        .as_str()
        .unwrap();
    let index = read(&format!("blobs/sha256/{}", &digest["sha256:".len()..]));
    assert_eq!(index["subject"]["digest"], hub.releases[1].release.digest());
    let artifacts = index["manifests"].as_array().unwrap();
    assert!(artifacts.len() >= 2, "{index:#}");

    hub.source.clear_log();
    hub.create(&args).exits(0);
    assert_eq!(hub.source.layer_requests().len(), 0);
}

#[test]
fn a_layer_with_nothing_in_common_has_no_delta_and_is_not_tried_again() {
    needs!(docker_registry());
    let hub = Hub::with_versions(1);
    let [old, new] = [7, 8].map(|seed| {
        let text = "file /data 0644 0:0 bytes=content\n";
        let tar = crate::image::layer::tar_of(text, &[("content", &program(seed, 0))]);
        image("data", vec![Layer::of_tar(&tar, Compression::Gzip)])
    });
    // A second layer, so that there is an index.
    let [old, new] = [(old, 0), (new, 1)].map(|(other, version)| {
        let layers = [component("etcd", version, 2, version).layers, other.layers].concat();
        image("data", layers)
    });
    let references = [&old, &new].map(|image| {
        hub.source.push("data", None, image);
        hub.source.at("data", &image.digest())
    });
    let args = [
        "--image",
        &references[0],
        &references[1],
        "--push",
        &hub.repository(),
    ];
    let run = hub.create(&args).exits(0);
    let (whole, delta) = (
        row(&run, "data")["bytesWhole"].as_u64(),
        row(&run, "data")["bytesDelta"].as_u64(),
    );
    assert!(
        delta > whole.map(|whole| whole / 3) && delta < whole.map(|whole| whole / 2),
        "{run}"
    );
    assert!(
        row(&run, "data")["whyNot"]
            .as_str()
            .is_some_and(|why| why.starts_with("the delta has")),
        "{run}"
    );

    let [other, changed] = [7, 8].map(|seed| {
        let layers = vec![component("etcd", 0, seed, 0).layers[1].clone()];
        let image = image("other", layers);
        hub.source.push("other", None, &image);
        hub.source.at("other", &image.digest())
    });
    let args = ["--image", &other, &changed, "--push", &hub.repository()];
    let run = hub.create(&args).exits(0);
    assert_eq!(row(&run, "other")["state"], "skipped", "{run}");
    hub.source.clear_log();
    let again = hub.create(&args).exits(0);
    assert_eq!(row(&again, "other")["state"], "present", "{again}");
    assert_eq!(hub.source.layer_requests().len(), 0, "{again}");
}

#[test]
fn errors_name_what_to_do() {
    needs!(docker_registry());
    let hub = Hub::with_versions(2);
    let (from, to, repository) = (hub.release(0), hub.release(1), hub.repository());
    hub.create(&["--from", &to, "--to", &to, "--push", &repository])
        .exits(2)
        .says("are the same image");
    hub.create(&["--from", &from, "--to", &to])
        .exits(2)
        .says("--push");
    hub.create(&["--from", &from, "--push", &repository])
        .exits(2)
        .says("--to");
    hub.create(&[
        "--from",
        &from,
        "--to",
        &to,
        "--push",
        &format!("{repository}:tag"),
    ])
    .exits(2)
    .says("neither a tag nor a digest");
    let etcd = hub
        .source
        .at(COMPONENTS, &hub.releases[0].component("etcd").digest());
    hub.create(&["--from", &etcd, "--to", &to, "--push", &repository])
        .exits(5)
        .says("has no `release-manifests/image-references`");
    let missing = hub.source.at(RELEASE, &crate::image::sha256(b"nothing"));
    hub.create(&["--from", &missing, "--to", &to, "--push", &repository])
        .exits(8);
    // The source registry of the tests accepts no uploads.
    let refusing = format!("{}/{COMPONENTS}", hub.source.host());
    let refused = hub.create(&["--from", &from, "--to", &to, "--push", &refusing]);
    assert_ne!(refused.code, 0, "{refused}");
    assert!(!refused.stderr.contains("panicked"), "{refused}");
}

#[test]
fn an_image_that_is_missing_fails_alone() {
    needs!(docker_registry());
    let hub = Hub::with_versions(1);
    let new = TinyRelease::build(&hub.source.host(), 1);
    hub.source.push(RELEASE, None, &new.release);
    for (name, image) in &new.components {
        if *name != "cli" {
            hub.source.push(COMPONENTS, None, image);
        }
    }
    let (from, to, repository) = (hub.release(0), new.reference(&hub.source), hub.repository());
    let run = hub
        .create(&["--from", &from, "--to", &to, "--push", &repository])
        .exits(8);
    assert_eq!(row(&run, "cli")["state"], "failed", "{run}");
    assert_eq!(row(&run, "etcd")["state"], "created", "{run}");
    assert!(hub.index(&hub.releases[0].release, &new.release).is_some());

    new.push(&hub.source);
    let run = hub
        .create(&["--from", &from, "--to", &to, "--push", &repository])
        .exits(0);
    assert_eq!(row(&run, "cli")["state"], "created", "{run}");
    assert_eq!(row(&run, "etcd")["state"], "present", "{run}");
}

#[test]
fn an_image_that_is_missing_later_keeps_its_deltas() {
    needs!(docker_registry());
    let hub = Hub::with_versions(2);
    hub.create_and_push().exits(0);
    let [old, new] = [0, 1].map(|version| &hub.releases[version]);
    let before = hub.index(&old.release, &new.release).expect("an index").1;
    for image in [new.component("etcd"), old.component("cli")] {
        let path = format!("manifests/{}", image.digest());
        hub.source.fault(Fault::on(&path).status(404));
        let run = hub.create_and_push().exits(8);
        let after = hub.index(&old.release, &new.release).expect("an index").1;
        let entries = |index: &Value| -> BTreeSet<String> {
            let entries = index["manifests"].as_array().into_iter().flatten();
            entries.map(|entry| entry["digest"].to_string()).collect()
        };
        assert!(entries(&after).is_superset(&entries(&before)), "{run}");
        hub.source.end_faults();
    }
}

#[test]
fn a_release_that_is_named_twice_gets_one_index() {
    needs!(docker_registry());
    let hub = Hub::with_versions(2);
    let (from, to, repository) = (hub.release(0), hub.release(1), hub.repository());
    let args = [
        "--from",
        &from,
        "--from",
        &from,
        "--to",
        &to,
        "--push",
        &repository,
    ];
    let run = hub.create(&args).exits(0);
    assert_eq!(run.report["indexes"].as_array().map(Vec::len), Some(1), "{run}");
}
