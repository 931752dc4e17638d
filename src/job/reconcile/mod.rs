//! Pulls what the store lacks, in rounds: take a snapshot, resolve, plan, check the space, pull; the next round verifies the
//! result by its own snapshot.

mod plan_round;
mod pull_round;
mod read_namers;
mod resolve_round;
mod run_media;
mod running_update;
mod signature_round;
mod upgrade;
mod used_images;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::Mode;
use super::chunked_layers::ChunkedLayers;
use super::config::JobConfig;
use super::deltas::Deltas;
use super::error::{JobError, Reason};
use super::image_states::ImageStates;
use super::media_blobs::MediaBlobs;
use super::namers::{Naming, RoundScope};
use super::node_storage::NodeStorage;
use super::os_images::OsImages;
use super::outcome::Outcome;
use super::prefetch::Prefetch;
use super::pull::{FailedSources, MeasuredEnd};
use super::release_verification::ReleaseVerification;
use super::resolve::ResolveQueue;
use super::signature_policy::namespace_warnings;
use super::signed_image::SignedImages;
use super::size_probe::SizeProbe;
use super::snapshot::Snapshot;
use super::status::StatusReporter;
use super::steps::Steps;
use super::stored_signatures::StoredSignatureChecker;
use super::unpacker::Unpacker;
use super::verify::Verifier;
use crate::cancel::{Cancel, StopReason};
use crate::exit_code::Failure;
use crate::fetch::Fetcher;
use crate::image_request::{ImageRequest, dedupe};
use crate::oci::{LayerId, Reference};
use crate::plan::Plan;
use crate::preflight::SpaceCheck;
use crate::registry::Registries;
use crate::report::{Event, ImagePhase, Observer, Printable, Span, Step};
use run_media::open_media;
use used_images::UsedImages;

/// How often the same images are pulled again because another program removed a layer that was to be reused. More rounds
/// than this are not an accident.
const MAX_ROUNDS: usize = 5;

/// How long a run that never gives up waits after [`MAX_ROUNDS`].
const UNSTABLE_STORE_DELAY: Duration = Duration::from_secs(5 * 60);

/// Pulls the requested images, and remembers what it learned about each.
pub(super) struct Reconciler<'a> {
    config: &'a JobConfig,
    mode: Mode,
    observer: Arc<dyn Observer>,
    cancel: &'a Cancel,
    storage: NodeStorage<'a>,
    registries: Arc<Registries>,
    checker: StoredSignatureChecker,
    signed_images: Arc<SignedImages>,
    /// Whether signatures of present images were requested that no rule needs.
    are_signatures_complete: bool,
    resolve_queue: ResolveQueue,
    naming: Naming,
    /// None without a release, and in a mode that asks nothing.
    release_verification: Option<ReleaseVerification>,
    used_images: UsedImages,
    states: ImageStates,
    media: MediaBlobs,
    deltas: Deltas,
    chunked_layers: ChunkedLayers,
    size_probe: SizeProbe,
    verifier: Verifier,
    status: StatusReporter,
    prefetch: Prefetch,
    /// Deltas that could not be used.
    failed_sources: FailedSources,
    /// Layers that were reported as pulled or as reused.
    reported_layers: HashSet<LayerId>,
    /// The end of the run, if something ends it, and the rate so far.
    end: Option<MeasuredEnd>,
    /// Whether images were not begun because the upgrade begins too soon.
    has_given_up: bool,
    /// Created with the first pull, because it needs a locked spool.
    fetcher: Option<Arc<Fetcher>>,
    /// Created with the first pull, because it needs a store.
    unpacker: Option<Unpacker>,
    /// Stops all running downloads and unpacks.
    halt: Cancel,
    /// Whether no pull of everything was started yet.
    is_first: bool,
    /// Whether the step [`Step::Resolve`] was started and not ended.
    is_resolving: bool,
    /// Rounds since the requests changed.
    rounds: usize,
}

