//! Reads and writes the manifest of a delta artifact: all deltas of one image in one format.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::{DeltaSource, Format, LayerDelta};
use super::ArtifactDescriptor;
use super::annotations::{
    CONTENT, IMAGE_CONFIG, IMAGE_LAYER, IMAGE_MANIFEST, OSTREE_COMMIT, REUSED, REUSED_DIFF_ID, SOURCE,
    SOURCE_CONFIG, SOURCES, TAR_SIZE, TARGET, TO,
};
use super::artifact_type::EMPTY_CONFIG;
use super::bounded::{AtMost, digests, joined, parse_json};
use super::delta_index::MAX_SOURCES;
use super::error::ArtifactError;
use crate::oci::{
    Content, Descriptor, DiffId, Digest, OCI_EMPTY_MEDIA_TYPE, OCI_IMAGE_CONFIG_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE, ResolvedImage,
};

/// How many layers an artifact has at most: those of an image that overlay can mount, and the embedded documents.
const MAX_LAYERS: usize = 1024;

/// 1 TiB, as for layers: sums of such sizes cannot overflow.
const MAX_BYTES: u64 = 1 << 40;

/// The deltas of one image in one format. Untrusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaArtifact {
    /// Digest of the target image's manifest.
    pub target: Digest,
    /// The old images; the first one is number 0.
    pub sources: Vec<DeltaSource>,
    /// One for each layer that a delta makes.
    pub layers: Vec<LayerDelta>,
}

/// What a new artifact consists of. The target's manifest and config are blobs of the artifact, and so is
/// [`EMPTY_CONFIG`]: all must be in the repository before the artifact.
#[derive(Clone, Debug)]
pub struct NewArtifact<'a> {
    /// How the deltas are encoded.
    pub format: Format,
    /// The image that they make.
    pub target: &'a ResolvedImage,
    /// Digest of the manifest of old image 0.
    pub source_manifest: Digest,
    /// The old images; the first one is number 0. Only this one may be read by a delta in [`Format::TarDiff`].
    pub sources: &'a [DeltaSource],
    /// The deltas. Each target layer has at most one.
    pub layers: &'a [LayerDelta],
    /// The layers that the target shares with old image 0: the digest of the blob, as the target's manifest names it, and
    /// the diffID.
    pub reused: &'a [(Digest, DiffId)],
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    artifact_type: Option<String>,
    layers: AtMost<Entry, MAX_LAYERS>,
    annotations: Option<Annotations>,
}

#[derive(Deserialize, Default)]
struct Annotations {
    #[serde(rename = "io.github.containers.delta.target")]
    target: Option<Digest>,
    #[serde(rename = "io.github.containers.delta.source-config")]
    source_config: Option<Digest>,
    #[serde(rename = "io.spoke-precache.delta.sources")]
    sources: Option<String>,
    #[serde(rename = "io.spoke-precache.delta.ostree-commit")]
    ostree_commit: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    media_type: String,
    digest: Digest,
    size: u64,
    annotations: Option<EntryAnnotations>,
}

#[derive(Deserialize, Default)]
struct EntryAnnotations {
    #[serde(rename = "io.github.containers.delta.content")]
    content: Option<String>,
    #[serde(rename = "io.github.containers.delta.to")]
    to: Option<String>,
    #[serde(rename = "io.spoke-precache.delta.tar-size")]
    tar_size: Option<String>,
}

impl DeltaArtifact {
    /// The largest artifact that is read, in bytes.
    pub const MAX_SIZE: u64 = 1 << 20;

    /// Parses an artifact's manifest. Layers that are not deltas, such as whole blobs, are left out.
    pub fn parse(bytes: &[u8]) -> Result<Self, ArtifactError> {
        let body: Body = parse_json(bytes, Self::MAX_SIZE)?;
        let artifact_type = body.artifact_type.as_deref();
        if artifact_type.and_then(Format::of_artifact_type).is_none() {
            return Err(ArtifactError::artifact_type(artifact_type));
        }
        let annotations = body.annotations.unwrap_or_default();
        let target = annotations.target.ok_or(ArtifactError::Missing(TARGET))?;
        let sources = annotations.sources()?;
        let mut seen = BTreeSet::new();
        let mut layers = Vec::new();
        for entry in body.layers.0 {
            let Some(layer) = entry.read()? else { continue };
            if !seen.insert(layer.target) {
                return Err(ArtifactError::Duplicate(layer.target));
            }
            layers.push(layer);
        }
        Ok(Self {
            target,
            sources,
            layers,
        })
    }
}

impl Annotations {
    fn sources(&self) -> Result<Vec<DeltaSource>, ArtifactError> {
        let commit = self.ostree_commit.clone();
        let commit = commit.map(|commit| match Digest::from_hex(&commit) {
            Ok(_) => Ok(commit),
            Err(_) => Err(ArtifactError::annotation(
                OSTREE_COMMIT,
                "it is not a checksum of ostree",
            )),
        });
        let mut commit = commit.transpose()?;
        let configs = match (&self.sources, self.source_config) {
            (Some(text), _) => digests(text, MAX_SOURCES),
            (None, Some(only)) => Ok(vec![only]),
            (None, None) => return Err(ArtifactError::Missing(SOURCE_CONFIG)),
        };
        let configs = configs.map_err(|why| ArtifactError::annotation(SOURCES, why))?;
        let sources = configs.into_iter().map(|config| DeltaSource {
            config,
            ostree_commit: commit.take(),
        });
        Ok(sources.collect())
    }
}

