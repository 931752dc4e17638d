//! Reads the tags of an OCI layout from its `index.json`.

use std::collections::HashMap;

use serde::Deserialize;

use super::tag::names_digest;
use super::tree::Tree;
use crate::oci::Digest;

const INDEX: &str = "index.json";

/// The largest `index.json` that is read; with one entry for each image of a release it has 100 KiB.
const MAX_INDEX: u64 = 16 << 20;

/// The digest of each `org.opencontainers.image.ref.name`.
#[derive(Debug, Default)]
pub(super) struct OciTags(HashMap<String, Digest>);

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    digest: String,
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(rename = "org.opencontainers.image.ref.name")]
    ref_name: Option<String>,
}

impl OciTags {
    /// Reads the file if there is one. Blobs are found without it, so that it cannot be read is only a warning.
    pub(super) fn read(tree: &Tree, warnings: &mut Vec<String>) -> Self {
        let bytes = match tree.read(INDEX, MAX_INDEX) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                warnings.push(format!("`{INDEX}` is missing, so no tag is found"));
                return Self::default();
            }
            Err(error) => {
                warnings.push(format!("cannot read `{INDEX}`, so no tag is found: {error}"));
                return Self::default();
            }
        };
        Self::parse(&bytes).unwrap_or_else(|error| {
            warnings.push(format!("cannot read `{INDEX}`, so no tag is found: {error}"));
            Self::default()
        })
    }

    fn parse(bytes: &[u8]) -> serde_json::Result<Self> {
        let index: Index = serde_json::from_slice(bytes)?;
        let tags = index.manifests.into_iter().filter_map(|entry| {
            let name = entry.annotations?.ref_name?;
            Some((name, entry.digest.parse().ok()?))
        });
        Ok(Self(tags.collect()))
    }

    /// The digest of a tag. The name must be the full one, unless the tag itself names a digest.
    pub(super) fn digest(&self, repository: &str, tag: &str) -> Option<Digest> {
        let full = self.0.get(&format!("{repository}:{tag}"));
        let short = || names_digest(tag).then(|| self.0.get(tag)).flatten();
        full.or_else(short).copied()
    }
}
