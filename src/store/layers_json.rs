//! Reads and writes layers.json, the records of all layers in a store.
//!
//! A record with the flag `incomplete` belongs to a writer of another program that still has the lock, or died with
//! it. Any program that finds such a record deletes the layer. That is how containers/storage recovers from a crash;
//! this program writes no such record (`layer_batch.rs`).

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::error::StoreError;
use super::expected_layer::LayerBlob;
use super::json_record::{self, JsonRecord};
use super::layout::Layout;
use super::lock::LayersLock;
use super::unpacked_layer::{LayerOrigin, Owners, UnpackedLayer};
use super::{atomic_file, go_time};
use crate::oci::{DiffId, Digest, Layer, LayerId};

/// The order of fields in containers/storage, as far as we set single ones (`layers.go`: `Layer`).
const FIELDS: [&str; 14] = [
    "id",
    "names",
    "parent",
    "metadata",
    "mountlabel",
    "created",
    "compressed-diff-digest",
    "compressed-size",
    "diff-digest",
    "toc-digest",
    "diff-size",
    "compression",
    "uidset",
    "gidset",
];

/// The fields of a record that we use. Every field but the id may be missing or null.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LayerView {
    pub(super) id: String,
    pub(super) parent: Option<String>,
    #[serde(rename = "compressed-diff-digest")]
    pub(super) compressed_diff_digest: Option<String>,
    #[serde(rename = "compressed-size")]
    pub(super) compressed_size: Option<i64>,
    #[serde(rename = "diff-digest")]
    pub(super) diff_digest: Option<String>,
    #[serde(rename = "diff-size")]
    pub(super) diff_size: Option<i64>,
    pub(super) compression: Option<i64>,
    created: Option<String>,
    uidset: Option<BTreeSet<u32>>,
    gidset: Option<BTreeSet<u32>>,
    #[serde(rename = "toc-digest")]
    toc_digest: Option<String>,
    flags: Option<HashMap<String, serde_json::Value>>,
    #[serde(rename = "uidmap")]
    uid_map: Option<Vec<serde::de::IgnoredAny>>,
    #[serde(rename = "gidmap")]
    gid_map: Option<Vec<serde::de::IgnoredAny>>,
}

impl LayerView {
    pub(super) fn is_complete(&self) -> bool {
        let incomplete = self.flags.as_ref().and_then(|flags| flags.get("incomplete"));
        incomplete != Some(&serde_json::Value::Bool(true))
    }

    /// If one time does not parse, Go rejects the whole file.
    pub(super) fn has_time(&self) -> bool {
        self.created.as_deref().is_none_or(go_time::is_time)
    }

    /// Whether it records the owners of the tar's entries. A record may omit them.
    pub(super) fn has_owners(&self, owners: &Owners) -> bool {
        let is_same =
            |recorded: &Option<BTreeSet<u32>>, found| recorded.as_ref().is_none_or(|it| it == found);
        is_same(&self.uidset, &owners.uids) && is_same(&self.gidset, &owners.gids)
    }

    /// True if the layer was pulled in chunks (`enable_partial_images`); then its tree was not unpacked from a tar.
    pub(super) fn is_partial(&self) -> bool {
        self.toc_digest.as_ref().is_some_and(|digest| !digest.is_empty())
    }

    /// True if its files have other owners than the image states (id mappings). We do not build on such a layer.
    pub(super) fn is_mapped(&self) -> bool {
        let mapped = |map: &Option<Vec<_>>| map.as_ref().is_some_and(|map| !map.is_empty());
        mapped(&self.uid_map) || mapped(&self.gid_map)
    }

    /// Digest of the blob that it was unpacked from, as recorded.
    pub(super) fn blob_text(&self) -> Option<&str> {
        self.compressed_diff_digest
            .as_deref()
            .filter(|text| !text.is_empty())
    }

    /// Length of the layer's tar, if it is recorded.
    pub(super) fn size(&self) -> Option<u64> {
        self.diff_size.and_then(|size| u64::try_from(size).ok())
    }

