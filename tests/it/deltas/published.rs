//! Stores deltas in a registry: blobs, an artifact for each format, the index, and the fallback tag that leads to it.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::image::{Image, sha256};
use crate::registry::Registry;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DELTA_INDEX: &str = "application/vnd.spoke-precache.delta-index.v1";

/// The deltas of one image in one format.
#[derive(Clone)]
pub(super) struct Artifact {
    artifact_type: &'static str,
    media_type: &'static str,
    /// Digest of each layer's blob, and its delta.
    layers: Vec<(String, Bytes)>,
}

impl Artifact {
    /// One delta in the format of containers/tar-diff.
    pub(super) fn standard(target: &str, delta: Vec<u8>) -> Self {
        Self {
            artifact_type: "application/vnd.io.github.containers.oci-delta.v1",
            media_type: "application/vnd.tar-diff",
            layers: vec![(target.to_owned(), delta.into())],
        }
    }

    /// One delta in this project's format.
    pub(super) fn ours(target: &str, delta: Vec<u8>) -> Self {
        Self {
            artifact_type: "application/vnd.spoke-precache.delta.v1",
            media_type: "application/vnd.spoke-precache.inflated-tar-diff.v1",
            ..Self::standard(target, delta)
        }
    }

    /// The same with these deltas, each after the digest of its layer's blob.
    pub(super) fn with_layers(self, layers: Vec<(String, Bytes)>) -> Self {
        Self { layers, ..self }
    }

    /// Digest of the delta of its first layer.
    pub(super) fn digest(&self) -> String {
        sha256(&self.layers[0].1)
    }

    fn manifest(&self, target: &Image, sources: &[String]) -> Value {
        let layers = self.layers.iter().map(|(to, delta)| {
            json!({
                "mediaType": self.media_type,
                "digest": sha256(delta),
                "size": delta.len(),
                "annotations": {
                    "io.github.containers.delta.content": "image-layer",
                    "io.github.containers.delta.to": to,
                },
            })
        });
        json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": self.artifact_type,
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": sha256(b"{}"), "size": 2},
            "layers": layers.collect::<Vec<_>>(),
            "subject": subject(target),
            "annotations": {
                "io.github.containers.delta.target": target.digest(),
                "io.github.containers.delta.source": target.digest(),
                "io.github.containers.delta.source-config": sources[0],
                "io.spoke-precache.delta.sources": sources.join(","),
            },
        })
    }
}

fn subject(target: &Image) -> Value {
    json!({"mediaType": target.media_type, "digest": target.digest(), "size": target.manifest.len()})
}

/// Stores the deltas from `sources` to `target`, and the index of them, in one repository. Returns the digest of the index.
pub(super) fn publish(
    registry: &Registry,
    repository: &str,
    target: &Image,
    sources: &[&Image],
    artifacts: &[Artifact],
) -> String {
    let artifacts = artifacts.iter().map(|artifact| (target, sources, artifact));
    publish_index(registry, repository, target, &artifacts.collect::<Vec<_>>())
}

/// Stores deltas, each with its target and sources, and the index of them, which refers to `subject`.
pub(super) fn publish_index(
    registry: &Registry,
    repository: &str,
    subject_image: &Image,
    artifacts: &[(&Image, &[&Image], &Artifact)],
) -> String {
    let mut described = Vec::new();
    for (target, sources, artifact) in artifacts {
        let configs: Vec<String> = sources.iter().map(|image| sha256(&image.config)).collect();
        for (_, delta) in &artifact.layers {
            registry
                .content()
                .put_blob(repository, &sha256(delta), delta.clone());
        }
        let manifest = artifact.manifest(target, &configs);
        let (digest, size) = put(registry, repository, MANIFEST, &manifest);
        described.push(json!({
            "mediaType": MANIFEST,
            "digest": digest,
            "size": size,
            "artifactType": artifact.artifact_type,
            "annotations": {
                "io.github.containers.delta.target": target.digest(),
                "io.spoke-precache.delta.sources": configs.join(","),
            },
        }));
    }
    let index = json!({
        "schemaVersion": 2,
        "mediaType": INDEX,
        "artifactType": DELTA_INDEX,
        "manifests": described,
        "subject": subject(subject_image),
    });
    let (digest, size) = put(registry, repository, INDEX, &index);
    refer(
        registry,
        repository,
        subject_image,
        &referrers(&[(&digest, size)]),
    );
    digest
}

/// A list of referrers, each an index of deltas.
pub(super) fn referrers(indexes: &[(&str, usize)]) -> String {
    let entries = indexes.iter().map(|(digest, size)| {
        json!({"mediaType": INDEX, "digest": digest, "size": size, "artifactType": DELTA_INDEX})
    });
    json!({
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": entries.collect::<Vec<_>>(),
    })
    .to_string()
}

/// Stores a list of referrers by the referrers tag schema of the OCI distribution specification.
pub(super) fn refer(registry: &Registry, repository: &str, subject: &Image, referrers: &str) {
    let tag = subject.digest().replace(':', "-");
    let bytes = Bytes::from(referrers.to_owned());
    registry.content().put_manifest(repository, &tag, INDEX, bytes);
}

fn put(registry: &Registry, repository: &str, media_type: &str, manifest: &Value) -> (String, usize) {
    let bytes = Bytes::from(manifest.to_string());
    let (digest, size) = (sha256(&bytes), bytes.len());
    registry
        .content()
        .put_manifest(repository, &digest, media_type, bytes);
    (digest, size)
}
