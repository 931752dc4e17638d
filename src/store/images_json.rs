//! Reads and writes images.json: the records of all images, their names and their big data.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::atomic_file;
use super::error::StoreError;
use super::go_time;
use super::json_record::{self, JsonRecord};
use super::layout::Layout;
use super::lock::ImagesLock;
use crate::oci::{Digest, ImageId, Reference};

/// The order of fields in containers/storage (`images.go`: `Image`).
const FIELDS: [&str; 12] = [
    "id",
    "digest",
    "names",
    "names-history",
    "layer",
    "mapped-layers",
    "metadata",
    "big-data-names",
    "big-data-sizes",
    "big-data-digests",
    "created",
    "flags",
];

/// Items with this key, or this key and `-<digest>`, are manifests.
pub(super) const MANIFEST: &str = "manifest";

/// Items whose keys begin with this are signatures.
const SIGNATURE: &str = "signature";

/// The metadata that containers/image writes for an image without signatures.
const NO_SIGNATURES: &str = "{}";

/// The fields of a record that we use. Every field but the id may be missing or null.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ImageView {
    pub(super) id: String,
    pub(super) digest: Option<String>,
    pub(super) names: Option<Vec<String>>,
    pub(super) layer: Option<String>,
    pub(super) metadata: Option<String>,
    pub(super) created: Option<String>,
    #[serde(rename = "big-data-names")]
    pub(super) big_data_names: Option<Vec<String>>,
    #[serde(rename = "big-data-sizes")]
    pub(super) big_data_sizes: Option<BTreeMap<String, i64>>,
    #[serde(rename = "big-data-digests")]
    pub(super) big_data_digests: Option<BTreeMap<String, String>>,
}

impl ImageView {
    /// The digests by which the image can be found, computed as containers/storage does when it loads the file
    /// (`images.go`: `recomputeDigests`).
    pub(super) fn digests(&self) -> BTreeSet<Digest> {
        let items = self.big_data_digests.iter().flatten();
        let manifests = items
            .filter(|(name, _)| name.starts_with(MANIFEST))
            .map(|(_, digest)| digest);
        manifests
            .chain(&self.digest)
            .filter_map(|digest| digest.parse().ok())
            .collect()
    }
}

/// One item of big data to store for an image.
pub(super) struct BigDataItem<'i> {
    pub(super) key: String,
    pub(super) bytes: &'i [u8],
    pub(super) digest: Digest,
}

/// The content of an image's record.
pub(super) struct NewImage<'i> {
    pub(super) id: ImageId,
    pub(super) name: String,
    /// Additional names of a new record; no other image has them.
    pub(super) further_names: Vec<String>,
    /// The top layer. It replaces the one in an existing record.
    pub(super) layer: Option<String>,
    /// Digest of the first manifest that is stored: the list's, if there is one.
    pub(super) digest: Digest,
    pub(super) items: &'i [BigDataItem<'i>],
    pub(super) created: String,
}

/// The content of images.json.
pub(super) struct ImageTable {
    records: Vec<(ImageView, Box<RawValue>)>,
}

impl ImageTable {
    pub(super) fn read(layout: &Layout) -> Result<Self, StoreError> {
        let records = json_record::read(&layout.images_json())?;
        Ok(Self { records })
    }

    pub(super) fn views(&self) -> impl Iterator<Item = &ImageView> {
        self.records.iter().map(|(view, _)| view)
    }

    pub(super) fn find(&self, id: &ImageId) -> Option<&ImageView> {
        let id = id.to_string();
        self.views().find(|view| view.id == id)
    }

    /// Adds the image, or completes its existing record, and moves the name to it. Returns whether anything changed.
    pub(super) fn put(&mut self, image: &NewImage<'_>) -> Result<bool, serde_json::Error> {
        let id = image.id.to_string();
        let mut changed = self.take_name(&image.name, &id)?;
        let existing = self.records.iter().position(|(view, _)| view.id == id);
        let mut record: JsonRecord = match existing {
            Some(position) => serde_json::from_str(self.records[position].1.get())?,
            None => fresh(image)?,
        };
        merge(&mut record, image)?;
        match existing {
            Some(position) => changed |= self.replace(position, &record)?,
            None => {
                let raw = serde_json::value::to_raw_value(&record)?;
                self.records.push((serde_json::from_str(raw.get())?, raw));
                changed = true;
            }
        }
        Ok(changed)
    }