    /// SHA-256 of the layer's tar, if it is recorded.
    pub(super) fn diff_id(&self) -> Option<DiffId> {
        self.diff_digest.as_deref()?.parse().ok().map(DiffId)
    }

    /// False while the record has no digest of the content. containers/image before 5.30 records a layer that it
    /// pulls in chunks (`enable_partial_images`) as complete, releases the lock, and fills the layer afterwards
    /// (`storage_dest.go`: `CreateLayer`, `ApplyDiffFromStagingDirectory`).
    pub(super) fn is_filled(&self) -> bool {
        [&self.diff_digest, &self.toc_digest]
            .into_iter()
            .flatten()
            .any(|digest| !digest.is_empty())
    }

    /// True if the id is the chain id of parent and tar in the record, as for every layer that was pulled as a whole.
    pub(super) fn has_matching_id(&self, id: &LayerId) -> bool {
        let parent = self.parent().map(LayerId::from_hex);
        match (parent, self.diff_id()) {
            (Some(None), _) | (_, None) => false,
            (parent, Some(diff_id)) => LayerId::of(parent.flatten(), diff_id) == *id,
        }
    }

    /// The parent; an empty string means none.
    pub(super) fn parent(&self) -> Option<&str> {
        self.parent.as_deref().filter(|parent| !parent.is_empty())
    }
}

/// A new record, with the fields in the order of containers/storage.
#[derive(Serialize)]
pub(super) struct NewLayer<'l> {
    pub(super) id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parent: Option<String>,
    pub(super) created: String,
    #[serde(rename = "compressed-diff-digest", skip_serializing_if = "Option::is_none")]
    pub(super) compressed_diff_digest: Option<Digest>,
    #[serde(rename = "compressed-size", skip_serializing_if = "is_zero")]
    pub(super) compressed_size: u64,
    #[serde(rename = "diff-digest")]
    pub(super) diff_digest: Digest,
    #[serde(rename = "diff-size", skip_serializing_if = "is_zero")]
    pub(super) diff_size: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) compression: u64,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) uidset: &'l BTreeSet<u32>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) gidset: &'l BTreeSet<u32>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl<'l> NewLayer<'l> {
    /// The record of the layer `spec` after it was unpacked.
    pub(super) fn new(
        spec: &Layer,
        unpacked: &'l UnpackedLayer,
        origin: LayerOrigin,
        created: String,
    ) -> Self {
        let (blob, blob_size, compression) = match origin {
            LayerOrigin::Blob(compression) => (Some(spec.blob), spec.size, compression as u64),
            LayerOrigin::Unknown => (None, 0, 0),
        };
        Self {
            id: spec.id().to_string(),
            parent: spec.parent().map(|parent| parent.to_string()),
            created,
            compressed_diff_digest: blob,
            compressed_size: blob_size,
            diff_digest: unpacked.diff_id.0,
            diff_size: unpacked.diff_size,
            compression,
            uidset: &unpacked.owners.uids,
            gidset: &unpacked.owners.gids,
        }
    }
}

/// The content of layers.json, read under the lock or as a snapshot: the file is only ever replaced as a whole.
///
/// Layers of containers may be recorded in volatile-layers.json instead. No lookup here needs them: their ids are
/// random, ours are computed.
#[derive(Debug)]
pub(super) struct LayerTable {
    records: Vec<(LayerView, Box<RawValue>)>,
    /// The position of the first record of each id.
    positions: HashMap<String, usize>,
}

impl LayerTable {
    pub(super) fn read(layout: &Layout) -> Result<Self, StoreError> {
        let mut table = Self {
            records: json_record::read(&layout.layers_json())?,
            positions: HashMap::new(),
        };
        table.index();
        Ok(table)
    }

    fn index(&mut self) {
        self.positions.clear();
        for (position, (view, _)) in self.records.iter().enumerate() {
            self.positions.entry(view.id.clone()).or_insert(position);
        }
    }

    pub(super) fn views(&self) -> impl Iterator<Item = &LayerView> {
        self.records.iter().map(|(view, _)| view)
    }

