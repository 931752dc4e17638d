//! Calculates how much disk space a plan needs, and has `preflight` check it against the kubelet's threshold.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::JobConfig;
use super::error::JobError;
use super::namers::RoundScope;
use super::snapshot::Snapshot;
use super::{Mode, stale_blobs};
use crate::cancel::Cancel;
use crate::oci::LayerId;
use crate::plan::{ImageAction, LayerAction, Plan};
use crate::preflight::{Demand, FilesystemUse, Space, SpaceCheck, Spaces, check_space};
use crate::report::Size;
use crate::store::unpack::SpaceBudget;

/// How long a file system may take to release the blocks of removed files.
const SETTLING_TIME: Duration = Duration::from_secs(2);

/// How often the free space is read during that time.
const SETTLING_INTERVAL: Duration = Duration::from_millis(100);

/// A plan fits for certain if it fits with this many halves of the guessed unpacked size. A release's layers were 2.9 times
/// as large unpacked as compressed; the guess times 3/2 allows 4.3.
const CERTAIN_HALVES: u64 = 3;

/// Checks the demand against the free space.
///
/// # Errors
/// When the free space cannot be read.
pub(super) fn check(config: &JobConfig, demand: Demand) -> Result<SpaceCheck, JobError> {
    let spaces = Spaces {
        store: Space::of(&config.graph_root)?,
        spool: Space::of(&config.spool)?,
    };
    Ok(check_space(&spaces, demand, config.image_gc_high_threshold))
}

/// Checks again after files were removed. XFS releases blocks a little later, and the kernel's figures lag behind.
pub(super) async fn check_after_removal(
    config: &JobConfig,
    demand: Demand,
    cancel: &Cancel,
) -> Result<SpaceCheck, JobError> {
    let mut space_check = check(config, demand)?;
    let start = Instant::now();
    while !space_check.fits && start.elapsed() < SETTLING_TIME {
        cancel.sleep(SETTLING_INTERVAL).await?;
        space_check = check(config, demand)?;
    }
    Ok(space_check)
}

/// The space that the plan and `spaceRequired` demand.
pub(super) fn demand(
    config: &JobConfig,
    mode: Mode,
    scope: RoundScope,
    plan: &Plan,
    snapshot: &Snapshot,
) -> Demand {
    Demand {
        spool: plan.totals.bytes_to_spool(),
        store: plan.totals.unpacked_estimate,
        required: match (mode, scope) {
            // `plan` reports whether everything fits, so it needs the namers' contents first.
            (Mode::Plan, RoundScope::Namers) => 0,
            // The hub sends its default of 35 GiB unless a user sets another value. It is meant for a release.
            _ if config.spec.platform_image.is_none() => 0,
            _ => config.spec.space_required,
        },
        cached: match scope {
            RoundScope::Everything => cached_bytes(plan, snapshot),
            // Any layer or blob may turn out to be requested.
            RoundScope::Namers => snapshot
                .inventory
                .stored_bytes()
                .saturating_add(stale_blobs::total_bytes(&snapshot.spooled)),
        },
    }
}

/// Whether the plan fits even if its layers are much larger than estimated, and if no delta and no layer of the store can be used.
pub(super) fn fits_for_certain(
    config: &JobConfig,
    mode: Mode,
    scope: RoundScope,
    plan: &Plan,
    snapshot: &Snapshot,
) -> Result<bool, JobError> {
    let mut demand = demand(config, mode, scope, plan, snapshot);
    demand.store = demand.store.saturating_mul(CERTAIN_HALVES) / 2;
    demand.spool = plan
        .totals
        .bytes_whole
        .saturating_add(plan.totals.bytes_from_store)
        .saturating_add(plan.totals.bytes_from_media);
    // `spaceRequired` does not depend on the layers' sizes.
    demand.required = 0;
    Ok(check(config, demand)?.fits)
}

/// The warning to show if everything fits, less than `spaceRequired` is free, and no release is requested.
pub(super) fn less_than_required(config: &JobConfig, demand: Demand) -> Result<Option<String>, JobError> {
    let required = config.spec.space_required;
    let space_check = check(config, Demand { required, ..demand })?;
    let message = format!(
        "`spaceRequired` is {}, and less is free below the kubelet's threshold; the plan fits, and `spaceRequired` is not \
         enforced because no release is requested",
        Size(required)
    );
    Ok((config.spec.platform_image.is_none() && !space_check.fits).then_some(message))
}

/// The disk space that remains below the kubelet's threshold after a plan. If the store and the spool share a file system, both
/// budgets are the same.
pub(super) struct SpareSpace {
    /// For layers that are larger than estimated, and for scratch files.
    pub(super) store: Arc<SpaceBudget>,
    /// For what is downloaded instead of deltas that cannot be used.
    pub(super) spool: Arc<SpaceBudget>,
}

impl SpareSpace {
    /// Subtracts what the plan needs from what is free now.
    pub(super) fn after(plan: &Plan, config: &JobConfig) -> Result<Self, JobError> {
        let demand = Demand {
            spool: plan.totals.bytes_to_spool(),
            store: plan.totals.unpacked_estimate,
            ..Demand::default()
        };
        let filesystems = check(config, demand)?.filesystems;
        let budget = |path: &Path, uses: FilesystemUse| {
            let mut checks = filesystems.iter();
            let check = checks.find(|check| check.used_for == uses || check.used_for == FilesystemUse::Both);
            let (spare, reserve) = check.map_or((0, 0), |check| {
                (
                    check.headroom.saturating_sub(check.needed),
                    check.space.available - check.headroom,
                )
            });
            Arc::new(SpaceBudget::new(path.to_owned(), spare, reserve))
        };
        let store = budget(&config.graph_root, FilesystemUse::Store);
        let spool = match filesystems.len() {
            1 => Arc::clone(&store),
            _ => budget(&config.spool, FilesystemUse::Spool),
        };
        Ok(Self { store, spool })
    }
}

/// The requested bytes that the node has already: unpacked layers and spooled blobs.
fn cached_bytes(plan: &Plan, snapshot: &Snapshot) -> u64 {
    let present = plan
        .images
        .iter()
        .filter(|image| matches!(image.action, ImageAction::Present));
    let whole = present.filter_map(|image| snapshot.image(&image.reference));
    let reused = plan.images.iter().flat_map(|image| &image.layers);
    let reused = reused.filter(|planned| planned.action == LayerAction::Reuse);
    let layers: HashSet<LayerId> = whole
        .flat_map(|image| image.layers.iter().copied())
        .chain(reused.map(|planned| planned.layer.id()))
        .collect();
    let unpacked = layers
        .iter()
        .filter_map(|id| snapshot.inventory.mountable(id)?.diff_size);
    unpacked.fold(plan.totals.bytes_in_spool, u64::saturating_add)
}
