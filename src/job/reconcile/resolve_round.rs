//! Takes the snapshot of a round, and resolves the images that the store lacks. `verify` and `repair` read every layer first,
//! and fail what is missing or cannot be repaired.

use std::sync::Arc;
use std::time::Duration;

use super::Reconciler;
use crate::image_request::ImageRequest;
use crate::job::error::{JobError, TaskError};
use crate::job::resolve::Resolution;
use crate::job::snapshot::Snapshot;
use crate::job::steps::Steps;
use crate::job::{Mode, run_blocking, unrepairable};
use crate::oci::Reference;
use crate::report::{ImagePhase, Step};
use crate::store::Damage;

/// How long to wait for the next resolved image before the images that are resolved are pulled. Long enough to download a
/// manifest over a slow link, short compared with a deadline.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(60);

impl Reconciler<'_> {
    /// Takes a snapshot, and resolves the images that it lacks.
    pub(super) async fn snapshot_and_resolve(
        &mut self,
        requests: &[ImageRequest],
        steps: Steps<'_>,
    ) -> Result<Snapshot, JobError> {
        let references: Vec<Reference> = requests.iter().map(|it| it.reference.clone()).collect();
        let snapshot = self.snapshot(&references).await?;
        match self.mode {
            Mode::Run | Mode::Plan => {}
            Mode::Repair => {
                self.fail_unrepairable(&references, &snapshot).await?;
                self.resolve_from_store(&references, &snapshot).await?;
            }
            Mode::Verify => {
                for (reference, phase, reason) in self.states.missing(&references, &snapshot, self.mode) {
                    self.fail(phase, &reference, reason);
                }
                return Ok(snapshot);
            }
        }
        let unresolved = references
            .iter()
            .filter(|it| self.states.is_unresolved(it, &snapshot, self.mode));
        let unresolved: Vec<Reference> = unresolved.cloned().collect();
        if self.is_first || !unresolved.is_empty() {
            steps.start(Step::Resolve);
            self.is_resolving = true;
        }
        if unresolved.is_empty() {
            return Ok(snapshot);
        }
        self.resolve_queue.add(unresolved, &snapshot.inventory);
        self.resolve(&references, &snapshot).await;
        self.cancel.check()?;
        // Resolving may have taken hours.
        self.snapshot(&references).await
    }

    /// Takes a snapshot. In modes that read everything, verifies it and repairs files outside the layers' trees.
    async fn snapshot(&mut self, references: &[Reference]) -> Result<Snapshot, JobError> {
        let mut snapshot = self.storage.snapshot(references, &self.checker).await?;
        if !self.mode.reads_all() {
            return Ok(snapshot);
        }
        let (threads, host) = (self.config.max_unpacks, &self.config.host_state);
        self.verifier.verify(&mut snapshot, threads, self.cancel).await?;
        if self.mode == Mode::Repair
            && self
                .verifier
                .repair_links(&snapshot, self.storage.store(), host, self.cancel)
                .await?
        {
            snapshot = self.storage.snapshot(references, &self.checker).await?;
            self.verifier.verify(&mut snapshot, threads, self.cancel).await?;
        }
        Ok(snapshot)
    }

    async fn fail_unrepairable(
        &mut self,
        references: &[Reference],
        snapshot: &Snapshot,
    ) -> Result<(), JobError> {
        for (reference, reason) in unrepairable::in_additional_stores(references, snapshot) {
            self.fail(ImagePhase::Damaged, &reference, reason);
        }
        for (reference, reason) in unrepairable::damaged_again(references, snapshot, &self.verifier) {
            self.fail(ImagePhase::Failed, &reference, reason);
        }
        let has_damaged_layers = |it: &Reference| unrepairable::has_damaged_layers(it, snapshot);
        if references.iter().any(has_damaged_layers) {
            let (store, host) = (Arc::clone(self.storage.store()), self.config.host_state.clone());
            let users = run_blocking(move || Ok(store.layers_in_use(&host)?)).await?;
            for (reference, reason) in unrepairable::in_use(references, snapshot, &users) {
                self.fail(ImagePhase::Damaged, &reference, reason);
            }
        }
        Ok(())
    }

    /// Resolves damaged images from their records in the store, so that no registry is asked and the repaired image is the
    /// stored one.
    async fn resolve_from_store(
        &mut self,
        references: &[Reference],
        snapshot: &Snapshot,
    ) -> Result<(), JobError> {
        for reference in references {
            let Some(image) = snapshot.image(reference) else {
                continue;
            };
            // An image of an additional store gets its own record in the graph root, with the list that names it; that
            // takes a registry. So do missing and damaged signatures.
            let mut damages = image.data_damage.iter();
            let lacks_signatures =
                image.signatures.refusal.is_some() || damages.any(Damage::is_of_signatures);
            let is_from_registry = image.flaw.is_none() || image.additional.is_some() || lacks_signatures;
            if is_from_registry || self.states.is_resolved(reference) {
                continue;
            }
            let (inventory, id) = (Arc::clone(&snapshot.inventory), image.id);
            let described = run_blocking(move || match inventory.image(&id) {
                Some(image) => Ok(inventory.describe(image)?),
                None => Ok(None),
            });
            if let Some(image) = described.await? {
                self.states.resolve(reference, image);
            }
        }
        Ok(())
    }

    /// Takes resolved images from the queue until none is pending, the namers can be pulled, or the registries that have
    /// not answered can wait.
    async fn resolve(&mut self, references: &[Reference], snapshot: &Snapshot) {
        while !self.are_namers_pullable(snapshot) {
            let next = tokio::time::timeout(RESOLVE_TIMEOUT, self.resolve_queue.next()).await;
            let Resolution { reference, image } = match next {
                Ok(Some(resolution)) => resolution,
                Ok(None) => return,
                Err(_elapsed) => {
                    let is_pullable = |it: &&Reference| self.states.is_pullable(it, snapshot, self.mode);
                    let pullable = references.iter().filter(is_pullable).count();
                    if self.pulls(self.scope(snapshot)) && pullable > 0 {
                        tracing::warn!(
                            "the registries of {} images have not answered yet; pulling {pullable} others meanwhile",
                            self.resolve_queue.pending()
                        );
                        return;
                    }
                    continue;
                }
            };
            match image {
                Ok(image) => self.states.resolve(&reference, image),
                Err(TaskError::Image(reason)) => self.fail(ImagePhase::Failed, &reference, reason),
                Err(TaskError::Stopped | TaskError::Host(_)) => {}
            }
        }
    }
}
