//! Tests what is written, what is read back, and what is refused.

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::delta::{DeltaSource, Format, LayerDelta};
use crate::oci::{Content, Descriptor, DiffId, Digest, OCI_IMAGE_MEDIA_TYPE, ResolvedImage};

fn digest(name: &str) -> Digest {
    Digest::of(name.as_bytes())
}

fn target() -> ResolvedImage {
    let layers = ["shared", "new", "newer"];
    let config = json!({"architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": layers.map(digest)}});
    let config = Content::new(config.to_string().into());
    let layers = layers.map(|name| {
        json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
            "digest": digest(&format!("gzip {name}")), "size": 10})
    });
    let manifest = json!({"schemaVersion": 2, "mediaType": OCI_IMAGE_MEDIA_TYPE,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": config.digest(), "size": config.bytes().len()},
        "layers": layers});
    let manifest = Content::new(manifest.to_string().into());
    ResolvedImage::assemble(None, manifest, config).expect("an image")
}

fn sources() -> Vec<DeltaSource> {
    vec![
        DeltaSource {
            config: digest("old config"),
            ostree_commit: Some(digest("commit").hex()),
        },
        DeltaSource {
            config: digest("other config"),
            ostree_commit: None,
        },
    ]
}

fn deltas(format: Format) -> Vec<LayerDelta> {
    let delta = |name: &str, tar_size| LayerDelta {
        blob: digest(&format!("delta {name}")),
        size: 5,
        format,
        target: digest(&format!("gzip {name}")),
        tar_size,
    };
    vec![delta("new", Some(4096)), delta("newer", None)]
}

fn artifact(format: Format) -> Bytes {
    let reused: [(Digest, DiffId); 1] = [(digest("gzip shared"), target().layers[0].diff_id())];
    let new = NewArtifact {
        format,
        target: &target(),
        source_manifest: digest("old manifest"),
        sources: &sources(),
        layers: &deltas(format),
        reused: &reused,
    };
    new.to_json()
}

#[test]
fn an_artifact_is_read_as_it_was_written() {
    for format in [Format::TarDiff, Format::InflatedTarDiff] {
        let expected = DeltaArtifact {
            target: target().manifest.digest(),
            sources: sources(),
            layers: deltas(format),
        };
        assert_eq!(DeltaArtifact::parse(&artifact(format)), Ok(expected));
    }
}

#[test]
fn the_standard_artifact_has_the_form_of_oci_delta() {
    let target = target();
    let embedded = |media_type: &str, content: &Content, role: &str| {
        json!({"mediaType": media_type, "digest": content.digest(), "size": content.bytes().len(),
            "annotations": {"io.github.containers.delta.content": role}})
    };
    let mut layers = vec![
        embedded(OCI_IMAGE_MEDIA_TYPE, &target.manifest, "image-manifest"),
        embedded(
            "application/vnd.oci.image.config.v1+json",
            &target.config,
            "image-config",
        ),
    ];
    for (name, tar_size) in [("new", Some("4096")), ("newer", None)] {
        let mut layer = json!({"mediaType": "application/vnd.tar-diff", "digest": digest(&format!("delta {name}")),
            "size": 5, "annotations": {"io.github.containers.delta.content": "image-layer",
                "io.github.containers.delta.to": digest(&format!("gzip {name}"))}});
        if let Some(tar_size) = tar_size {
            layer["annotations"]["io.spoke-precache.delta.tar-size"] = json!(tar_size);
        }
        layers.push(layer);
    }
    let sources = format!("{},{}", digest("old config"), digest("other config"));
    let expected = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": "application/vnd.io.github.containers.oci-delta.v1",
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest("{}"), "size": 2},
        "layers": layers,
        "subject": {"mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": target.manifest.digest(), "size": target.manifest.bytes().len()},
        "annotations": {
            "io.github.containers.delta.target": target.manifest.digest(),
            "io.github.containers.delta.source": digest("old manifest"),
            "io.github.containers.delta.source-config": digest("old config"),
            "io.spoke-precache.delta.ostree-commit": digest("commit").hex(),
            "io.spoke-precache.delta.sources": sources,
            "io.github.containers.delta.reused": format!("[\"{}\"]", digest("gzip shared")),
            "io.github.containers.delta.reused-diff-id": format!("[\"{}\"]", digest("shared")),
        },
    });
    let written: Value = serde_json::from_slice(&artifact(Format::TarDiff)).expect("JSON");
    assert_eq!(written, expected);
}

#[test]
fn an_artifact_of_another_creator_has_one_source_and_may_have_whole_layers() {
    let mut foreign: Value = serde_json::from_slice(&artifact(Format::TarDiff)).expect("JSON");
    let annotations = foreign["annotations"].as_object_mut().expect("an object");
    annotations.retain(|name, _| name.starts_with("io.github.containers"));
    foreign["layers"][3]["mediaType"] = json!("application/vnd.oci.image.layer.v1.tar+gzip");
    let signature = json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest("s"),
        "size": 3, "annotations": {"io.github.containers.delta.content": "cosign-signature"}});
    foreign["layers"].as_array_mut().expect("a list").push(signature);
    let parsed = DeltaArtifact::parse(foreign.to_string().as_bytes()).expect("an artifact");
    let only = DeltaSource {
        config: digest("old config"),
        ostree_commit: None,
    };
    assert_eq!(parsed.sources, [only]);
    assert_eq!(parsed.layers.len(), 1);
}

/// The document with the value at this JSON pointer replaced.
fn with(document: &[u8], pointer: &str, value: Value) -> Vec<u8> {
    let mut document: Value = serde_json::from_slice(document).expect("JSON");
    *document.pointer_mut(pointer).expect("a value") = value;
    document.to_string().into_bytes()
}

