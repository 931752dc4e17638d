//! Chooses for each layer what it is made from: a layer of the store, or else its blob, chunks of it or a delta, whichever has
//! the fewest missing bytes.
//!
//! Deltas come from untrusted artifacts. Two of them may contradict each other about one blob; then the first one counts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::blob_contents::BlobContents;
use super::tar_length::stated_tar_length;
use super::{LayerSource, LayerTask, MediumTar, PlannedImage, Present, TarLength};
use crate::delta::{DeltaOption, is_worthwhile};
use crate::oci::{Digest, Layer};
use crate::store::{StoreLocation, StoredLayer};
use crate::zstd_chunked::ChunkedOption;

/// How many layers of the store are tried for one layer.
const MAX_STORED: usize = 4;

/// What decides about the layers of one plan.
pub(super) struct SourceChoice<'p> {
    present: &'p Present,
    contents: BlobContents,
    /// The deltas that no other delta and no layer contradicts, by the digest of the layer's blob.
    deltas: HashMap<Digest, Vec<&'p Arc<DeltaOption>>>,
}

impl<'p> SourceChoice<'p> {
    pub(super) fn new(images: &[PlannedImage], contents: BlobContents, present: &'p Present) -> Self {
        let layers = || images.iter().flat_map(|image| &image.layers);
        let blobs: HashSet<Digest> = layers().map(|planned| planned.layer.blob).collect();
        let mut sizes = HashMap::new();
        let mut deltas: HashMap<Digest, Vec<&Arc<DeltaOption>>> = HashMap::new();
        for target in layers().map(|planned| planned.layer.blob) {
            if deltas.contains_key(&target) {
                continue;
            }
            let options = present.deltas.get(&target).into_iter().flatten();
            let usable = options.filter(|option| {
                let (blob, size) = (option.delta.blob, option.delta.size);
                !blobs.contains(&blob) && *sizes.entry(blob).or_insert(size) == size
            });
            deltas.insert(target, usable.collect());
        }
        Self {
            present,
            contents,
            deltas,
        }
    }

    /// How to make this layer; for no image yet.
    pub(super) fn task(&self, layer: &Layer) -> LayerTask {
        let (stored, deltas) = (self.stored_for(layer), self.deltas_for(layer));
        let (tars, chunked) = (self.medium_tars_for(layer), self.chunks_for(layer));
        LayerTask {
            layer: layer.clone(),
            authenticated: self.contents.is_authenticated(layer),
            tar: self.tar_length(layer, stored.first(), tars, &deltas, chunked),
            sources: stored
                .into_iter()
                .map(LayerSource::Stored)
                .chain(tars.iter().cloned().map(LayerSource::MediumTar))
                .chain(deltas.into_iter().map(LayerSource::Delta))
                .chain(chunked.cloned().map(LayerSource::Chunked))
                .collect(),
            images: Vec::new(),
        }
    }

    /// The missing bytes of what is downloaded for the layer, then those of its blob. The digest decides between equals, so
    /// that the order of the input does not matter.
    pub(super) fn cost(&self, task: &LayerTask) -> (u64, u64, Digest) {
        let missing = |(digest, size)| missing(&digest, size, self.present);
        let layer = &task.layer;
        let is_copied = task
            .sources
            .first()
            .is_some_and(|source| source.medium_tar().is_some());
        (
            if is_copied { 0 } else { missing(task.download()) },
            missing((layer.blob, layer.size)),
            layer.blob,
        )
    }

    /// Whether another manifest pairs the layer's blob with another diffID.
    pub(super) fn is_contradicted(&self, layer: &Layer) -> bool {
        self.contents.is_contradicted(layer)
    }