    /// The first record of this id; containers/storage ignores later ones.
    pub(super) fn find(&self, id: &LayerId) -> Option<&LayerView> {
        let position = *self.positions.get(&id.to_string())?;
        self.records.get(position).map(|(view, _)| view)
    }

    /// Whether the layer and its parents have this content, base layer first in `diff_ids`, as far as their records
    /// state it: a layer that was pulled in chunks may have no diffID.
    pub(super) fn is_chain(
        &self,
        top: Option<&str>,
        diff_ids: impl DoubleEndedIterator<Item = DiffId>,
    ) -> bool {
        let mut next = top;
        for diff_id in diff_ids.rev() {
            let view = next.and_then(LayerId::from_hex).and_then(|id| self.find(&id));
            let Some(view) = view.filter(|view| view.diff_id().is_none_or(|it| it == diff_id)) else {
                return false;
            };
            next = view.parent();
        }
        next.is_none()
    }

    /// Removes every record of this id and appends `record`.
    pub(super) fn put(&mut self, record: &NewLayer<'_>) -> Result<(), serde_json::Error> {
        let raw = serde_json::value::to_raw_value(record)?;
        let view = serde_json::from_str(raw.get())?;
        self.remove_text(&record.id);
        self.positions.insert(record.id.clone(), self.records.len());
        self.records.push((view, raw));
        Ok(())
    }

    /// Corrects parent, diffID, size and owners in a record, and nothing else.
    pub(super) fn correct(
        &mut self,
        id: &LayerId,
        parent: Option<LayerId>,
        unpacked: &UnpackedLayer,
    ) -> Result<(), serde_json::Error> {
        self.edit(id, |record, _| {
            match parent {
                Some(parent) => record.set("parent", &parent.to_string(), &FIELDS)?,
                None => record.remove("parent"),
            }
            record.set("diff-digest", &unpacked.diff_id, &FIELDS)?;
            record.set("diff-size", &unpacked.diff_size, &FIELDS)?;
            for (key, ids) in [
                ("uidset", &unpacked.owners.uids),
                ("gidset", &unpacked.owners.gids),
            ] {
                match ids.is_empty() {
                    true => record.remove(key),
                    false => record.set(key, ids, &FIELDS)?,
                }
            }
            Ok(())
        })
    }

    /// Corrects blob and time in a record, and nothing else.
    pub(super) fn correct_origin(&mut self, id: &LayerId, blob: &LayerBlob) -> Result<(), serde_json::Error> {
        self.edit(id, |record, view| {
            record.set("compressed-diff-digest", &blob.digest, &FIELDS)?;
            if let Some(size) = blob.size {
                record.set("compressed-size", &size, &FIELDS)?;
            }
            if !view.has_time() {
                record.set("created", &go_time::now(), &FIELDS)?;
            }
            Ok(())
        })
    }

    fn edit(
        &mut self,
        id: &LayerId,
        edit: impl Fn(&mut JsonRecord, &LayerView) -> Result<(), serde_json::Error>,
    ) -> Result<(), serde_json::Error> {
        let id = id.to_string();
        for (view, raw) in self.records.iter_mut().filter(|(view, _)| view.id == id) {
            let mut record: JsonRecord = serde_json::from_str(raw.get())?;
            edit(&mut record, view)?;
            *raw = serde_json::value::to_raw_value(&record)?;
            *view = serde_json::from_str(raw.get())?;
        }
        Ok(())
    }

    /// Removes every record of this id.
    pub(super) fn remove(&mut self, id: &LayerId) {
        self.remove_text(&id.to_string());
    }

    fn remove_text(&mut self, id: &str) {
        if self.positions.contains_key(id) {
            self.records.retain(|(view, _)| view.id != id);
            self.index();
        }
    }

    /// Replaces the file. Readers see the old content or this one.
    pub(super) fn save(&self, lock: &LayersLock, layout: &Layout) -> Result<(), StoreError> {
        lock.write_token(layout)?;
        atomic_file::write(
            &layout.layers_json(),
            &json_record::join(self.records.iter().map(|(_, raw)| &**raw)),
        )
    }
}
