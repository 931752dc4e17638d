//! The sums over a plan.

use std::collections::HashSet;

use serde::Serialize;

use super::disk_estimate::{TarLength, disk_bytes};
use super::{Action, BlobTask, ExcludedImage, LayerTask, Need, PlannedImage};

/// Sums over a plan. Sizes come from manifests, so from strangers: they are added up saturating.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Images that are asked for and not excluded.
    pub images_wanted: u64,
    /// Of these, whole in the store.
    pub images_present: u64,
    /// Of these, to be put there, if only their names are missing.
    pub images_to_pull: u64,
    /// Of these, known to be out of reach.
    pub images_failed: u64,
    /// Images that are excluded.
    pub images_excluded: u64,
    /// Layers to unpack, each once.
    pub layers_to_fetch: u64,
    /// Layers that images to pull find in the store, each once.
    pub layers_to_reuse: u64,
    /// Blobs of which something has to cross the link.
    pub blobs_to_fetch: u64,
    /// Compressed bytes that have to cross the link.
    pub bytes_to_fetch: u64,
    /// Compressed bytes of planned blobs that are in the spool already.
    pub bytes_in_spool: u64,
    /// What the layers to unpack will take up in the store, in bytes; an estimate.
    pub unpacked_estimate: u64,
    /// The part of it that rests on a usual ratio, for the blobs did not say how long their tars are.
    pub unpacked_guessed: u64,
    /// The part of it that is the least it can be, for gzip counts a tar's length modulo 4 GiB.
    pub unpacked_at_least: u64,
    /// Compressed length of the largest blob, in bytes.
    pub largest_layer: u64,
}

impl Totals {
    pub(super) fn of(
        images: &[PlannedImage],
        excluded: &[ExcludedImage],
        layers: &[LayerTask],
        blobs: &[BlobTask],
    ) -> Self {
        let count =
            |wanted: fn(&Need) -> bool| images.iter().filter(|image| wanted(&image.need)).count() as u64;
        let unpacked = |counts: fn(&TarLength) -> bool| {
            let tars = layers.iter().map(|layer| layer.tar).filter(counts);
            sum(tars.map(|tar| disk_bytes(tar.bytes())))
        };
        let reused: HashSet<_> = images
            .iter()
            .flat_map(|image| &image.layers)
            .filter(|layer| layer.action == Action::Reuse)
            .map(|layer| layer.id)
            .collect();
        Self {
            images_wanted: images.len() as u64,
            images_present: count(|need| matches!(need, Need::Present)),
            images_to_pull: count(|need| matches!(need, Need::Resolved(_))),
            images_failed: count(|need| matches!(need, Need::Failed(_))),
            images_excluded: excluded.len() as u64,
            layers_to_fetch: layers.len() as u64,
            layers_to_reuse: reused.len() as u64,
            blobs_to_fetch: blobs.iter().filter(|blob| blob.missing() > 0).count() as u64,
            bytes_to_fetch: sum(blobs.iter().map(BlobTask::missing)),
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