impl Entry {
    /// `None` if it is not a delta.
    fn read(self) -> Result<Option<LayerDelta>, ArtifactError> {
        let annotations = self.annotations.unwrap_or_default();
        let format = Format::of_media_type(&self.media_type);
        let is_layer = annotations.content.as_deref() == Some(IMAGE_LAYER);
        let Some(format) = format.filter(|_| is_layer) else {
            return Ok(None);
        };
        let to = annotations.to.ok_or(ArtifactError::Missing(TO))?;
        let target = to.parse().map_err(|why| ArtifactError::annotation(TO, why))?;
        let tar_size = annotations.tar_size.map(|text| match text.parse() {
            Ok(size) if size <= MAX_BYTES => Ok(size),
            _ => Err(ArtifactError::annotation(TAR_SIZE, text)),
        });
        if self.size > MAX_BYTES {
            return Err(ArtifactError::TooLarge {
                found: self.size,
                limit: MAX_BYTES,
            });
        }
        Ok(Some(LayerDelta {
            blob: self.digest,
            size: self.size,
            format,
            target,
            tar_size: tar_size.transpose()?,
        }))
    }
}

impl NewArtifact<'_> {
    /// The artifact's manifest as JSON.
    pub fn to_json(&self) -> Bytes {
        let (manifest, config) = (&self.target.manifest, &self.target.config);
        let embedded = |media_type: &str, content: &Content, role: &str| {
            json!({
                "mediaType": media_type,
                "digest": content.digest(),
                "size": content.bytes().len(),
                "annotations": {CONTENT: role},
            })
        };
        let mut layers = vec![
            embedded(OCI_IMAGE_MEDIA_TYPE, manifest, IMAGE_MANIFEST),
            // Whatever the image's manifest states: oci-delta writes only this media type.
            embedded(OCI_IMAGE_CONFIG_MEDIA_TYPE, config, IMAGE_CONFIG),
        ];
        layers.extend(self.layers.iter().map(layer_json));
        json!({
            "schemaVersion": 2,
            "mediaType": OCI_IMAGE_MEDIA_TYPE,
            "artifactType": self.format.artifact_type(),
            "config": {
                "mediaType": OCI_EMPTY_MEDIA_TYPE,
                "digest": Digest::of(EMPTY_CONFIG),
                "size": EMPTY_CONFIG.len(),
            },
            "layers": layers,
            "subject": self.subject(),
            "annotations": self.annotations(),
        })
        .to_string()
        .into()
    }

    /// How an index lists the artifact with this manifest.
    pub fn descriptor(&self, manifest: &[u8]) -> ArtifactDescriptor {
        ArtifactDescriptor {
            digest: Digest::of(manifest),
            size: manifest.len() as u64,
            format: self.format,
            target: self.target.manifest.digest(),
            sources: self.sources.iter().map(|source| source.config).collect(),
        }
    }

    fn subject(&self) -> Descriptor {
        let manifest = &self.target.manifest;
        // The manifest was parsed as an image's; an impossible failure would only cost its media type.
        Descriptor::of_manifest(manifest).unwrap_or_else(|_| Descriptor {
            media_type: OCI_IMAGE_MEDIA_TYPE.to_owned(),
            digest: manifest.digest(),
            size: manifest.bytes().len() as u64,
        })
    }

    fn annotations(&self) -> Value {
        let mut annotations = Map::new();
        let mut add = |name: &str, value: String| annotations.insert(name.to_owned(), Value::String(value));
        add(TARGET, self.target.manifest.digest().to_string());
        add(SOURCE, self.source_manifest.to_string());
        if let Some(first) = self.sources.first() {
            add(SOURCE_CONFIG, first.config.to_string());
            if let Some(commit) = &first.ostree_commit {
                add(OSTREE_COMMIT, commit.clone());
            }
        }
        add(SOURCES, joined(self.sources.iter().map(|source| &source.config)));
        if !self.reused.is_empty() {
            let blobs: Vec<Digest> = self.reused.iter().map(|(blob, _)| *blob).collect();
            let diff_ids: Vec<String> = self.reused.iter().map(|(_, id)| id.to_string()).collect();
            add(REUSED, json!(blobs).to_string());
            add(REUSED_DIFF_ID, json!(diff_ids).to_string());
        }
        Value::Object(annotations)
    }
}

fn layer_json(layer: &LayerDelta) -> Value {
    let mut annotations = json!({CONTENT: IMAGE_LAYER, TO: layer.target});
    if let Some(tar_size) = layer.tar_size {
        annotations[TAR_SIZE] = json!(tar_size.to_string());
    }
    json!({
        "mediaType": layer.format.media_type(),
        "digest": layer.blob,
        "size": layer.size,
        "annotations": annotations,
    })
}
