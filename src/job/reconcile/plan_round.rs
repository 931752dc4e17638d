//! Plans a round, and checks that the plan fits on the disk.

use std::time::SystemTime;

use super::Reconciler;
use crate::exit_code::Failure;
use crate::image_request::ImageRequest;
use crate::job::authentication::Authentication;
use crate::job::error::{JobError, Reason};
use crate::job::namers::RoundScope;
use crate::job::release_verification::ReleaseVerification;
use crate::job::snapshot::Snapshot;
use crate::job::steps::Steps;
use crate::job::{Mode, run_blocking, space, stale_blobs};
use crate::plan::{ImageAction, ImageToPlan, Plan, Present};
use crate::preflight::SpaceCheck;
use crate::report::{Count, Event, ImagePhase, Step};

impl Reconciler<'_> {
    /// Plans the requests, with exact layer sizes where they matter.
    pub(super) async fn plan(
        &mut self,
        requests: &[ImageRequest],
        snapshot: &Snapshot,
        scope: RoundScope,
    ) -> Result<Plan, JobError> {
        let wanted = self.images_to_plan(requests, snapshot);
        if self.mode != Mode::Verify {
            let release = self.naming.release_manifest(&self.states, snapshot);
            let damaged = self.verifier.damaged();
            self.media.find_layers(&wanted).await;
            let on_media = self.media.found();
            self.deltas
                .find(&wanted, release, snapshot, &damaged, on_media, self.cancel)
                .await;
            self.media.find_deltas(self.deltas.found()).await;
            self.cancel.check()?;
            let here = self.present(snapshot);
            self.chunked_layers
                .find(&wanted, &here, snapshot, &self.storage, self.cancel)
                .await?;
        }
        let plan = self.build_plan(wanted.clone(), snapshot);
        let (config, mode) = (self.config, self.mode);
        let probed = self
            .size_probe
            .probe_if_needed(config, mode, scope, &plan, snapshot, self.cancel);
        match probed.await? {
            true => Ok(self.build_plan(wanted, snapshot)),
            false => Ok(plan),
        }
    }

    pub(super) fn images_to_plan(&self, requests: &[ImageRequest], snapshot: &Snapshot) -> Vec<ImageToPlan> {
        let verification = self.release_verification.as_ref();
        let is_release_signed = verification.is_some_and(ReleaseVerification::is_verified);
        let policy = &self.checker.policy;
        let authentication = Authentication::new(policy, &self.naming, is_release_signed);
        let images = requests.iter().map(|request| ImageToPlan {
            reference: request.reference.clone(),
            requesters: request.requesters.clone(),
            rank: self.naming.rank(request),
            action: self.states.action(&request.reference, snapshot, self.mode),
            authenticated: authentication.covers(request),
        });
        images.collect()
    }

    /// What the node already has.
    pub(super) fn present(&self, snapshot: &Snapshot) -> Present {
        let mut here = snapshot.here(
            self.states.layers(),
            &self.verifier.damaged(),
            self.deltas.found(),
            &self.media,
            self.size_probe.known(),
        );
        self.chunked_layers.add_to(&mut here);
        self.failed_sources.remove_from(&mut here);
        here
    }

    fn build_plan(&mut self, mut wanted: Vec<ImageToPlan>, snapshot: &Snapshot) -> Plan {
        wanted.retain(|image| !self.is_left_out(&image.reference));
        let here = self.present(snapshot);
        let plan = Plan::build(wanted, self.naming.excluded.clone(), &here);
        self.status
            .report_plan(&plan, |reference| snapshot.additional_store_of(reference));
        // A resolved image that the plan fails contradicts itself or another manifest.
        for image in &plan.images {
            if let ImageAction::Failed(message) = &image.action
                && self.states.is_resolved(&image.reference)
            {
                let (failure, message) = (Failure::Payload, message.clone());
                self.fail(ImagePhase::Failed, &image.reference, Reason { failure, message });
            }
        }
        plan
    }

    pub(super) fn end_resolve(&mut self, plan: &Plan, steps: Steps<'_>) {
        if !std::mem::take(&mut self.is_resolving) {
            return;
        }
        let totals = &plan.totals;
        let (present, failed) = (totals.images_present, totals.images_failed);
        let reason = self
            .states
            .gravest_failure(plan)
            .map_or("Resolved", Failure::reason);
        let message = format!(
            "{} requested, {present} present, {failed} unavailable",
            Count(totals.images_wanted as usize, "image")
        );
        steps.end(Step::Resolve, failed == 0, reason, message);
    }

    /// Removes blobs that no image needs any more. In each round, because other programs may have stored layers meanwhile.
    pub(super) async fn remove_stale_blobs(&self, plan: &Plan, snapshot: &Snapshot) -> Result<(), JobError> {
        let (Mode::Run, Some(spool)) = (self.mode, self.storage.locked_spool().cloned()) else {
            return Ok(());
        };
        let stale = stale_blobs::stale(plan, snapshot, SystemTime::now());
        if stale.is_empty() {
            return Ok(());
        }
        run_blocking(move || {
            let why = "they are in the store, or too old";
            if let Err(error) = stale_blobs::remove(&stale, &spool, why) {
                tracing::warn!("cannot remove stale blobs from the spool: {error}");
            }
            Ok(())
        })
        .await
    }

    /// Checks whether the plan fits on the disk. If it must fit and does not, removes blobs that it does not need.
    pub(super) async fn check_space(
        &self,
        plan: &Plan,
        snapshot: &Snapshot,
        scope: RoundScope,
        must_fit: bool,
        steps: Steps<'_>,
    ) -> Result<SpaceCheck, JobError> {
        steps.start(Step::Preflight);
        let demand = space::demand(self.config, self.mode, scope, plan, snapshot);
        let mut space_check = space::check(self.config, demand)?;
        if must_fit && !space_check.fits {
            // The leftovers of killed runs were removed a moment ago.
            space_check = space::check_after_removal(self.config, demand, self.cancel).await?;
        }
        // Unresolved images may need any blob.
        if must_fit
            && self.resolve_queue.pending() == 0
            && let Some(spool) = self.storage.locked_spool().cloned()
        {
            let blobs = stale_blobs::in_the_way(&space_check, plan, &snapshot.spooled);
            if !blobs.is_empty() {
                run_blocking(move || stale_blobs::remove(&blobs, &spool, "the space is needed")).await?;
                space_check = space::check_after_removal(self.config, demand, self.cancel).await?;
            }
        }
        if must_fit {
            space_check = space_check.into_result()?;
        }
        if space_check.fits
            && scope == RoundScope::Everything
            && let Some(message) = space::less_than_required(self.config, demand)?
        {
            self.observer.observe(Event::Warned { message });
        }
        let reason = match space_check.fits {
            true => "SpaceSuffices",
            false => Failure::Space.reason(),
        };
        steps.end(Step::Preflight, space_check.fits, reason, space_check.to_string());
        Ok(space_check)
    }
}
