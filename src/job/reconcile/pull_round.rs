//! Pulls the plan of one round, with a prefetch beside it, and records what was pulled.

use std::collections::HashSet;
use std::sync::Arc;

use super::Reconciler;
use crate::exit_code::Failure;
use crate::fetch::Fetcher;
use crate::job::error::JobError;
use crate::job::namers::RoundScope;
use crate::job::prefetch::{NextRound, Prefetch};
use crate::job::pull::{ImageOutcome, LayerRepair, MeasuredEnd, Pulled, Puller};
use crate::job::snapshot::Snapshot;
use crate::job::space::SpareSpace;
use crate::job::steps::Steps;
use crate::job::unpacker::Unpacker;
use crate::job::{Mode, run_blocking};
use crate::plan::{LayerAction, Plan};
use crate::report::{Event, ImagePhase, Step};
use crate::spool::Spool;

impl Reconciler<'_> {
    /// Pulls what the plan lists.
    pub(super) async fn pull(
        &mut self,
        plan: &Plan,
        snapshot: &Snapshot,
        scope: RoundScope,
        steps: Steps<'_>,
    ) -> Result<(), JobError> {
        steps.start(Step::Pull);
        self.report_reused_layers(plan);
        self.status.list_plan(plan);
        let spool = self.storage.lock_spool()?;
        let unpacker = self.unpacker().await?;
        let fetcher = self.fetcher(&spool);
        let mut puller = self.puller(plan, snapshot, spool, unpacker.clone(), Arc::clone(&fetcher))?;
        let limits_starts = self.end.as_ref().is_some_and(MeasuredEnd::limits_starts);
        let releases = match limits_starts {
            // It is begun like every other image.
            true => HashSet::new(),
            false => self.naming.unread_releases(plan),
        };
        let (progress, release_first, staged_layers) = Prefetch::connect(plan, releases, fetcher.received());
        // A prefetch has no order.
        let prefetches = !limits_starts
            && Prefetch::is_useful(self.mode, scope, &self.naming)
            && !self.is_updating_to_unread(snapshot);
        puller.staged_layers = prefetches.then_some(staged_layers);
        self.prefetch.start_no_more();
        let pull = puller.pull(plan, release_first, self.cancel);
        let pulled = match prefetches {
            false => pull.await?,
            true => {
                let next = NextRound {
                    config: self.config,
                    storage: &self.storage,
                    checker: &self.checker,
                    naming: &self.naming,
                    release_verification: self.release_verification.as_ref(),
                    states: &self.states,
                    media: &mut self.media,
                    deltas: &mut self.deltas,
                    tars: self.size_probe.known(),
                    queue: &mut self.resolve_queue,
                    status: &mut self.status,
                    fetcher,
                    unpacker,
                    halt: &self.halt,
                };
                self.prefetch.run_beside(pull, plan, progress, next).await?
            }
        };
        self.record(plan, pulled, steps)
    }

    /// Reports layers of the plan that the store has, each once in a run.
    fn report_reused_layers(&mut self, plan: &Plan) {
        let layers = plan.images.iter().flat_map(|image| &image.layers);
        let reused =
            layers.filter(|it| it.action == LayerAction::Reuse && self.reported_layers.insert(it.layer.id()));
        let layers = reused.count() as u64;
        self.observer.observe(Event::LayersReused { layers });
    }

    /// One for the whole run, so that a pull waits for the prefetch's downloads instead of starting its own.
    fn fetcher(&mut self, spool: &Spool) -> Arc<Fetcher> {
        let fetcher = self.fetcher.get_or_insert_with(|| {
            Arc::new(Fetcher::new(
                Arc::clone(&self.registries),
                spool.clone(),
                Arc::clone(&self.observer),
                self.config.max_downloads,
            ))
        });
        Arc::clone(fetcher)
    }

    /// One for the whole run, so that a pull takes the layers that a prefetch unpacks. Opening a stage removes the stages of
    /// killed runs.
    async fn unpacker(&mut self) -> Result<Unpacker, JobError> {
        if let Some(unpacker) = &self.unpacker {
            return Ok(unpacker.clone());
        }
        let (store, write_queue) = (
            Arc::clone(self.storage.store()),
            self.storage.write_queue().clone(),
        );
        let stage = run_blocking(move || {
            store.create_if_missing()?;
            Ok(store.stage(&write_queue)?)
        });
        let config = self.config;
        let (max_unpacks, priority) = (config.max_unpacks.get(), config.disk_priority);
        let unpacker = Unpacker::new(Arc::new(stage.await?), max_unpacks, priority, self.halt.clone());
        Ok(self.unpacker.insert(unpacker).clone())
    }

    fn puller(
        &self,
        plan: &Plan,
        snapshot: &Snapshot,
        spool: Spool,
        unpacker: Unpacker,
        fetcher: Arc<Fetcher>,
    ) -> Result<Puller, JobError> {
        let spare = SpareSpace::after(plan, self.config)?;
        let repair = (self.mode == Mode::Repair).then(|| LayerRepair {
            store: Arc::clone(self.storage.store()),
            stage: Arc::clone(&unpacker.stage),
            inventory: Arc::clone(&snapshot.inventory),
            host: self.config.host_state.clone(),
            budget: Arc::clone(&spare.store),
        });
        Ok(Puller {
            store: Arc::clone(self.storage.store()),
            unpacker,
            early_layers: self.prefetch.early_layers(),
            inventory: Arc::clone(&snapshot.inventory),
            ostree_objects: self.config.ostree_objects(),
            failed_sources: self.failed_sources.clone(),
            repair,
            budget: spare.store,
            spool_budget: spare.spool,
            fetcher,
            spool,
            observer: Arc::clone(&self.observer),
            deadline: self.config.end.first().map(|(at, _)| at),
            end: self.end.clone(),
            max_downloads: self.config.max_downloads.get(),
            max_unpacks: self.config.max_unpacks.get(),
            halt: self.halt.clone(),
            staged_layers: None,
        })
    }

    /// Records what a pull stored and what failed, and ends the step.
    fn record(&mut self, plan: &Plan, pulled: Pulled, steps: Steps<'_>) -> Result<(), JobError> {
        self.verifier
            .forget(&plan.layers.iter().map(|task| task.layer.id()).collect());
        self.verifier.note_rewritten(&pulled.layers);
        self.reported_layers.extend(pulled.layers);
        self.has_given_up |= pulled.has_given_up;
        let mut complete = 0;
        for (image, outcome) in plan.images.iter().zip(pulled.outcomes) {
            match outcome {
                ImageOutcome::Open => {}
                ImageOutcome::Pulled => {
                    complete += 1;
                    self.status.note_reported(&image.reference, ImagePhase::Pulled);
                }
                ImageOutcome::Failed(reason) => {
                    self.status.note_reported(&image.reference, ImagePhase::Failed);
                    self.states.fail(&image.reference, reason);
                }
            }
        }
        let planned = plan.totals.images_to_pull;
        if complete < planned {
            self.cancel.check()?;
        }
        let reason = match complete == planned {
            true => "Pulled",
            false => self
                .states
                .gravest_failure(plan)
                .map_or("StoreChanged", Failure::reason),
        };
        let message = format!("{complete} of {planned} images were pulled");
        steps.end(Step::Pull, complete == planned, reason, message);
        Ok(())
    }
}
