//! Chooses blobs of earlier runs to remove from the spool: those that no image needs any more, and those that free the space
//! that the plan needs.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use super::error::JobError;
use super::snapshot::Snapshot;
use crate::oci::Digest;
use crate::plan::{LayerSource, Plan};
use crate::preflight::{FilesystemUse, SpaceCheck};
use crate::report::Size;
use crate::spool::{Spool, SpoolEntry};

/// A blob that the plan does not need is removed if no run wrote to it for this long, so that the spool is bounded. An
/// upgrade is prepared within weeks; if it was not carried out by then, it is prepared again.
const MAX_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Blobs that are useless: the plan does not need them, and they are either unpacked in the store already, because a run was
/// killed between commit and removal, or older than [`MAX_AGE`]. The next run may need the rest, for another release.
pub(super) fn stale(plan: &Plan, snapshot: &Snapshot, now: SystemTime) -> Vec<SpoolEntry> {
    // If a source fails, another one or the whole blob is continued.
    let fallbacks = plan.layers.iter().flat_map(|task| {
        let sources = task.sources.iter().filter_map(LayerSource::spooled_blob);
        sources.chain([task.layer.blob])
    });
    let downloads = plan.blobs.iter().map(|blob| blob.digest);
    let needed: HashSet<Digest> = downloads.chain(fallbacks).collect();
    let stored: HashSet<Digest> = snapshot
        .inventory
        .layers()
        .filter_map(|layer| layer.blob)
        .collect();
    let is_stored = |entry: &SpoolEntry| {
        let delta_of = entry.layer.and_then(|layer| snapshot.inventory.layer(&layer));
        stored.contains(&entry.digest) || delta_of.is_some()
    };
    let is_old = |entry: &SpoolEntry| {
        // A clock that was set back makes nothing old.
        now.duration_since(entry.modified).is_ok_and(|age| age > MAX_AGE)
    };
    // The blobs of an image that is unavailable now are unknown.
    let knows_all = plan.totals.images_failed == 0;
    let stale = snapshot
        .spooled
        .iter()
        .filter(|entry| !needed.contains(&entry.digest) && (is_stored(entry) || knows_all && is_old(entry)));
    stale.copied().collect()
}

/// All blobs that the plan does not need, if the plan does not fit with them and fits without them.
pub(super) fn in_the_way(space_check: &SpaceCheck, plan: &Plan, spooled: &[SpoolEntry]) -> Vec<SpoolEntry> {
    let needed: HashSet<Digest> = plan.blobs.iter().map(|blob| blob.digest).collect();
    let unneeded = spooled.iter().filter(|entry| !needed.contains(&entry.digest));
    let unneeded: Vec<SpoolEntry> = unneeded.copied().collect();
    let bytes = total_bytes(&unneeded);
    let fits_without = space_check.filesystems.iter().all(|check| match check.used_for {
        FilesystemUse::Both | FilesystemUse::Spool => check.shortfall <= bytes,
        FilesystemUse::Store => check.shortfall == 0,
    });
    if space_check.fits || !fits_without {
        return Vec::new();
    }
    unneeded
}

/// Removes blobs of earlier runs from the spool; `why` is for the log.
pub(super) fn remove(blobs: &[SpoolEntry], spool: &Spool, why: &str) -> Result<(), JobError> {
    for blob in blobs {
        spool.remove(&blob.digest)?;
    }
    tracing::info!(
        "removed {} blobs of earlier runs from the spool, {}: the plan does not need them, and {why}",
        blobs.len(),
        Size(total_bytes(blobs))
    );
    Ok(())
}

/// The size of the blobs in the spool.
pub(super) fn total_bytes(blobs: &[SpoolEntry]) -> u64 {
    blobs.iter().map(|blob| blob.bytes).fold(0, u64::saturating_add)
}
