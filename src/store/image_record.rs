//! Builds and edits the record of one image in images.json: its names, its items of big data, its signatures.

use std::collections::BTreeMap;

use super::go_time;
use super::json_record::JsonRecord;
use super::signature_lengths::{SIGNATURES, SignatureLengths, key_of};
use crate::oci::{Digest, ImageId};

/// The order of fields in containers/storage (`images.go`: `Image`).
pub(super) const FIELDS: [&str; 12] = [
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
    pub(super) signatures: &'i ManifestSignatures,
    pub(super) created: String,
}

/// The signatures of one manifest, as an image's record and items have them.
#[derive(Debug)]
pub(super) struct ManifestSignatures {
    pub(super) manifest: Digest,
    /// Whether it is the manifest of the item `manifest`.
    pub(super) is_default: bool,
    pub(super) lengths: Vec<u64>,
    /// The signatures one after another.
    pub(super) bytes: Vec<u8>,
}

impl ManifestSignatures {
    /// The items with these signatures, in the order of containers/image; none without signatures.
    pub(super) fn items(&self) -> Vec<BigDataItem<'_>> {
        if self.lengths.is_empty() {
            return Vec::new();
        }
        let digest = Digest::of(&self.bytes);
        let item = |key| BigDataItem {
            key,
            bytes: &self.bytes,
            digest,
        };
        let default = self.is_default.then(|| item(SIGNATURES.to_owned()));
        default.into_iter().chain([item(key_of(self.manifest))]).collect()
    }
}

/// The record of a new image, before [`merge`].
pub(super) fn fresh(image: &NewImage<'_>) -> Result<JsonRecord, serde_json::Error> {
    let mut record = JsonRecord::default();
    record.set("id", &image.id.to_string(), &FIELDS)?;
    if !image.further_names.is_empty() {
        record.set("names", &image.further_names, &FIELDS)?;
    }
    record.set("digest", &image.digest, &FIELDS)?;
    record.set("metadata", &SignatureLengths::default().text()?, &FIELDS)?;
    record.set("created", &image.created, &FIELDS)?;
    Ok(record)
}

/// Inserts the name as the first one.
pub(super) fn add_name(record: &mut JsonRecord, name: &str) -> Result<(), serde_json::Error> {
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

/// Adds name and items to the record, and replaces invalid values.
pub(super) fn merge(record: &mut JsonRecord, image: &NewImage<'_>) -> Result<(), serde_json::Error> {
    add_name(record, &image.name)?;
    merge_items(record, image.items, image.signatures)?;
    if let Some(layer) = &image.layer {
        record.set("layer", layer, &FIELDS)?;
    }
    let keys: Vec<String> = record.field("big-data-names");
    let digests: BTreeMap<String, String> = record.field("big-data-digests");
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
    Ok(())
}

/// Adds the items to the record, and the lengths of the signatures. Existing items stay where they are.
pub(super) fn merge_items(
    record: &mut JsonRecord,
    items: &[BigDataItem<'_>],
    signatures: &ManifestSignatures,
) -> Result<(), serde_json::Error> {
    let mut keys: Vec<String> = record.field("big-data-names");
    let mut sizes: BTreeMap<String, i64> = record.field("big-data-sizes");
    let mut digests: BTreeMap<String, String> = record.field("big-data-digests");
    for item in items {
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
    record.set("big-data-names", &keys, &FIELDS)?;
    record.set("big-data-sizes", &sizes, &FIELDS)?;
    record.set("big-data-digests", &digests, &FIELDS)?;
    let size_of = |key: &str| sizes.get(key).and_then(|size| u64::try_from(*size).ok());
    set_lengths(record, |lengths| {
        if signatures.is_default {
            lengths.set_default(&signatures.lengths);
        }
        lengths.set(signatures.manifest, &signatures.lengths);
        let mismatches = lengths.mismatches(size_of);
        mismatches.iter().for_each(|key| lengths.remove(key));
    })
}

/// Removes signature items from the record.
pub(super) fn remove_signatures(record: &mut JsonRecord, keys: &[&str]) -> Result<(), serde_json::Error> {
    let mut names: Vec<String> = record.field("big-data-names");
    let mut sizes: BTreeMap<String, i64> = record.field("big-data-sizes");
    let mut digests: BTreeMap<String, String> = record.field("big-data-digests");
    names.retain(|key| !keys.contains(&&**key));
    sizes.retain(|key, _| !keys.contains(&&**key));
    digests.retain(|key, _| !keys.contains(&&**key));
    record.set("big-data-names", &names, &FIELDS)?;
    record.set("big-data-sizes", &sizes, &FIELDS)?;
    record.set("big-data-digests", &digests, &FIELDS)?;
    set_lengths(record, |lengths| keys.iter().for_each(|key| lengths.remove(key)))
}

/// Edits `metadata`. One that does not parse becomes that of an image without signatures: containers/image cannot open
/// the image otherwise.
fn set_lengths(
    record: &mut JsonRecord,
    edit: impl FnOnce(&mut SignatureLengths),
) -> Result<(), serde_json::Error> {
    let metadata: Option<String> = record.field("metadata");
    let before = SignatureLengths::parse(metadata.as_deref());
    let mut lengths = before.clone().unwrap_or_default();
    edit(&mut lengths);
    match before == Some(lengths.clone()) {
        true => Ok(()),
        false => record.set("metadata", &lengths.text()?, &FIELDS),
    }
}
