//! Is there room for the plan, and what the spool can give up for it.

use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime};

use super::error::JobError;
use super::reconcile::Scope;
use super::snapshot::Snapshot;
use super::{JobConfig, Mode};
use crate::cancel::Cancel;
use crate::oci::{Digest, LayerId};
use crate::plan::{ImageAction, LayerAction, Plan};
use crate::preflight::{Demand, Holds, Space, Spaces, Verdict, verdict};
use crate::report::Size;
use crate::spool::{Spool, SpoolEntry};
use crate::store::unpack::SpaceBudget;

/// How long a file system may take to give removed files' blocks back.
const SETTLING: Duration = Duration::from_secs(2);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// A blob that nobody wants and nobody wrote to for this long is removed, so that the spool is bounded: an upgrade is
/// prepared within weeks, and one that was not carried out by then is prepared anew.
const FORGOTTEN: Duration = Duration::from_secs(30 * 24 * 3600);

/// Holds a plan against the disk.
///
/// # Errors
/// When the free space cannot be read.
pub(super) fn hold(order: &JobConfig, demand: Demand) -> Result<Verdict, JobError> {
    let spaces = Spaces {
        store: Space::of(&order.graph_root)?,
        spool: Space::of(&order.spool)?,
    };
    Ok(verdict(&spaces, demand, order.image_gc_high_threshold))
}

/// Holds a plan against a disk from which something was removed. XFS gives blocks back a little later, and the kernel's
/// answer lags behind.
pub(super) async fn hold_again(
    order: &JobConfig,
    demand: Demand,
    cancel: &Cancel,
) -> Result<Verdict, JobError> {
    let mut verdict = hold(order, demand)?;
    let begun = Instant::now();
    while !verdict.fits && begun.elapsed() < SETTLING {
        cancel.sleep(PAUSE).await?;
        verdict = hold(order, demand)?;
    }
    Ok(verdict)
}

/// What the plan, and `spaceRequired`, ask of the disk.
pub(super) fn demand(order: &JobConfig, mode: Mode, scope: Scope, plan: &Plan, sight: &Snapshot) -> Demand {
    Demand {
        spool: plan.totals.bytes_to_fetch,
        store: plan.totals.unpacked_estimate,
        required: match (mode, scope) {
            // Whether everything fits is what `plan` is to say; for that it needs what is named.
            (Mode::Plan, Scope::Naming) => 0,
            // The hub sends its default of 35 GiB whenever nobody set it; that is for a release.
            _ if order.spec.platform_image.is_none() => 0,
            _ => order.spec.space_required,
        },
        cached: match scope {
            Scope::Everything => cached(plan, sight),
            // Which of it will be wanted is not known yet; any of it may be.
            Scope::Naming => sight.inventory.stored_bytes().saturating_add(sum(&sight.spooled)),
        },
    }
}

/// What to say where everything fits, but less than `spaceRequired` is free and no release is asked for.
pub(super) fn less_than_required(order: &JobConfig, demand: Demand) -> Result<Option<String>, JobError> {
    let required = order.spec.space_required;
    let asked = hold(order, Demand { required, ..demand })?;
    let message = format!(
        "`spaceRequired` is {}, and less is free below the kubelet's line; what the plan needs fits, and no more is required, \
         for no release is asked for",
        Size(required)
    );
    Ok((order.spec.platform_image.is_none() && !asked.fits).then_some(message))
}

/// What lies below the kubelet's line on the store's disk and nothing in the plan needs, for layers that turn out larger
/// than was foreseen.
pub(super) fn to_spare(order: &JobConfig, plan: &Plan) -> Result<SpaceBudget, JobError> {
    let demand = Demand {
        spool: plan.totals.bytes_to_fetch,
        store: plan.totals.unpacked_estimate,
        ..Demand::default()
    };
    let verdict = hold(order, demand)?;
    let mut checks = verdict.checks.iter();
    let store = checks.find(|check| matches!(check.holds, Holds::Both | Holds::Store));
    let (spare, reserve) = store.map_or((0, 0), |check| {
        (
            check.headroom.saturating_sub(check.needed),
            check.space.available - check.headroom,
        )
    });
    Ok(SpaceBudget::new(order.graph_root.clone(), spare, reserve))
}

/// What of everything that is wanted lies here already, in bytes: unpacked layers and spooled blobs.
fn cached(plan: &Plan, sight: &Snapshot) -> u64 {
    let present = plan
        .images
        .iter()
        .filter(|image| matches!(image.action, ImageAction::Present));
    let whole = present.filter_map(|image| sight.image(&image.reference));
    let reused = plan.images.iter().flat_map(|image| &image.layers);
    let reused = reused.filter(|planned| planned.action == LayerAction::Reuse);
    let layers: HashSet<LayerId> = whole
        .flat_map(|image| image.layers.iter().copied())
        .chain(reused.map(|planned| planned.layer.id()))
        .collect();
    let unpacked = layers
        .iter()
        .filter_map(|id| sight.inventory.mountable(id)?.diff_size);
    unpacked.fold(plan.totals.bytes_in_spool, u64::saturating_add)
}

/// The blobs of earlier runs that this plan does not want, if the plan would fit without them and does not with them.
pub(super) fn dispensable(verdict: &Verdict, plan: &Plan, spooled: &[SpoolEntry]) -> Vec<SpoolEntry> {
    let wanted: HashSet<Digest> = plan.blobs.iter().map(|blob| blob.digest).collect();
    let unwanted = spooled.iter().filter(|entry| !wanted.contains(&entry.digest));
    let unwanted: Vec<SpoolEntry> = unwanted.copied().collect();
    let bytes = sum(&unwanted);
    let would_do = verdict.checks.iter().all(|check| match check.holds {
        Holds::Both | Holds::Spool => check.shortfall <= bytes,
        Holds::Store => check.shortfall == 0,
    });
    if verdict.fits || !would_do {
        return Vec::new();
    }
    unwanted
}

/// The blobs of earlier runs that are of no use to anybody: what the plan does not want and either lies unpacked in the
/// store, for a run was killed between the two steps, or is [`FORGOTTEN`]. The rest may be what the next run goes on
/// with, for another release.
pub(super) fn spent(plan: &Plan, sight: &Snapshot, now: SystemTime) -> Vec<SpoolEntry> {
    let wanted: HashSet<Digest> = plan.blobs.iter().map(|blob| blob.digest).collect();
    let stored: HashSet<Digest> = sight.inventory.layers().filter_map(|layer| layer.blob).collect();
    let is_forgotten = |entry: &SpoolEntry| {
        // A clock that was set back makes nothing old.
        now.duration_since(entry.modified)
            .is_ok_and(|age| age > FORGOTTEN)
    };
    // What an image wants that cannot be had today is not known.
    let knows_all = plan.totals.images_failed == 0;
    let spent = sight.spooled.iter().filter(|entry| {
        !wanted.contains(&entry.digest)
            && (stored.contains(&entry.digest) || knows_all && is_forgotten(entry))
    });
    spent.copied().collect()
}

/// Removes blobs of earlier runs from the spool.
pub(super) fn remove(blobs: &[SpoolEntry], spool: &Spool, why: &str) -> Result<(), JobError> {
    for blob in blobs {
        spool.remove(&blob.digest)?;
    }
    tracing::info!(
        "removed {} blobs of earlier runs from the spool, {}: nothing in the plan wants them, and {why}",
        blobs.len(),
        Size(sum(blobs))
    );
    Ok(())
}

fn sum(blobs: &[SpoolEntry]) -> u64 {
    blobs.iter().map(|blob| blob.bytes).fold(0, u64::saturating_add)
}