    /// The layers of the store with the same content, if bytes of the blob are missing. The layer's own record in the graph
    /// root is damaged, or the plan would not contain the layer.
    fn stored_for(&self, layer: &Layer) -> Vec<StoredLayer> {
        let missing = layer.size - spooled(&layer.blob, layer.size, self.present);
        if missing == 0 || self.is_contradicted(layer) {
            return Vec::new();
        }
        let own = (StoreLocation::GraphRoot, layer.id());
        let stored = self.present.stored.get(&layer.diff_id()).into_iter().flatten();
        let others = stored.filter(|stored| (stored.location, stored.id) != own);
        others.take(MAX_STORED).cloned().collect()
    }

    /// The layer's tar on media, if bytes of the blob must be downloaded.
    fn medium_tars_for(&self, layer: &Layer) -> &'p [MediumTar] {
        let tars = self.present.medium_tars.get(&layer.diff_id());
        let is_used = missing(&layer.blob, layer.size, self.present) > 0 && !self.is_contradicted(layer);
        tars.filter(|_| is_used).map_or(&[], Vec::as_slice)
    }

    /// The worthwhile deltas, those with the fewest missing bytes first.
    fn deltas_for(&self, layer: &Layer) -> Vec<Arc<DeltaOption>> {
        let missing = |digest: &Digest, size: u64| missing(digest, size, self.present);
        let whole = missing(&layer.blob, layer.size);
        let options = self.deltas.get(&layer.blob).into_iter().flatten();
        let options = options.map(|option| (missing(&option.delta.blob, option.delta.size), option));
        let is_used = |bytes: u64| whole > 0 && is_worthwhile(bytes, whole);
        let mut options: Vec<_> = options.filter(|(bytes, _)| is_used(*bytes)).collect();
        // Stable, so that the given order decides between equals.
        options.sort_by_key(|(bytes, _)| *bytes);
        options
            .into_iter()
            .map(|(_, option)| Arc::clone(option))
            .collect()
    }

    /// The chunks of the blob, if they are worthwhile.
    fn chunks_for(&self, layer: &Layer) -> Option<&'p Arc<ChunkedOption>> {
        let option = self.present.chunked.get(&layer.blob)?;
        let missing = |size: u64| missing(&layer.blob, size, self.present);
        let whole = missing(layer.size);
        let is_used = option.size == layer.size && whole > 0 && is_worthwhile(missing(option.bytes), whole);
        is_used.then_some(option)
    }

    /// What the record of the same content states, or else the blob, or else another source, or else a guess. An untrusted
    /// party states the length in a medium, a delta or chunks, so it is only a guess too, and only an ordinary length is used.
    fn tar_length(
        &self,
        layer: &Layer,
        stored: Option<&StoredLayer>,
        tars: &[MediumTar],
        deltas: &[Arc<DeltaOption>],
        chunked: Option<&Arc<ChunkedOption>>,
    ) -> TarLength {
        if let Some(stored) = stored {
            return TarLength::Known(stored.tar_size);
        }
        let probed = self.present.tars.get(&layer.blob).copied();
        let stated = tars.iter().map(|tar| tar.size);
        let stated = stated.chain(deltas.iter().filter_map(|option| option.delta.tar_size));
        let stated = stated.chain(chunked.map(|option| option.tar_size));
        let mut stated = stated.filter_map(|size| stated_tar_length(&layer.media_type, layer.size, size));
        probed
            .or_else(|| stated.next())
            .unwrap_or_else(|| TarLength::estimate(&layer.media_type, layer.size))
    }
}

/// How many of the blob's `size` bytes must be downloaded, because they are neither in the spool nor on a medium.
pub(super) fn missing(blob: &Digest, size: u64, present: &Present) -> u64 {
    match present.media.contains_key(blob) {
        true => 0,
        false => size - spooled(blob, size, present),
    }
}

/// How many of the blob's `size` bytes are in the spool. More than the whole blob means that another manifest stated a wrong
/// size; the digest check finds out which.
pub(super) fn spooled(blob: &Digest, size: u64, present: &Present) -> u64 {
    let bytes = present.blobs.get(blob).copied().unwrap_or(0);
    bytes.min(size)
}
