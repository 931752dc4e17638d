//! Writes the index of an image's referrers, for registries without the referrers API.
//!
//! Such a registry has it under the tag `sha256-<hex of the image's manifest>` (OCI distribution spec, "Referrers Tag
//! Schema"), and clients maintain it. The entries of other clients stay as they are, byte for byte.
//!
//! A tool that copies an OCI layout may put an index that is a referrer itself under that tag. It becomes the first entry of
//! an index of referrers when the second one is added.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::oci::{Digest, MAX_MANIFEST_SIZE, OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE};

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

    /// Whether both are versions of one artifact: they have the same artifact type and the same annotations.
    pub fn is_version_of(&self, other: &Self) -> bool {
        self.artifact_type == other.artifact_type && self.annotations == other.annotations
    }

    /// The tag of the index that lists it.
    pub fn tag(&self) -> String {
        referrers_tag(self.subject)
    }

    /// The index with this entry; nothing if `index`, the current one, has it already. An entry of the same artifact type
    /// with the same annotations is an earlier version, and is replaced.
    pub fn add_to(&self, index: Option<&[u8]>) -> Result<Option<Bytes>, ReferrersIndexError> {
        let refuse = |why: String| ReferrersIndexError { tag: self.tag(), why };
        let direct = match index.map(Self::of_manifest) {
            Some(Ok(direct)) => direct.filter(|direct| direct.subject == self.subject),
            _ => None,
        };
        if direct.as_ref().is_some_and(|direct| direct.digest == self.digest) {
            return Ok(None);
        }
        let raw =
            |entry: &Self| serde_json::value::to_raw_value(entry).map_err(|error| refuse(error.to_string()));
        let is_list = direct.is_none();
        let first = direct.filter(|direct| !direct.is_version_of(self));
        let first = first.as_ref().map(raw).transpose()?;
        let mut current = match index.filter(|_| is_list) {
            Some(bytes) => serde_json::from_slice(bytes).map_err(|error| refuse(error.to_string()))?,
            None => Index {
                schema_version: 2,
                media_type: OCI_IMAGE_INDEX_MEDIA_TYPE.to_owned(),
                manifests: first.iter().map(AsRef::as_ref).collect(),
                annotations: None,
            },
        };
        if current.media_type != OCI_IMAGE_INDEX_MEDIA_TYPE {
            return Err(refuse("it is not an OCI index".to_owned()));
        }
        let own = raw(self)?;
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn index(kind: &str, name: &str, subject: &[u8]) -> Bytes {
        let subject = json!({"mediaType": "m", "digest": Digest::of(subject), "size": 7});
        let index = json!({"schemaVersion": 2, "mediaType": OCI_IMAGE_INDEX_MEDIA_TYPE, "artifactType": kind,
            "manifests": [], "subject": subject, "annotations": {"name": name}});
        index.to_string().into()
    }

    fn entry(bytes: &[u8]) -> ReferrerEntry {
        ReferrerEntry::of_manifest(bytes)
            .expect("JSON")
            .expect("a subject")
    }

    fn digests(index: &[u8]) -> Vec<String> {
        let index: Value = serde_json::from_slice(index).expect("JSON");
        let entries = index["manifests"].as_array().expect("a list").iter();
        entries
            .map(|entry| entry["digest"].as_str().expect("a digest").to_owned())
            .collect()
    }

    fn text(bytes: &[u8]) -> String {
        Digest::of(bytes).to_string()
    }

    #[test]
    fn an_entry_is_added_once_and_replaces_its_earlier_version() {
        let (first, second) = (index("a", "one", b"s"), index("a", "two", b"s"));
        let list = entry(&first).add_to(None).expect("no list").expect("a list");
        assert_eq!(digests(&list), [text(&first)]);
        assert_eq!(entry(&first).add_to(Some(&list)), Ok(None));
        let list = entry(&second)
            .add_to(Some(&list))
            .expect("a list")
            .expect("longer");
        assert_eq!(digests(&list), [text(&first), text(&second)]);
        // The same pair with other deltas.
        let newer = String::from_utf8(first.to_vec())
            .expect("UTF-8")
            .replace("[]", "[{}]");
        let list = entry(newer.as_bytes()).add_to(Some(&list));
        let list = list.expect("a list").expect("another");
        assert_eq!(digests(&list), [text(&second), text(newer.as_bytes())]);
    }

    #[test]
    fn entries_of_other_clients_stay_byte_for_byte() {
        let other = r#"{"digest" : "sha512:0", "size":1e2,  "unknown":[1.50]}"#;
        let list = format!(
            r#"{{"schemaVersion":2,"mediaType":"{OCI_IMAGE_INDEX_MEDIA_TYPE}","manifests":[{other}]}}"#
        );
        let own = entry(&index("a", "one", b"s"));
        let list = own
            .add_to(Some(list.as_bytes()))
            .expect("a list")
            .expect("longer");
        assert!(String::from_utf8_lossy(&list).contains(other));
    }

    #[test]
    fn an_index_that_is_itself_under_the_tag_becomes_an_entry() {
        let (first, second) = (index("a", "one", b"s"), index("a", "two", b"s"));
        assert_eq!(entry(&first).add_to(Some(&first)), Ok(None));
        let list = entry(&second)
            .add_to(Some(&first))
            .expect("a list")
            .expect("another");
        assert_eq!(digests(&list), [text(&first), text(&second)]);
        let newer = String::from_utf8(first.to_vec())
            .expect("UTF-8")
            .replace("[]", "[{}]");
        let list = entry(newer.as_bytes()).add_to(Some(&first));
        let list = list.expect("a list").expect("another");
        assert_eq!(digests(&list), [text(newer.as_bytes())]);
    }

    #[test]
    fn what_is_no_index_is_not_extended() {
        let own = entry(&index("a", "one", b"s"));
        for other in [
            "<html>",
            "[]",
            r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","manifests":[]}"#,
            r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{},"layers":[]}"#,
        ] {
            let error = own.add_to(Some(other.as_bytes())).expect_err(other).to_string();
            assert!(error.contains("cannot be extended"), "{error}");
        }
    }

    #[test]
    fn a_manifest_without_artifact_type_is_of_the_type_of_its_config() {
        let subject = json!({"mediaType": "m", "digest": Digest::of(b"s"), "size": 7});
        let manifest = json!({"schemaVersion": 2, "config": {"mediaType": "c"}, "subject": subject});
        let manifest = manifest.to_string();
        assert_eq!(entry(manifest.as_bytes()).artifact_type.as_deref(), Some("c"));
        assert_eq!(
            entry(manifest.as_bytes()).tag(),
            format!("sha256-{}", Digest::of(b"s").hex())
        );
        let none = ReferrerEntry::of_manifest(br#"{"schemaVersion":2}"#);
        assert!(matches!(none, Ok(None)));
    }
}
