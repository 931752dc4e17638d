//! Pulls the images of a plan into the store.
//!
//! # Design
//!
//! ```text
//! Scheduler ─blob─→ LayerStaging ─staged layers─→ PullTracker ─ready images─→ Committer ─→ the store
//!                   download, unpack                  ↑ one failed layer fails its images
//! ```
//!
//! A layer with sources is made from the first of them that works (`sources`), or else from its whole blob (`source_staging`),
//! if the disk has the space (`fallback_space`).
//!
//! [`PullLoop`] connects them. Each blob is one future: download it, then unpack every layer that is made
//! of it, each on a blocking thread. The loop polls a bounded number of these futures. As soon as all layers of an image are
//! staged or in the store, a blocking thread commits the image. Images that become ready during a commit go into the next
//! commit together, with one sync of the file system for all of them, because on a fast link the disk's syncs take the
//! longest.
//!
//! Before an upgrade an image is begun only if it can be whole in time (`image_queue`), by the measured rate (`link_rate`,
//! `capacity`). `pull_end` forecasts what will be missing at any deadline, and `forecast_news` decides when that is reported.
//!
//! So an interrupted run leaves complete images, a slow blob does not hold up the others, and the blobs in the spool that wait
//! for a thread are bounded.
//!
//! An error of the host, such as a full disk, stops the pull. An error of one image becomes its [`ImageOutcome`].

mod capacity;
mod commit;
mod failed_sources;
mod fallback_space;
mod forecast_news;
mod image_queue;
mod layer_staging;
mod link_rate;
mod pull_end;
mod pull_loop;
mod repair;
pub(super) mod scheduler;
mod source_staging;
mod sources;
mod tracker;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use futures::future::join_all;

use super::error::JobError;
use super::prefetch::{EarlyLayers, ReleaseFirst, StagedLayers};
use super::unpacker::Unpacker;
use crate::cancel::Cancel;
use crate::fetch::Fetcher;
use crate::oci::LayerId;
use crate::plan::Plan;
use crate::report::Observer;
use crate::spool::Spool;
use crate::store::unpack::SpaceBudget;
use crate::store::{Inventory, Store};
pub(super) use failed_sources::FailedSources;
use layer_staging::LayerStaging;
pub(super) use pull_end::MeasuredEnd;
use pull_loop::PullLoop;
pub(super) use repair::LayerRepair;
pub(super) use tracker::ImageOutcome;

/// Everything that a pull works with.
pub(super) struct Puller {
    pub(super) store: Arc<Store>,
    pub(super) unpacker: Unpacker,
    /// Layers that a prefetch unpacked.
    pub(super) early_layers: EarlyLayers,
    /// What the store contained when the pull was planned: the sources of deltas.
    pub(super) inventory: Arc<Inventory>,
    /// The objects of the node's ostree repository, which are sources too.
    pub(super) ostree_objects: PathBuf,
    /// Sources of layers that failed, in this pull and before.
    pub(super) failed_sources: FailedSources,
    /// Set if damaged layers are replaced.
    pub(super) repair: Option<LayerRepair>,
    /// Disk space for layers that are larger than estimated.
    pub(super) budget: Arc<SpaceBudget>,
    /// Disk space for what is downloaded instead of deltas that cannot be used.
    pub(super) spool_budget: Arc<SpaceBudget>,
    pub(super) spool: Spool,
    pub(super) fetcher: Arc<Fetcher>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) deadline: Option<Instant>,
    /// Set if something ends the run.
    pub(super) end: Option<MeasuredEnd>,
    pub(super) max_downloads: usize,
    pub(super) max_unpacks: usize,
    /// Stops all work of the pull and of prefetches.
    pub(super) halt: Cancel,
    /// Passes staged layers to a prefetch, if one runs beside this pull.
    pub(super) staged_layers: Option<StagedLayers>,
}

/// The result of a pull.
pub(super) struct Pulled {
    /// One for each image of the plan, in order.
    pub(super) outcomes: Vec<ImageOutcome>,
    /// The layers that the pull committed.
    pub(super) layers: Vec<LayerId>,
    /// Whether images were not begun because the upgrade begins too soon.
    pub(super) has_given_up: bool,
}

impl Puller {
    /// Pulls the images of `plan`. Before this returns, staged layers without an image are removed, unless the run has to
    /// end at once.
    pub(super) async fn pull(
        &self,
        plan: &Plan,
        release_first: ReleaseFirst,
        cancel: &Cancel,
    ) -> Result<Pulled, JobError> {
        let staging = LayerStaging::new(self, plan);
        let mut removals = Vec::new();
        let pulled = {
            let mut pull = pin!(PullLoop::new(&staging, release_first, &mut removals).run());
            tokio::select! {
                pulled = &mut pull => pulled,
                stopped = cancel.stopped() => {
                    self.halt.stop(stopped.0);
                    pull.await
                }
            }
        };
        tokio::select! {
            // The threads end by themselves, or with the process. The next run removes what is left.
            _ = cancel.stopped() => {}
            _ = join_all(removals) => {}
        }
        pulled
    }
}
