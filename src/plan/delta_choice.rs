//! Chooses for each layer whether its blob or a delta is downloaded: the one with the fewest missing bytes.
//!
//! Deltas come from untrusted artifacts. Two of them may contradict each other about one blob; then the first one counts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::tar_length::stated_tar_length;
use super::{LayerTask, PlannedImage, Present, TarLength};
use crate::delta::{DeltaOption, is_worthwhile};
use crate::oci::{DiffId, Digest, Layer};

/// What decides about the layers of one plan.
pub(super) struct DeltaChoice<'p> {
    present: &'p Present,
    /// The blob and the diffID of each layer of authenticated images that no other image contradicts.
    authenticated: HashSet<(Digest, DiffId)>,
    /// The deltas that no other delta and no layer contradicts, by the digest of the layer's blob.
    deltas: HashMap<Digest, Vec<&'p Arc<DeltaOption>>>,
}

impl<'p> DeltaChoice<'p> {
    pub(super) fn new(
        images: &[PlannedImage],
        authenticated: HashSet<(Digest, DiffId)>,
        present: &'p Present,
    ) -> Self {
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
            authenticated,
            deltas,
        }
    }

    /// How to make this layer; for no image yet.
    pub(super) fn task(&self, layer: &Layer) -> LayerTask {
        let deltas = self.deltas_for(layer);
        LayerTask {
            layer: layer.clone(),
            authenticated: self.authenticated.contains(&(layer.blob, layer.diff_id())),
            tar: self.tar_length(layer, &deltas),
            deltas,
            images: Vec::new(),
        }
    }

    /// The missing bytes of what is downloaded for the layer, then those of its blob. The digest decides between equals, so
    /// that the order of the input does not matter.
    pub(super) fn cost(&self, task: &LayerTask) -> (u64, u64, Digest) {
        let missing = |(digest, size)| size - spooled(&digest, size, self.present);
        let layer = &task.layer;
        (
            missing(task.download()),
            missing((layer.blob, layer.size)),
            layer.blob,
        )
    }

    /// The worthwhile deltas, those with the fewest missing bytes first.
    fn deltas_for(&self, layer: &Layer) -> Vec<Arc<DeltaOption>> {
        let missing = |digest: &Digest, size: u64| size - spooled(digest, size, self.present);
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

    /// What the blob states, or else what the delta states, or else a guess. An untrusted party states the length in the
    /// delta, so it is only a guess too, and only an ordinary length is used.
    fn tar_length(&self, layer: &Layer, deltas: &[Arc<DeltaOption>]) -> TarLength {
        let probed = self.present.tars.get(&layer.blob).copied();
        let mut stated = deltas
            .iter()
            .filter_map(|option| stated_tar_length(&layer.media_type, layer.size, option.delta.tar_size?));
        probed
            .or_else(|| stated.next())
            .unwrap_or_else(|| TarLength::estimate(&layer.media_type, layer.size))
    }
}

/// How many of the blob's `size` bytes are in the spool. More than the whole blob means that another manifest stated a wrong
/// size; the digest check finds out which.
pub(super) fn spooled(blob: &Digest, size: u64, present: &Present) -> u64 {
    let bytes = present.blobs.get(blob).copied().unwrap_or(0);
    bytes.min(size)
}