#[test]
fn hostile_artifacts_are_refused() {
    let good = artifact(Format::InflatedTarDiff);
    let annotation = |name: &str| format!("/annotations/{name}");
    let layer = |name: &str| format!("/layers/2/{name}");
    let many = vec![digest("x").to_string(); 257].join(",");
    let layers: Value = serde_json::from_slice::<Value>(&good).expect("JSON")["layers"].clone();
    let layer_list = |count: usize| json!(vec![layers[2].clone(); count]);
    let twice = String::from_utf8_lossy(&good).replacen('{', r#"{"layers":[],"#, 1);
    for (document, why) in [
        (b"<html>".to_vec(), "cannot be read"),
        (b"[".repeat(100_000), "cannot be read"),
        (twice.into_bytes(), "duplicate field `layers`"),
        (vec![b' '; (1 << 20) + 1], "more than 1048576"),
        (
            with(&good, "/artifactType", json!("x\u{1b}[31m")),
            "artifact type is `x[31m`",
        ),
        (with(&good, "/artifactType", json!(DELTA_INDEX)), "artifact type"),
        (with(&good, "/annotations", json!({})), "no annotation"),
        (
            with(
                &good,
                &annotation("io.github.containers.delta.target"),
                json!("sha256:0"),
            ),
            "cannot be read",
        ),
        (
            with(&good, &annotation("io.spoke-precache.delta.sources"), json!(many)),
            "more than 256",
        ),
        (
            with(
                &good,
                &annotation("io.spoke-precache.delta.sources"),
                json!("a,b"),
            ),
            "not a digest",
        ),
        (
            with(
                &good,
                &annotation("io.spoke-precache.delta.ostree-commit"),
                json!("../x"),
            ),
            "ostree",
        ),
        (
            with(&good, &layer("digest"), json!("sha256:../x")),
            "cannot be read",
        ),
        (with(&good, &layer("size"), json!(-1)), "cannot be read"),
        (
            with(&good, &layer("size"), json!(u64::MAX)),
            "more than 1099511627776",
        ),
        (
            with(
                &good,
                &layer("annotations/io.github.containers.delta.to"),
                json!("x"),
            ),
            "not a digest",
        ),
        (
            with(
                &good,
                &layer("annotations/io.spoke-precache.delta.tar-size"),
                json!("1e9"),
            ),
            "tar-size",
        ),
        (
            with(
                &good,
                &layer("annotations/io.spoke-precache.delta.tar-size"),
                json!("9999999999999"),
            ),
            "tar-size",
        ),
        (with(&good, "/layers", layer_list(2)), "two deltas for layer"),
        (with(&good, "/layers", layer_list(1025)), "at most 1024"),
    ] {
        let error = DeltaArtifact::parse(&document).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
        assert!(error.len() < 300, "{error}");
    }
}

fn index() -> DeltaIndex {
    let artifact = |format, name: &str| ArtifactDescriptor {
        digest: digest(name),
        size: 700,
        format,
        target: digest("target"),
        sources: vec![digest("old config"), digest("other config")],
    };
    DeltaIndex {
        from: Some("quay.io/a/release:4.18.1".to_owned()),
        to: Some("quay.io/a/release:4.18.2".to_owned()),
        artifacts: vec![
            artifact(Format::TarDiff, "standard"),
            artifact(Format::InflatedTarDiff, "ours"),
        ],
        without: vec![digest("unchanged"), digest("other")],
    }
}

fn subject() -> Descriptor {
    Descriptor::of_manifest(&target().manifest).expect("a manifest")
}

#[test]
fn an_index_is_read_as_it_was_written() {
    for index in [index(), DeltaIndex::default()] {
        for subject in [None, Some(&subject())] {
            let json = index.to_json(subject);
            assert_eq!(DeltaIndex::parse(&json).as_ref(), Ok(&index));
            let value: Value = serde_json::from_slice(&json).expect("JSON");
            assert_eq!(value.get("subject").is_some(), subject.is_some());
        }
    }
}

#[test]
fn artifacts_of_unknown_types_are_left_out_of_an_index() {
    let json = index().to_json(None);
    let json = with(&json, "/manifests/0/artifactType", json!("application/vnd.other"));
    let parsed = DeltaIndex::parse(&json).expect("an index");
    assert_eq!(parsed.artifacts.len(), 1);
    assert_eq!(parsed.artifacts[0].digest, digest("ours"));
}

#[test]
fn hostile_indexes_are_refused() {
    let good = index().to_json(None);
    let entry = serde_json::from_slice::<Value>(&good).expect("JSON")["manifests"][0].clone();
    for (document, why) in [
        (b"[]".to_vec(), "cannot be read"),
        (vec![b' '; (4 << 20) + 1], "more than 4194304"),
        (with(&good, "/artifactType", json!(null)), "artifact type"),
        (
            with(&good, "/manifests", json!(vec![entry; 4097])),
            "at most 4096",
        ),
        (
            with(&good, "/manifests/0/annotations", json!({})),
            "no annotation",
        ),
        (with(&good, "/manifests/0/digest", json!("x")), "cannot be read"),
        (
            with(&good, "/annotations/io.spoke-precache.delta.without", json!("x")),
            "without",
        ),
    ] {
        let error = DeltaIndex::parse(&document).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
    let long = with(
        &good,
        "/annotations/io.spoke-precache.delta.from",
        json!("x".repeat(600)),
    );
    assert_eq!(DeltaIndex::parse(&long).expect("an index").from, None);
}