impl<'a> Reconciler<'a> {
    pub(super) async fn new(
        config: &'a JobConfig,
        mode: Mode,
        naming: Naming,
        observer: &Arc<dyn Observer>,
        cancel: &'a Cancel,
        steps: Steps<'_>,
    ) -> Result<Self, JobError> {
        let opened = NodeStorage::open(config, mode, cancel).await;
        let storage = steps.take(Step::Store, || {
            let storage = opened?;
            let (root, blobs) = (config.graph_root.display(), config.spool.display());
            for message in storage.store().warnings().to_vec() {
                observer.observe(Event::Warned { message });
            }
            Ok((storage, format!("graph root `{root}`, spool `{blobs}`")))
        })?;
        let registries = Registries::new(config.registries.clone(), Arc::clone(observer));
        let registries =
            registries.map_err(|error| steps.ended_by(Step::Resolve, JobError::Registries(error)))?;
        let media = open_media(config, mode, observer.as_ref(), cancel).await;
        let media = media.map_err(|error| steps.ended_by(Step::Resolve, error))?;
        let registries = Arc::new(registries.with_media(Arc::new(media)));
        let policy = Arc::new(config.signature_policy.clone());
        observer.observe(Event::SignaturePolicy(policy.report()));
        let signed_images = Arc::new(SignedImages::new(
            Arc::clone(&registries),
            Arc::clone(&policy),
            config.platform.clone(),
            Arc::clone(observer),
            cancel.clone(),
        ));
        Ok(Self {
            config,
            mode,
            observer: Arc::clone(observer),
            cancel,
            storage,
            resolve_queue: ResolveQueue::new(Arc::clone(&signed_images)),
            signed_images,
            are_signatures_complete: false,
            checker: StoredSignatureChecker {
                policy,
                registries: Arc::clone(&registries),
            },
            media: MediaBlobs::new(Arc::clone(&registries)),
            deltas: Deltas::new(
                Arc::clone(&registries),
                config.deltas.clone(),
                config.ostree_objects(),
            ),
            chunked_layers: ChunkedLayers::new(Arc::clone(&registries), config),
            size_probe: SizeProbe::new(Arc::clone(&registries), config.spool.clone()),
            registries,
            release_verification: None,
            naming,
            used_images: UsedImages::default(),
            states: ImageStates::default(),
            verifier: Verifier::new(Arc::clone(observer), config.disk_priority),
            status: StatusReporter::new(Arc::clone(observer)),
            prefetch: Prefetch::default(),
            failed_sources: FailedSources::default(),
            reported_layers: HashSet::new(),
            end: MeasuredEnd::new(&config.end, config.registries.limit.clone()),
            has_given_up: false,
            fetcher: None,
            unpacker: None,
            halt: Cancel::default(),
            is_first: true,
            is_resolving: false,
            rounds: 0,
        })
    }

