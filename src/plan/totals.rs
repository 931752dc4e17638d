//! Adds up a plan: images, layers, blobs and bytes.

use std::collections::HashSet;

use serde::Serialize;

use super::disk_estimate::{TarLength, disk_bytes};
use super::{BlobTask, ExcludedImage, ImageAction, LayerAction, LayerTask, PlannedImage};

/// The sums of a plan. Sizes come from manifests, so from untrusted data: additions saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanTotals {
    /// Images that are requested and not excluded.
    pub images_wanted: u64,
    /// Of these, complete in the store.
    pub images_present: u64,
    /// Of these, to pull, also if only their records are missing.
    pub images_to_pull: u64,
    /// Of these, known to be unavailable.
    pub images_failed: u64,
    /// Images that are excluded.
    pub images_excluded: u64,
    /// Layers to unpack, each once.
    pub layers_to_fetch: u64,
    /// Of these, to make from deltas.
    pub layers_from_deltas: u64,
    /// Of these, to make from chunks of their blobs.
    pub layers_from_chunks: u64,
    /// Of these, to copy from layers of the store with the same content.
    pub layers_from_store: u64,
    /// Layers of images to pull that are in the store, each once.
    pub layers_to_reuse: u64,
    /// Blobs with missing bytes.
    pub blobs_to_fetch: u64,
    /// Compressed bytes to download: deltas, chunks and blobs.
    pub bytes_to_fetch: u64,
    /// Compressed bytes to download without deltas and chunks.
    pub bytes_whole: u64,
    /// The difference: what deltas and chunks save.
    pub bytes_saved: u64,
    /// Blobs with bytes to copy from media.
    pub blobs_from_media: u64,
    /// Bytes to copy from media, in addition to those to download.
    pub bytes_from_media: u64,
    /// The share of the bytes from media that are tars, which are unpacked without a copy in the spool.
    #[serde(skip)]
    pub tars_from_media: u64,
    /// Compressed bytes that are not downloaded because their layers are copied from others in the store.
    pub bytes_from_store: u64,
    /// Compressed bytes of planned blobs that are already in the spool.
    pub bytes_in_spool: u64,
    /// Estimated disk space in the store of the layers to unpack, in bytes.
    pub unpacked_estimate: u64,
    /// The share of it that was estimated with a usual compression ratio, because the blobs do not state it.
    pub unpacked_guessed: u64,
    /// The share of it that is a lower bound, because gzip states the length of a tar modulo 4 GiB.
    pub unpacked_at_least: u64,
    /// Compressed length of the largest blob, in bytes.
    pub largest_layer: u64,
}

impl PlanTotals {
    /// Bytes that the plan adds to the spool.
    pub fn bytes_to_spool(&self) -> u64 {
        let blobs = self.bytes_from_media.saturating_sub(self.tars_from_media);
        self.bytes_to_fetch.saturating_add(blobs)
    }

    pub(super) fn of(
        images: &[PlannedImage],
        excluded: &[ExcludedImage],
        layers: &[LayerTask],
        blobs: &[BlobTask],
        bytes_from_store: u64,
    ) -> Self {
        let count = |is_it: fn(&ImageAction) -> bool| {
            images.iter().filter(|image| is_it(&image.action)).count() as u64
        };
        let unpacked = |counts: fn(&TarLength) -> bool| {
            let tars = layers.iter().map(|task| task.tar).filter(counts);
            sum(tars.map(|tar| disk_bytes(tar.bytes())))
        };
        let reused: HashSet<_> = images
            .iter()
            .flat_map(|image| &image.layers)
            .filter(|planned| planned.action == LayerAction::Reuse)
            .map(|planned| planned.layer.id())
            .collect();
        let bytes_to_fetch = sum(blobs.iter().map(BlobTask::missing));
        let bytes_whole = sum(images.iter().map(|image| image.bytes_whole));
        Self {
            images_wanted: images.len() as u64,
            images_present: count(|action| matches!(action, ImageAction::Present)),
            images_to_pull: count(|action| matches!(action, ImageAction::Pull(_))),
            images_failed: count(|action| matches!(action, ImageAction::Failed(_))),
            images_excluded: excluded.len() as u64,
            layers_to_fetch: layers.len() as u64,
            layers_to_reuse: reused.len() as u64,
            layers_from_deltas: layers.iter().filter(|task| task.delta().is_some()).count() as u64,
            layers_from_chunks: layers.iter().filter(|task| task.is_chunked()).count() as u64,
            layers_from_store: layers.iter().filter(|task| task.stored().is_some()).count() as u64,
            blobs_to_fetch: blobs.iter().filter(|blob| blob.missing() > 0).count() as u64,
            bytes_to_fetch,
            bytes_whole,
            bytes_saved: bytes_whole.saturating_sub(bytes_to_fetch),
            blobs_from_media: blobs.iter().filter(|blob| blob.missing_from_medium() > 0).count() as u64,
            bytes_from_media: sum(blobs.iter().map(BlobTask::missing_from_medium)),
            bytes_from_store,
            tars_from_media: sum(blobs.iter().filter_map(|blob| {
                let tar = blob.source.as_ref()?.medium_tar()?;
                Some(tar.size)
            })),
            bytes_in_spool: sum(blobs.iter().map(|blob| blob.spooled)),
            unpacked_estimate: unpacked(|_| true),
            unpacked_guessed: unpacked(|tar| matches!(tar, TarLength::Guessed(_))),
            unpacked_at_least: unpacked(|tar| matches!(tar, TarLength::AtLeast(_))),
            largest_layer: blobs.iter().map(|blob| blob.size).max().unwrap_or(0),
        }
    }
}

fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}
