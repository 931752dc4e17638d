//! Reads and writes images.json: the records of all images, their names and their big data.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::atomic_file;
use super::error::StoreError;
use super::image_record::{
    FIELDS, MANIFEST, ManifestSignatures, NewImage, add_name, fresh, merge, merge_items, remove_signatures,
};
use super::json_record::{self, JsonRecord};
use super::layout::Layout;
use super::lock::ImagesLock;
use super::signature_lengths::SIGNATURE;
use crate::oci::{Digest, ImageId, Reference};

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

    /// The digest of the manifest that the image was pulled by last.
    pub(super) fn manifest(&self) -> Option<Digest> {
        self.item(MANIFEST).1
    }

    /// Length and digest of an item, as recorded.
    pub(super) fn item(&self, key: &str) -> (Option<u64>, Option<Digest>) {
        let size = self.big_data_sizes.as_ref().and_then(|sizes| sizes.get(key));
        let digest = self
            .big_data_digests
            .as_ref()
            .and_then(|digests| digests.get(key));
        (
            size.and_then(|size| u64::try_from(*size).ok()),
            digest.and_then(|digest| digest.parse().ok()),
        )
    }

    /// The keys of its signature items.
    pub(super) fn signature_keys(&self) -> BTreeSet<&str> {
        let names = self.big_data_names.iter().flatten();
        let sizes = self.big_data_sizes.iter().flatten().map(|(key, _)| key);
        let digests = self.big_data_digests.iter().flatten().map(|(key, _)| key);
        let keys = names.chain(sizes).chain(digests).map(|key| &**key);
        keys.filter(|key| key.starts_with(SIGNATURE)).collect()
    }
}

/// The content of images.json.
#[derive(Clone)]
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

    /// Adds signatures to the record of a stored image. Returns whether anything changed.
    pub(super) fn put_signatures(
        &mut self,
        id: &ImageId,
        signatures: &ManifestSignatures,
    ) -> Result<bool, serde_json::Error> {
        self.edit(id, |record| merge_items(record, &signatures.items(), signatures))
    }

    /// Removes signature items from the record of an image. Returns whether anything changed.
    pub(super) fn remove_signatures(
        &mut self,
        id: &ImageId,
        keys: &[&str],
    ) -> Result<bool, serde_json::Error> {
        if keys.is_empty() {
            return Ok(false);
        }
        self.edit(id, |record| remove_signatures(record, keys))
    }

    fn edit(
        &mut self,
        id: &ImageId,
        edit: impl FnOnce(&mut JsonRecord) -> Result<(), serde_json::Error>,
    ) -> Result<bool, serde_json::Error> {
        let id = id.to_string();
        let Some(position) = self.records.iter().position(|(view, _)| view.id == id) else {
            return Ok(false);
        };
        let mut record: JsonRecord = serde_json::from_str(self.records[position].1.get())?;
        edit(&mut record)?;
        self.replace(position, &record)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::image_record::BigDataItem;
    use super::*;

    fn unsigned(manifest: Digest) -> ManifestSignatures {
        ManifestSignatures {
            manifest,
            is_default: true,
            lengths: Vec::new(),
            bytes: Vec::new(),
        }
    }

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
            signatures: &unsigned(manifest),
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
