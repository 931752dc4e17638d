//! Writes the index of an image's referrers, for registries without the referrers API.
//!
//! Such a registry has it under the tag `sha256-<hex of the image's manifest>` (OCI distribution spec, "Referrers Tag
//! Schema"), and clients maintain it. The entries of other clients stay as they are, byte for byte.

use std::collections::BTreeMap;

use bytes::Bytes;
use oci_distribution::manifest::{OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::oci::{Digest, MAX_MANIFEST_SIZE};

/// The tag of the index of the referrers of the manifest with this digest.
pub fn referrers_tag(subject: Digest) -> String {
    format!("sha256-{}", subject.hex())
}

/// An index of referrers that cannot be extended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the index of referrers under the tag `{tag}` cannot be extended: {why}")]
pub struct ReferrersIndexError {
    tag: String,
    why: String,
}

/// A manifest with a subject, as the index of that subject's referrers lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReferrerEntry {
    media_type: String,
    digest: Digest,
    size: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact_type: Option<String>,
    /// Digest of the manifest that it refers to.
    #[serde(skip)]
    subject: Digest,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pushed {
    media_type: Option<String>,
    artifact_type: Option<String>,
    config: Option<Config>,
    subject: Option<Subject>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    media_type: String,
}

#[derive(Deserialize)]
struct Subject {
    digest: Digest,
}

/// An index as it is, with its entries unparsed.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index<'a> {
    schema_version: u32,
    media_type: String,
    #[serde(borrow)]
    manifests: Vec<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    annotations: Option<&'a RawValue>,
}

/// What identifies an entry.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Known {
    digest: String,
    artifact_type: Option<String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl ReferrerEntry {
    /// The entry for this manifest or index; nothing if it has no subject.
    pub fn of_manifest(bytes: &[u8]) -> Result<Option<Self>, serde_json::Error> {
        let pushed: Pushed = serde_json::from_slice(bytes)?;
        let Some(subject) = pushed.subject else {
            return Ok(None);
        };
        let artifact_type = pushed.artifact_type.filter(|text| !text.is_empty());
        Ok(Some(Self {
            media_type: pushed
                .media_type
                .unwrap_or_else(|| OCI_IMAGE_MEDIA_TYPE.to_owned()),
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
            annotations: pushed.annotations.unwrap_or_default(),
            artifact_type: artifact_type.or(pushed.config.map(|config| config.media_type)),
            subject: subject.digest,
        }))
    }

    /// The tag of the index that lists it.
    pub fn tag(&self) -> String {
        referrers_tag(self.subject)
    }

    /// The index with this entry; nothing if `index`, the current one, has it already. An entry of the same artifact type
    /// with the same annotations is an earlier version, and is replaced.
    pub fn add_to(&self, index: Option<&[u8]>) -> Result<Option<Bytes>, ReferrersIndexError> {
        let refuse = |why: String| ReferrersIndexError { tag: self.tag(), why };
        let mut current = match index {
            Some(bytes) => serde_json::from_slice(bytes).map_err(|error| refuse(error.to_string()))?,
            None => Index {
                schema_version: 2,
                media_type: OCI_IMAGE_INDEX_MEDIA_TYPE.to_owned(),
                manifests: Vec::new(),
                annotations: None,
            },
        };
        if current.media_type != OCI_IMAGE_INDEX_MEDIA_TYPE {
            return Err(refuse("it is no OCI index".to_owned()));
        }
        let own = serde_json::value::to_raw_value(self).map_err(|error| refuse(error.to_string()))?;
        let digest = self.digest.to_string();
        let (mut is_listed, mut others) = (false, Vec::new());
        for entry in current.manifests {
            // An entry that cannot be read is another client's.
            let known: Option<Known> = serde_json::from_str(entry.get()).ok();
            is_listed |= known.as_ref().is_some_and(|known| known.digest == digest);
            if !known.is_some_and(|known| self.replaces(&known)) {
                others.push(entry);
            }
        }
        if is_listed {
            return Ok(None);
        }
        others.push(&own);
        current.manifests = others;
        let json = serde_json::to_vec(&current).map_err(|error| refuse(error.to_string()))?;
        if json.len() as u64 > MAX_MANIFEST_SIZE {
            return Err(refuse(format!(
                "it would be larger than {MAX_MANIFEST_SIZE} bytes"
            )));
        }
        Ok(Some(json.into()))
    }

    fn replaces(&self, known: &Known) -> bool {
        !known.annotations.is_empty()
            && known.artifact_type == self.artifact_type
            && known.annotations == self.annotations
    }
}