    /// Gives the image this name by digest and removes the name from any other image. An image that was not stored
    /// with that digest does not get the name. Returns whether anything changed.
    pub(super) fn add_name(&mut self, id: &ImageId, name: &Reference) -> Result<bool, serde_json::Error> {
        let (id, digest, name) = (id.to_string(), name.digest(), name.to_string());
        let is_it = |view: &ImageView| view.id == id && digest.is_some_and(|it| view.digests().contains(&it));
        let Some(position) = self.records.iter().position(|(view, _)| is_it(view)) else {
            return Ok(false);
        };
        let taken = self.take_name(&name, &id)?;
        let mut record: JsonRecord = serde_json::from_str(self.records[position].1.get())?;
        add_name(&mut record, &name)?;
        Ok(self.replace(position, &record)? || taken)
    }

    /// Removes the name from every other image. Returns whether one had it.
    fn take_name(&mut self, name: &str, id: &str) -> Result<bool, serde_json::Error> {
        let mut changed = false;
        for (view, raw) in self.records.iter_mut().filter(|(view, _)| view.id != id) {
            let names = view.names.get_or_insert_default();
            if !names.iter().any(|known| known == name) {
                continue;
            }
            names.retain(|known| known != name);
            let mut record: JsonRecord = serde_json::from_str(raw.get())?;
            if names.is_empty() {
                record.remove("names");
            } else {
                record.set("names", names, &FIELDS)?;
            }
            *raw = serde_json::value::to_raw_value(&record)?;
            changed = true;
        }
        Ok(changed)
    }

    /// Returns whether the record changed.
    fn replace(&mut self, position: usize, record: &JsonRecord) -> Result<bool, serde_json::Error> {
        let raw = serde_json::value::to_raw_value(record)?;
        // Compared as values: different white space is no change.
        let before: JsonRecord = serde_json::from_str(self.records[position].1.get())?;
        if serde_json::to_string(&before)? == raw.get() {
            return Ok(false);
        }
        self.records[position] = (serde_json::from_str(raw.get())?, raw);
        Ok(true)
    }

    /// Replaces the file. Readers see the old content or this one.
    pub(super) fn save(&self, lock: &ImagesLock, layout: &Layout) -> Result<(), StoreError> {
        lock.write_token(layout)?;
        atomic_file::write(
            &layout.images_json(),
            &json_record::join(self.records.iter().map(|(_, raw)| &**raw)),
        )
    }
}

fn fresh(image: &NewImage<'_>) -> Result<JsonRecord, serde_json::Error> {
    let mut record = JsonRecord::default();
    record.set("id", &image.id.to_string(), &FIELDS)?;
    if !image.further_names.is_empty() {
        record.set("names", &image.further_names, &FIELDS)?;
    }
    record.set("digest", &image.digest, &FIELDS)?;
    record.set("metadata", &NO_SIGNATURES, &FIELDS)?;
    record.set("created", &image.created, &FIELDS)?;
    Ok(record)
}

/// Inserts the name as the first one.
fn add_name(record: &mut JsonRecord, name: &str) -> Result<(), serde_json::Error> {
    let mut names: Vec<String> = record.field("names");
    names.retain(|known| known != name);
    names.insert(0, name.to_owned());
    // containers/storage moves every name of the image to the front of its history, one after the other (`images.go`:
    // `updateNames`), so the history has them in reverse order.
    let mut history: Vec<String> = record.field("names-history");
    history.retain(|name| !names.contains(name));
    history.splice(..0, names.iter().rev().cloned());
    record.set("names", &names, &FIELDS)?;
    record.set("names-history", &history, &FIELDS)
}

