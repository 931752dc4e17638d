//! How exact a forecast is wanted.

use std::time::Duration;

use super::{Reconciler, Scope};
use crate::job::error::JobError;
use crate::job::snapshot::Snapshot;
use crate::job::{Mode, space};
use crate::plan::Plan;

/// How long a plan that is only to be shown may wait for the lengths of tars: 200 blobs are asked in 1.1 s over
/// a link with a round trip of 150 ms, and a release has some 500, each perhaps behind a redirect.
const TO_SHOW: Duration = Duration::from_secs(30);

/// How long a run may, for which that is lost time: some round trips of a slow link, in which the largest blobs are
/// asked.
const TO_DECIDE: Duration = Duration::from_secs(3);

/// What fits although it takes up so many halves of what is guessed fits for certain: a release's layers became 2.9 times
/// as large as they travel, and these are 4.3.
const HALVES: u64 = 3;

impl Reconciler<'_> {
    /// Asks blobs how long their tars are: for a plan that is to be shown, and where it may decide whether a run has room.
    /// A run that has room enough in any case asks nobody. Says whether anything new may be known.
    pub(super) async fn weigh(
        &mut self,
        plan: &Plan,
        sight: &Snapshot,
        scope: Scope,
    ) -> Result<bool, JobError> {
        if self.mode == Mode::Verify || plan.totals.unpacked_guessed == 0 {
            return Ok(false);
        }
        let patience = match (self.mode, scope) {
            (Mode::Plan, Scope::Everything) => TO_SHOW,
            _ if self.fits_for_certain(plan, sight, scope)? => return Ok(false),
            _ => TO_DECIDE,
        };
        self.lengths.learn(plan, patience, self.cancel).await?;
        self.cancel.check()?;
        Ok(true)
    }

    pub(super) fn fits_for_certain(
        &self,
        plan: &Plan,
        sight: &Snapshot,
        scope: Scope,
    ) -> Result<bool, JobError> {
        let mut demand = space::demand(self.order, self.mode, scope, plan, sight);
        demand.store = demand.store.saturating_mul(HALVES) / 2;
        // Whether that fits does not depend on the layers.
        demand.required = 0;
        Ok(space::hold(self.order, demand)?.fits)
    }
}