    /// Runs rounds until nothing is left to do in this mode: first for the images that name others, as long as some of them
    /// can be pulled, then for everything.
    pub(super) async fn reconcile(mut self) -> Result<Outcome, JobError> {
        let observer = Arc::clone(&self.observer);
        let steps = Steps(Some(observer.as_ref()));
        self.start_naming(steps);
        self.find_used_images(steps).await?;
        self.start_release_verification(steps);
        match self.pulls(RoundScope::Everything) {
            true => self.storage.remove_leftovers().await?,
            false => self.storage.warn_of_leftovers(observer.as_ref()).await?,
        }
        let mut space_check = None;
        loop {
            self.refuse_unsigned_release(steps);
            let requests = dedupe(self.naming.requests.iter().cloned());
            let resolved = self.snapshot_and_resolve(&requests, steps).await;
            let snapshot = resolved.map_err(|error| steps.ended_by(self.first_step(), error))?;
            if self.read_namers(&snapshot, steps).await? {
                self.rounds = 0;
                continue;
            }
            let scope = self.scope(&snapshot);
            let (requests, round_steps) = match scope {
                RoundScope::Everything => (requests, steps),
                RoundScope::Namers => (self.naming.namer_requests(), Steps(None)),
            };
            // While images are unresolved, each round is about other images.
            self.rounds += usize::from(self.resolve_queue.pending() == 0);
            let waits = self.rounds > MAX_ROUNDS && self.config.never_gives_up() && self.mode == Mode::Run;
            if self.rounds > MAX_ROUNDS && !waits {
                self.give_up(&requests, &snapshot);
            }
            let plan = self.plan(&requests, &snapshot, scope).await?;
            if scope == RoundScope::Everything && self.resolve_queue.pending() == 0 {
                self.end_resolve(&plan, steps);
                let removed = self.remove_stale_blobs(&plan, &snapshot).await;
                removed.map_err(|error| steps.ended_by(self.first_step(), error))?;
            }
            let is_idle = plan.totals.images_to_pull == 0;
            if waits && !is_idle {
                self.wait_for_stable_store().await?;
                self.rounds = 0;
                // The snapshot is outdated.
                continue;
            }
            if self.mode != Mode::Verify && (self.is_first || !is_idle) {
                let must_fit = self.pulls(scope) && !is_idle;
                let checked = self
                    .check_space(&plan, &snapshot, scope, must_fit, round_steps)
                    .await;
                space_check = Some(checked.map_err(|error| self.ended_by(scope, Step::Preflight, error))?);
            }
            // If the namers that are left are unavailable, the other images are still missing.
            let is_done = !self.pulls(scope) || is_idle && self.resolve_queue.pending() == 0;
            if scope == RoundScope::Everything && is_done {
                if self.complete_signatures(&plan, &snapshot).await? {
                    continue;
                }
                return self.finish(plan, &snapshot, space_check, steps).await;
            }
            if !is_idle {
                self.is_first &= scope == RoundScope::Namers;
                let pulled = self.pull(&plan, &snapshot, scope, round_steps).await;
                pulled.map_err(|error| self.ended_by(scope, Step::Pull, error))?;
            }
        }
    }

    /// Whether missing images are pulled in a round of this scope.
    fn pulls(&self, scope: RoundScope) -> bool {
        match self.mode {
            Mode::Run | Mode::Repair => true,
            Mode::Plan => scope == RoundScope::Namers,
            Mode::Verify => false,
        }
    }

    /// The step that an error ends while the node and the registries are read.
    fn first_step(&self) -> Step {
        match self.mode {
            Mode::Run | Mode::Plan | Mode::Repair => Step::Resolve,
            Mode::Verify => Step::Verify,
        }
    }

    /// Waits because another program removes layers while they are pulled.
    async fn wait_for_stable_store(&self) -> Result<(), JobError> {
        tracing::warn!(
            "another program removes layers from the store while they are pulled; retrying in {}",
            Span(UNSTABLE_STORE_DELAY)
        );
        Ok(self.cancel.sleep(UNSTABLE_STORE_DELAY).await?)
    }

    /// Fails the images that are still missing after [`MAX_ROUNDS`].
    fn give_up(&mut self, requests: &[ImageRequest], snapshot: &Snapshot) {
        for ImageRequest { reference, .. } in requests {
            if self.states.is_pullable(reference, snapshot, self.mode) {
                let flaw = snapshot.image(reference).and_then(|image| image.flaw.clone());
                let kept = |flaw: &Reason| matches!(flaw.failure, Failure::Store | Failure::Signature);
                let damage = flaw.filter(kept);
                let reason = damage.unwrap_or_else(|| Reason {
                    failure: Failure::Incomplete,
                    message: format!(
                        "its layers were removed from the store while it was pulled, {MAX_ROUNDS} times"
                    ),
                });
                self.fail(ImagePhase::Failed, reference, reason);
            }
        }
    }

