//! Reads and writes the index of the deltas from one release to another.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::Format;
use super::annotations::{FROM, RELEASE, SOURCES, TARGET, WITHOUT};
use super::artifact_type::DELTA_INDEX;
use super::bounded::{AtMost, digests, joined, parse_json};
use super::error::ArtifactError;
use crate::oci::{Descriptor, Digest, OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE};

/// How many artifacts an index lists at most. A release has about 200 images, each with up to two artifacts.
const MAX_ARTIFACTS: usize = 4096;

/// How many old images the deltas of one artifact read at most.
pub(super) const MAX_SOURCES: usize = 256;

/// The longest name of a release that is kept, in bytes.
const MAX_NAME: usize = 512;

/// The deltas from one release to another, or from one image to another. Untrusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeltaIndex {
    /// The old release or image, as a reference with the digest of its manifest.
    pub from: Option<String>,
    /// The new release or image, as a reference with the digest of its manifest.
    pub to: Option<String>,
    /// At least one for each image. In each format, a node uses the first one of an image whose old images it has.
    pub artifacts: Vec<ArtifactDescriptor>,
    /// Digests of the manifests of target images for which no delta saves anything.
    pub without: Vec<Digest>,
}

/// An artifact, as the index lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactDescriptor {
    /// Digest of the artifact's manifest.
    pub digest: Digest,
    /// Length of the artifact's manifest in bytes.
    pub size: u64,
    /// How its deltas are encoded.
    pub format: Format,
    /// Digest of the target image's manifest.
    pub target: Digest,
    /// Digests of the configs of the old images; image 0 first.
    pub sources: Vec<Digest>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    artifact_type: Option<String>,
    manifests: AtMost<Entry, MAX_ARTIFACTS>,
    annotations: Option<Names>,
}

#[derive(Deserialize, Default)]
struct Names {
    #[serde(rename = "io.spoke-precache.delta.from")]
    from: Option<String>,
    #[serde(rename = "io.spoke-precache.delta.release")]
    release: Option<String>,
    #[serde(rename = "io.spoke-precache.delta.without")]
    without: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    artifact_type: Option<String>,
    digest: Digest,
    size: u64,
    annotations: Option<EntryAnnotations>,
}

#[derive(Deserialize, Default)]
struct EntryAnnotations {
    #[serde(rename = "io.github.containers.delta.target")]
    target: Option<Digest>,
    #[serde(rename = "io.spoke-precache.delta.sources")]
    sources: Option<String>,
}

impl DeltaIndex {
    /// The largest index that is read, in bytes.
    pub const MAX_SIZE: u64 = 4 << 20;

    /// Parses an index. Artifacts of unknown types are left out.
    pub fn parse(bytes: &[u8]) -> Result<Self, ArtifactError> {
        let body: Body = parse_json(bytes, Self::MAX_SIZE)?;
        if body.artifact_type.as_deref() != Some(DELTA_INDEX) {
            return Err(ArtifactError::artifact_type(body.artifact_type.as_deref()));
        }
        let names = body.annotations.unwrap_or_default();
        let without = digests(&names.without.unwrap_or_default(), MAX_ARTIFACTS);
        let artifacts = body.manifests.0.into_iter().filter_map(Entry::read);
        Ok(Self {
            from: names.from.filter(|name| name.len() <= MAX_NAME),
            to: names.release.filter(|name| name.len() <= MAX_NAME),
            artifacts: artifacts.collect::<Result<_, _>>()?,
            without: without.map_err(|why| ArtifactError::annotation(WITHOUT, why))?,
        })
    }

    /// The index as JSON. `subject` is the manifest of the new release's image; without it, no registry lists the index
    /// among the referrers of that image.
    pub fn to_json(&self, subject: Option<&Descriptor>) -> Bytes {
        let manifests = self.artifacts.iter().map(ArtifactDescriptor::to_json);
        let mut annotations = Map::new();
        let texts = [(FROM, &self.from), (RELEASE, &self.to)];
        for (name, text) in texts {
            annotations.extend(text.iter().map(|text| (name.to_owned(), json!(text))));
        }
        if !self.without.is_empty() {
            annotations.insert(WITHOUT.to_owned(), json!(joined(&self.without)));
        }
        let mut index = json!({
            "schemaVersion": 2,
            "mediaType": OCI_IMAGE_INDEX_MEDIA_TYPE,
            "artifactType": DELTA_INDEX,
            "manifests": manifests.collect::<Vec<_>>(),
        });
        if let Some(subject) = subject {
            index["subject"] = json!(subject);
        }
        if !annotations.is_empty() {
            index["annotations"] = Value::Object(annotations);
        }
        index.to_string().into()
    }
}

impl Entry {
    /// `None` for an artifact of an unknown type.
    fn read(self) -> Option<Result<ArtifactDescriptor, ArtifactError>> {
        let format = Format::of_artifact_type(self.artifact_type.as_deref()?)?;
        let annotations = self.annotations.unwrap_or_default();
        let read = || {
            let sources = annotations.sources.ok_or(ArtifactError::Missing(SOURCES))?;
            let sources =
                digests(&sources, MAX_SOURCES).map_err(|why| ArtifactError::annotation(SOURCES, why))?;
            Ok(ArtifactDescriptor {
                digest: self.digest,
                size: self.size,
                format,
                target: annotations.target.ok_or(ArtifactError::Missing(TARGET))?,
                sources,
            })
        };
        Some(read())
    }
}

impl ArtifactDescriptor {
    fn to_json(&self) -> Value {
        json!({
            "mediaType": OCI_IMAGE_MEDIA_TYPE,
            "digest": self.digest,
            "size": self.size,
            "annotations": {TARGET: self.target, SOURCES: joined(&self.sources)},
            "artifactType": self.format.artifact_type(),
        })
    }
}