/// Adds the items to the record. Existing items stay where they are.
fn merge(record: &mut JsonRecord, image: &NewImage<'_>) -> Result<(), serde_json::Error> {
    add_name(record, &image.name)?;
    let mut keys: Vec<String> = record.field("big-data-names");
    let mut sizes: BTreeMap<String, i64> = record.field("big-data-sizes");
    let mut digests: BTreeMap<String, String> = record.field("big-data-digests");
    for item in image.items {
        if !keys.contains(&item.key) {
            keys.push(item.key.clone());
        }
        sizes.insert(
            item.key.clone(),
            i64::try_from(item.bytes.len()).unwrap_or(i64::MAX),
        );
        digests.insert(item.key.clone(), item.digest.to_string());
    }
    let unnamed = sizes.keys().filter(|key| !keys.contains(key));
    let unnamed: Vec<String> = unnamed.cloned().collect();
    keys.extend(unnamed);
    correct(record, image, &keys, &sizes, &digests)?;
    record.set("big-data-names", &keys, &FIELDS)?;
    record.set("big-data-sizes", &sizes, &FIELDS)?;
    record.set("big-data-digests", &digests, &FIELDS)
}

/// Replaces invalid values.
fn correct(
    record: &mut JsonRecord,
    image: &NewImage<'_>,
    keys: &[String],
    sizes: &BTreeMap<String, i64>,
    digests: &BTreeMap<String, String>,
) -> Result<(), serde_json::Error> {
    if let Some(layer) = &image.layer {
        record.set("layer", layer, &FIELDS)?;
    }
    let manifests: Vec<&String> = keys.iter().filter(|key| key.starts_with(MANIFEST)).collect();
    let mut manifests = manifests.iter().filter_map(|key| digests.get(*key));
    let digest: String = record.field("digest");
    // The manifest that was stored first. An invalid digest would make the store unusable for every program.
    if let Some(first) = manifests
        .clone()
        .next()
        .filter(|_| manifests.all(|it| *it != digest))
    {
        record.set("digest", first, &FIELDS)?;
    }
    let created: Option<String> = record.field("created");
    if !created.as_deref().is_none_or(go_time::is_time) {
        record.set("created", &image.created, &FIELDS)?;
    }
    let metadata: Option<String> = record.field("metadata");
    let size_of = |key: &str| sizes.get(key).and_then(|size| u64::try_from(*size).ok());
    let has_signatures = sizes
        .iter()
        .any(|(key, size)| key.starts_with(SIGNATURE) && *size > 0);
    if flaw_of_metadata(metadata.as_deref(), size_of).is_some() && !has_signatures {
        record.set("metadata", &NO_SIGNATURES, &FIELDS)?;
    }
    Ok(())
}

/// The part of the metadata that containers/image reads: the length of each signature.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Metadata {
    signature_sizes: Option<Vec<u64>>,
    signatures_sizes: Option<BTreeMap<String, Option<Vec<u64>>>>,
}