    /// Verifies that every requested image is in the last snapshot, and returns the result of the run.
    async fn finish(
        &self,
        mut plan: Plan,
        snapshot: &Snapshot,
        space_check: Option<SpaceCheck>,
        steps: Steps<'_>,
    ) -> Result<Outcome, JobError> {
        if self.pulls(RoundScope::Everything) {
            if self.is_first {
                let message = "all available images are present".to_owned();
                steps.end(Step::Pull, true, "NothingToPull", message);
            }
            let synced = self.storage.make_durable(snapshot).await;
            synced.map_err(|error| steps.ended_by(Step::Verify, error))?;
        }
        let refusals = self.report_signatures(&plan, snapshot);
        let operators = &self.naming.operators;
        if self.mode != Mode::Plan {
            let failures = operators.failures().chain(self.states.gravest_failure(&plan));
            steps.verified(&plan.totals, failures.min());
        }
        let os_images = self.os_images(&plan, snapshot);
        let only_used = self.only_used_report(&mut plan, snapshot);
        let states = &self.states;
        let outcome = Outcome::of(
            self.mode,
            plan,
            &self.naming,
            space_check,
            states,
            os_images,
            only_used,
        );
        match &self.config.upgrade {
            Some(upgrade) => {
                self.assess_upgrade(upgrade, &outcome, snapshot, refusals, steps)
                    .await?;
            }
            None => {
                for message in refusals {
                    self.observer.observe(Event::Warned { message });
                }
            }
        }
        Ok(Outcome {
            cut_off: self.cut_off(),
            ..outcome
        })
    }

    /// What made the run leave out images.
    fn cut_off(&self) -> Option<StopReason> {
        let upgrade = self.config.end.upgrade.filter(|_| self.has_given_up)?;
        Some(StopReason::Upgrade(upgrade.time))
    }

    /// Reports the signatures of the images in the store. `verify` also logs them. Returns which namespaces refuse images.
    fn report_signatures(&self, plan: &Plan, snapshot: &Snapshot) -> Vec<String> {
        let images = plan.images.iter().map(|image| &image.reference);
        let stored = images.filter_map(|reference| Some((reference, &snapshot.image(reference)?.signatures)));
        let mut refusals = Vec::new();
        for (reference, signatures) in stored {
            if self.mode.reads_all() {
                tracing::info!("`{reference}`: {}", Printable(&signatures.report.to_string()));
            }
            self.observer.observe(Event::SignaturesChecked {
                name: reference.to_string(),
                signatures: signatures.report.clone(),
            });
            let policy = &self.checker.policy;
            let of_image = policy.refusing_namespaces(reference, signatures.manifest, &signatures.blobs);
            refusals.push((reference, of_image));
        }
        namespace_warnings(refusals.into_iter())
    }

    /// Their sizes are those in the manifest, or else those in the manifest that the store has.
    fn os_images(&self, plan: &Plan, snapshot: &Snapshot) -> Option<OsImages> {
        OsImages::of(self.naming.version.as_deref()?, plan, |image| {
            if let Some(image) = self.states.resolved(&image.reference) {
                return Some(image.layers.iter().map(|layer| layer.size).sum());
            }
            let stored = snapshot.inventory.image(&snapshot.image(&image.reference)?.id)?;
            let blobs = snapshot.inventory.blobs_of(stored).ok()?;
            Some(blobs.iter().filter_map(|blob| blob.size).sum())
        })
    }

    /// Records that an image failed, and reports the first reason.
    fn fail(&mut self, phase: ImagePhase, reference: &Reference, reason: Reason) {
        let message = reason.message.clone();
        if !self.states.fail(reference, reason) {
            return;
        }
        match self.is_left_out(reference) {
            true => tracing::debug!("the size of `{reference}` is unknown: {}", Printable(&message)),
            false => self.status.report(reference, phase, Some(message)),
        }
    }

    /// Reports that an error ended the run in this step. Rounds for namers are part of the steps that read them.
    fn ended_by(&self, scope: RoundScope, step: Step, error: JobError) -> JobError {
        let namer = self.naming.unread().next();
        let step = match (scope, namer) {
            (RoundScope::Namers, Some(namer)) => namer.step(),
            _ => step,
        };
        Steps(Some(self.observer.as_ref())).ended_by(step, error)
    }
}