/// Describes why containers/image cannot open an image with this metadata, or does not find its signatures.
pub(super) fn flaw_of_metadata(
    metadata: Option<&str>,
    size_of: impl Fn(&str) -> Option<u64>,
) -> Option<String> {
    let metadata = metadata.filter(|text| !text.is_empty()).unwrap_or(NO_SIGNATURES);
    let Ok(metadata) = serde_json::from_str::<Metadata>(metadata) else {
        return Some("its `metadata` does not parse".to_owned());
    };
    let of_instances = metadata.signatures_sizes.iter().flatten().map(|(digest, sizes)| {
        let hex = digest.split_once(':').map_or(&**digest, |(_, hex)| hex);
        (format!("{SIGNATURE}-{hex}"), sizes.iter().flatten().sum())
    });
    let own: u64 = metadata.signature_sizes.iter().flatten().sum();
    // Signatures of an earlier pull stay when a later pull finds none.
    let mut expected = of_instances
        .chain([(format!("{SIGNATURE}s"), own)])
        .filter(|(_, sum)| *sum > 0);
    let wrong = expected.find(|(key, sum)| size_of(key) != Some(*sum))?;
    Some(format!(
        "its `metadata` does not match the length of its `{}`",
        wrong.0
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn table(text: &str) -> ImageTable {
        let records = json_record::split(text).unwrap();
        let view = |raw: Box<RawValue>| (serde_json::from_str(raw.get()).unwrap(), raw);
        ImageTable {
            records: records.into_iter().map(view).collect(),
        }
    }

    fn text(table: &ImageTable) -> String {
        String::from_utf8(json_record::join(table.records.iter().map(|(_, raw)| &**raw))).unwrap()
    }

    #[test]
    fn metadata_must_be_understood_and_fit_the_signatures_that_it_names() {
        let size_of = |key: &str| (key == "signatures" || key == "signature-ab").then_some(5);
        for (metadata, is_flawed) in [
            (r#"{}"#, false),
            ("", false),
            (r#"{"x":1}"#, false),
            (
                r#"{"signature-sizes":[],"signatures-sizes":{"sha256:ab":[],"sha256:cd":null}}"#,
                false,
            ),
            (
                r#"{"signature-sizes":[2,3],"signatures-sizes":{"sha256:ab":[5]}}"#,
                false,
            ),
            (r#"{"signature-sizes":[2]}"#, true),
            (r#"{"signatures-sizes":{"sha256:cd":[5]}}"#, true),
            ("x", true),
            (r#"{"signature-sizes":"5"}"#, true),
        ] {
            let flaw = flaw_of_metadata(Some(metadata), size_of);
            assert_eq!(flaw.is_some(), is_flawed, "{metadata}: {flaw:?}");
        }
        assert!(flaw_of_metadata(None, size_of).is_none());
    }

    #[test]
    fn a_name_moves_and_a_known_image_keeps_what_it_has() {
        let id = ImageId::of_config(Digest::of(b"config"));
        let manifest = Digest::of(b"manifest");
        let before = format!(
            r#"[{{"id":"other","names":["r/a:1"],"novel":1}},{{"id":"third","names":["r/a:1","r/b:1"]}},{{"id":"{id}","digest":"sha256:0","names":["r/c:1"],"names-history":["r/d:1","r/a:1"],"metadata":"{{\"x\":1}}","big-data-names":["signatures","manifest"],"big-data-sizes":{{"manifest":1,"signatures":2}},"created":"2020-01-01T00:00:00Z","novel":[ 1 ]}}]"#
        );
        let mut table = table(&before);
        let items = [BigDataItem {
            key: "manifest".into(),
            bytes: b"manifest",
            digest: manifest,
        }];
        let image = NewImage {
            id,
            name: "r/a:1".into(),
            further_names: vec!["r/no:1".into()],
            layer: None,
            digest: manifest,
            items: &items,
            created: "now".into(),
        };
        assert!(table.put(&image).unwrap());
        let after = format!(
            r#"[{{"id":"other","novel":1}},{{"id":"third","names":["r/b:1"]}},{{"id":"{id}","digest":"{manifest}","names":["r/a:1","r/c:1"],"names-history":["r/c:1","r/a:1","r/d:1"],"metadata":"{{\"x\":1}}","big-data-names":["signatures","manifest"],"big-data-sizes":{{"manifest":8,"signatures":2}},"big-data-digests":{{"manifest":"{manifest}"}},"created":"2020-01-01T00:00:00Z","novel":[ 1 ]}}]"#
        );
        assert_eq!(text(&table), after);
        assert!(!table.put(&image).unwrap());
        assert_eq!(text(&table), after);
    }

    #[test]
    fn a_name_by_digest_goes_to_the_image_that_has_the_digest() {
        let ids = [b"one", b"two"].map(|config| ImageId::of_config(Digest::of(config)));
        let (digest, other) = (Digest::of(b"manifest"), Digest::of(b"other"));
        let before = format!(
            r#"[{{"id":"{}","names":["quay.io/a/b@{digest}"]}},{{"id":"{}","digest":"{digest}","names":["quay.io/a/b:1"],"names-history":["quay.io/a/b:1"],"novel":1}}]"#,
            ids[0], ids[1]
        );
        let mut table = table(&before);
        let name = |digest: Digest| format!("quay.io/a/b@{digest}").parse().unwrap();
        assert!(!table.add_name(&ids[1], &name(other)).unwrap());
        assert!(!table.add_name(&ids[0], &name(digest)).unwrap());
        assert_eq!(text(&table), before);
        assert!(table.add_name(&ids[1], &name(digest)).unwrap());
        let after = format!(
            r#"[{{"id":"{}"}},{{"id":"{}","digest":"{digest}","names":["quay.io/a/b@{digest}","quay.io/a/b:1"],"names-history":["quay.io/a/b:1","quay.io/a/b@{digest}"],"novel":1}}]"#,
            ids[0], ids[1]
        );
        assert_eq!(text(&table), after);
        assert!(!table.add_name(&ids[1], &name(digest)).unwrap());
        assert_eq!(text(&table), after);
    }
}
