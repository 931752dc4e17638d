//! Brings images into the store, in rounds: look, ask, plan, hold the plan against the disk, pull, and look again.

mod ahead;
mod failing;
mod look;
mod name;
mod weigh;

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};

use super::advance::Advance;
use super::error::JobError;
use super::image_states::ImageStates;
use super::namers::Naming;
use super::os_images::OsImages;
use super::pull::Puller;
use super::pull::repair::LayerRepair;
use super::pull::tracker::ImageOutcome;
use super::resolve::ResolveQueue;
use super::size_probe::SizeProbe;
use super::snapshot::Snapshot;
use super::status::StatusReporter;
use super::steps::Steps;
use super::verify::Verifier;
use super::{JobConfig, Mode, Outcome, off_the_task, space};
use crate::cancel::Cancel;
use crate::exit_code::Failure;
use crate::fetch::Fetcher;
use crate::image_request::{ImageRequest, dedupe};
use crate::oci::LayerId;
use crate::plan::{ImageToPlan, LayerAction, Plan, Present};
use crate::preflight::Verdict;
use crate::registry::Registries;
use crate::report::{Count, Event, ImagePhase, Observer, Printable, Size, Span, Step};
use crate::spool::{Spool, SpoolError};
use crate::store::Store;

/// How often the same images are pulled again because the store changed under the work: somebody removed a layer that was
/// to be reused. More often than this is no accident.
const ROUNDS: usize = 5;

/// After so many rounds, how long the next one waits, where giving up would be worse.
const QUIET: Duration = Duration::from_secs(5 * 60);

/// How often it is looked whether another agent has left, and how often it is said that this is waited for.
const LOOK: Duration = Duration::from_secs(1);
const NOTICE: Duration = Duration::from_secs(10);

/// Opens the store, and the spool if all is to be pulled. Where the run does not give up, it waits for an agent that has the
/// spool.
async fn open(order: &JobConfig, mode: Mode, cancel: &Cancel) -> Result<(Store, Option<Spool>), JobError> {
    let mut told: Option<Instant> = None;
    loop {
        let store = Store::open(&order.graph_root, &order.storage_conf)?;
        if !mode.pulls_all() {
            return Ok((store, None));
        }
        match Spool::open(&order.spool) {
            Err(error @ SpoolError::Busy { .. }) if order.never_gives_up() => {
                if told.is_none_or(|told| told.elapsed() >= NOTICE) {
                    tracing::warn!("waiting: {}", Printable(&error.to_string()));
                    told = Some(Instant::now());
                }
                cancel.sleep(LOOK).await?;
            }
            spool => return Ok((store, Some(spool?))),
        }
    }
}

/// Whether everything is known that will be wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Only the images that name others.
    Naming,
    /// All of it.
    Everything,
}

/// Brings images into the store, and remembers what it learnt of each.
pub(super) struct Reconciler<'a> {
    order: &'a JobConfig,
    mode: Mode,
    observer: Arc<dyn Observer>,
    cancel: &'a Cancel,
    store: Arc<Store>,
    /// Locked from the start of a run, so that a second agent is told at once. Others only lock it to pull.
    spool: Option<Spool>,
    registries: Arc<Registries>,
    inquiry: ResolveQueue,
    naming: Naming,
    knowledge: ImageStates,
    lengths: SizeProbe,
    examiner: Verifier,
    teller: StatusReporter,
    /// Layers that were counted as brought by this run or as found by it.
    counted: HashSet<LayerId>,
    /// Made with the first pull, for that locks the spool.
    fetcher: Option<Arc<Fetcher>>,
    /// Ends all that is under way.
    halt: Cancel,
    /// What is fetched before its turn.
    advance: Option<Advance>,
}

impl<'a> Reconciler<'a> {
    pub(super) async fn new(
        order: &'a JobConfig,
        mode: Mode,
        naming: Naming,
        observer: &Arc<dyn Observer>,
        cancel: &'a Cancel,
        steps: Steps<'_>,
    ) -> Result<Self, JobError> {
        let opened = open(order, mode, cancel).await;
        let (store, spool) = steps.take(Step::Store, || {
            let (store, spool) = opened?;
            let (root, blobs) = (order.graph_root.display(), order.spool.display());
            for message in store.warnings().to_vec() {
                observer.observe(Event::Warned { message });
            }
            Ok(((store, spool), format!("graph root `{root}`, spool `{blobs}`")))
        })?;
        let registries = Registries::new(order.registries.clone(), Arc::clone(observer));
        let registries =
            registries.map_err(|error| steps.ended_by(Step::Resolve, JobError::Registries(error)))?;
        let registries = Arc::new(registries);
        Ok(Self {
            order,
            mode,
            observer: Arc::clone(observer),
            cancel,
            store: Arc::new(store),
            spool,
            inquiry: ResolveQueue::new(Arc::clone(&registries), order.platform.clone(), cancel.clone()),
            lengths: SizeProbe::new(Arc::clone(&registries), order.spool.clone()),
            registries,
            naming,
            knowledge: ImageStates::default(),
            examiner: Verifier::new(Arc::clone(observer), order.disk_priority),
            teller: StatusReporter::new(Arc::clone(observer)),
            counted: HashSet::new(),
            fetcher: None,
            halt: Cancel::default(),
            advance: None,
        })
    }

    /// Brings everything into the store, as far as the mode goes: first the images that name others, as long as there are such
    /// to pull, then all. The steps of the report are those of the whole.
    pub(super) async fn bring(mut self) -> Result<Outcome, JobError> {
        let observer = Arc::clone(&self.observer);
        let steps = Steps(Some(observer.as_ref()));
        self.begin_naming(steps);
        let looking = match self.mode {
            Mode::Run | Mode::Plan | Mode::Repair => Step::Resolve,
            Mode::Verify => Step::Verify,
        };
        if self.pulls(Scope::Everything) {
            // Also if nothing is to be pulled: they may be as large as what they were to bring.
            let store = Arc::clone(&self.store);
            off_the_task(move || {
                store.remove_leftovers();
                Ok(())
            })
            .await?;
        } else {
            self.tell_of_dead_stages().await?;
        }
        let mut verdict = None;
        let mut is_first = true;
        let mut is_resolving = false;
        let mut rounds = 0;
        loop {
            let requests = dedupe(self.naming.requests.iter().cloned());
            let looked = self.look(&requests, is_first, steps).await;
            let look = looked.map_err(|error| steps.ended_by(looking, error))?;
            is_resolving |= look.has_asked;
            if self.read_namers(&look.sight, steps).await? {
                rounds = 0;
                continue;
            }
            let scope = self.scope(&look.sight);
            let (requests, round_steps) = match scope {
                Scope::Everything => (requests, steps),
                Scope::Naming => (self.naming_requests(), Steps(None)),
            };
            let pulls = self.pulls(scope);
            // While answers are missing, each round is about other images.
            rounds += usize::from(self.inquiry.open() == 0);
            let waits = rounds > ROUNDS && self.order.never_gives_up() && self.mode == Mode::Run;
            if rounds > ROUNDS && !waits {
                self.fail_what_is_open(&requests, &look.sight);
            }
            let mut plan = self.plan(&requests, &look.sight);
            if self.weigh(&plan, &look.sight, scope).await? {
                plan = self.plan(&requests, &look.sight);
            }
            if scope == Scope::Everything && self.inquiry.open() == 0 {
                if std::mem::take(&mut is_resolving) {
                    self.end_resolve(&plan, steps);
                }
                self.tidy(&plan, &look.sight)
                    .await
                    .map_err(|error| steps.ended_by(looking, error))?;
            }
            let is_idle = plan.totals.images_to_pull == 0;
            if waits && !is_idle {
                self.wait_for_quiet().await?;
                // What this round saw of the store is old by now.
                rounds = 0;
                continue;
            }
            if self.mode != Mode::Verify && (is_first || !is_idle) {
                let must_fit = pulls && !is_idle;
                let held = self.hold(&plan, &look.sight, scope, must_fit, round_steps).await;
                verdict = Some(held.map_err(|error| self.ended_by(scope, Step::Preflight, error))?);
            }
            // Images that name others and turn out not to be had are not all that is wanted.
            let is_last = scope == Scope::Everything && (!pulls || is_idle && self.inquiry.open() == 0);
            if is_last {
                if pulls && is_first {
                    let message = "every image that can be had is here".to_owned();
                    steps.end(Step::Pull, true, "NothingToPull", message);
                }
                if pulls {
                    // "Done" is to outlast a power loss, also for what others brought.
                    let (store, layers) = (Arc::clone(&self.store), look.sight.layers());
                    let synced = off_the_task(move || Ok(store.make_durable(&layers)?)).await;
                    synced.map_err(|error| steps.ended_by(Step::Verify, error))?;
                }
                if self.mode != Mode::Plan {
                    let failures = self.naming.operators.failures().chain(self.gravest(&plan));
                    steps.verified(&plan.totals, failures.min());
                }
                let os_images = self.os_images(&plan, &look.sight);
                let (operators, knowledge) = (&self.naming.operators, &self.knowledge);
                return Ok(Outcome::of(
                    self.mode, plan, operators, verdict, knowledge, os_images,
                ));
            }
            if is_idle {
                continue;
            }
            is_first &= scope == Scope::Naming;
            let pulled = self.pull(&plan, &look.sight, scope, round_steps).await;
            pulled.map_err(|error| self.ended_by(scope, Step::Pull, error))?;
        }
    }

    /// What runs have left that were cut off, where nothing is to be removed.
    async fn tell_of_dead_stages(&self) -> Result<(), JobError> {
        let store = Arc::clone(&self.store);
        for (stage, bytes) in off_the_task(move || Ok(store.dead_stages())).await? {
            let message = format!(
                "`{}` takes {} and was left by a run that was stopped or killed\nhint: the next `run` removes it",
                stage.display(),
                Size(bytes)
            );
            self.observer.observe(Event::Warned { message });
        }
        Ok(())
    }

    /// Leaves the store to whoever removes from it what was just brought.
    async fn wait_for_quiet(&self) -> Result<(), JobError> {
        tracing::warn!(
            "somebody removes layers from the store while they are pulled; going on in {}",
            Span(QUIET)
        );
        Ok(self.cancel.sleep(QUIET).await?)
    }

    /// Whether what is missing is pulled.
    fn pulls(&self, scope: Scope) -> bool {
        match self.mode {
            Mode::Run | Mode::Repair => true,
            Mode::Plan => scope == Scope::Naming,
            Mode::Verify => false,
        }
    }

    fn plan(&mut self, requests: &[ImageRequest], sight: &Snapshot) -> Plan {
        let wanted = requests.iter().map(|request| ImageToPlan {
            reference: request.reference.clone(),
            requesters: request.requesters.clone(),
            action: self.knowledge.need(&request.reference, sight, self.mode),
        });
        let here = self.here(self.knowledge.layers(), sight);
        let plan = Plan::build(wanted.collect(), self.naming.excluded.clone(), &here);
        self.teller
            .tell(&plan, |reference| sight.additional_store_of(reference));
        self.fail_contradictions(&plan);
        plan
    }

    /// Their length is what a registry said, or else what the layers in the store were when they came.
    fn os_images(&self, plan: &Plan, sight: &Snapshot) -> Option<OsImages> {
        OsImages::of(self.naming.version.as_deref()?, plan, |image| {
            let reference = &image.reference;
            if let Some(image) = self.knowledge.resolved(reference) {
                return Some(image.layers.iter().map(|layer| layer.size).sum());
            }
            let layers = sight.image(reference)?.layers.iter();
            let sizes = layers.filter_map(|id| sight.inventory.mountable(id)?.blob_size);
            Some(sizes.sum())
        })
    }

    /// What is here of these layers, and of everybody's blobs.
    fn here(&self, layers: impl Iterator<Item = LayerId>, sight: &Snapshot) -> Present {
        let damaged = self.examiner.damaged();
        Present {
            layers: layers
                .filter(|id| sight.inventory.layer(id).is_some() && !damaged.contains(id))
                .collect(),
            blobs: sight.spooled_bytes(),
            tars: self.lengths.known().clone(),
        }
    }

    fn end_resolve(&self, plan: &Plan, steps: Steps<'_>) {
        let totals = &plan.totals;
        let (present, failed) = (totals.images_present, totals.images_failed);
        let reason = self.gravest(plan).map_or("Resolved", Failure::reason);
        let message = format!(
            "{} wanted, {present} present, {failed} cannot be had",
            Count(totals.images_wanted as usize, "image")
        );
        steps.end(Step::Resolve, failed == 0, reason, message);
    }

    /// Holds the plan against the disk. If it has to fit and does not, blobs that it does not want make room for it.
    async fn hold(
        &self,
        plan: &Plan,
        sight: &Snapshot,
        scope: Scope,
        must_fit: bool,
        steps: Steps<'_>,
    ) -> Result<Verdict, JobError> {
        steps.start(Step::Preflight);
        let demand = space::demand(self.order, self.mode, scope, plan, sight);
        let mut verdict = space::hold(self.order, demand)?;
        if must_fit && !verdict.fits {
            // What killed runs have left was removed a moment ago.
            verdict = space::hold_again(self.order, demand, self.cancel).await?;
        }
        // What images without an answer want is not known.
        if must_fit
            && self.inquiry.open() == 0
            && let Some(spool) = self.spool.clone()
        {
            let blobs = space::dispensable(&verdict, plan, &sight.spooled);
            if !blobs.is_empty() {
                off_the_task(move || space::remove(&blobs, &spool, "the space is short")).await?;
                verdict = space::hold_again(self.order, demand, self.cancel).await?;
            }
        }
        if must_fit {
            verdict = verdict.into_result()?;
        }
        if verdict.fits
            && scope == Scope::Everything
            && let Some(message) = space::less_than_required(self.order, demand)?
        {
            self.observer.observe(Event::Warned { message });
        }
        let reason = match verdict.fits {
            true => "SpaceSuffices",
            false => Failure::Space.reason(),
        };
        steps.end(Step::Preflight, verdict.fits, reason, verdict.to_string());
        Ok(verdict)
    }

    /// Removes blobs that nobody needs any more. In each round, for others may have brought meanwhile what a blob lies here
    /// for.
    async fn tidy(&self, plan: &Plan, sight: &Snapshot) -> Result<(), JobError> {
        let (Mode::Run, Some(spool)) = (self.mode, self.spool.clone()) else {
            return Ok(());
        };
        let spent = space::spent(plan, sight, SystemTime::now());
        if spent.is_empty() {
            return Ok(());
        }
        off_the_task(move || {
            if let Err(error) = space::remove(&spent, &spool, "they are in the store, or a month old") {
                tracing::warn!("blobs that nobody needs stay in the spool: {error}");
            }
            Ok(())
        })
        .await
    }

    /// Pulls what the plan says.
    async fn pull(
        &mut self,
        plan: &Plan,
        sight: &Snapshot,
        scope: Scope,
        steps: Steps<'_>,
    ) -> Result<(), JobError> {
        steps.start(Step::Pull);
        let layers = plan.images.iter().flat_map(|image| &image.layers);
        let reused = layers.filter(|planned| {
            planned.action == LayerAction::Reuse && self.counted.insert(planned.layer.id())
        });
        let layers = reused.count() as u64;
        self.observer.observe(Event::LayersReused { layers });
        self.teller.list_all(plan);
        let spool = match self.spool.clone() {
            Some(spool) => spool,
            None => Spool::open(&self.order.spool)?,
        };
        let store = Arc::clone(&self.store);
        // This removes what killed runs have left.
        let stage = off_the_task(move || {
            store.create_if_missing()?;
            Ok(store.stage()?)
        });
        let stage = Arc::new(stage.await?);
        let room = Arc::new(space::to_spare(self.order, plan)?);
        let replaces = self.mode == Mode::Repair;
        let mender = (replaces || sight.inventory.has_additional()).then(|| LayerRepair {
            store: Arc::clone(&self.store),
            stage: Arc::clone(&stage),
            inventory: Arc::clone(&sight.inventory),
            host: self.order.host_state.clone(),
            room: Arc::clone(&room),
            replaces,
        });
        let fetcher = self.fetcher.get_or_insert_with(|| {
            Arc::new(Fetcher::new(
                Arc::clone(&self.registries),
                spool.clone(),
                Arc::clone(&self.observer),
                self.order.max_downloads,
            ))
        });
        let fetcher = Arc::clone(fetcher);
        let (onlooker, laid) = mpsc::unbounded_channel();
        let first = self.releases(plan);
        let (alone, mut is_alone) = watch::channel(!first.is_empty());
        let looks_ahead = self.may_look_ahead(scope, sight);
        let puller = Puller {
            store: Arc::clone(&self.store),
            stage,
            mender,
            room,
            fetcher: Arc::clone(&fetcher),
            spool,
            observer: Arc::clone(&self.observer),
            deadline: self.order.end(),
            max_downloads: self.order.max_downloads.get(),
            max_unpacks: self.order.max_unpacks.get(),
            disk_priority: self.order.disk_priority,
            halt: self.halt.clone(),
            onlooker: looks_ahead.then_some(onlooker),
            first,
            alone,
        };
        // From here on blobs leave the spool for the store: what begins later would be fetched again.
        if let Some(advance) = &self.advance {
            advance.begin_no_more();
        }
        let cancel = self.cancel;
        let mut pull = pin!(puller.pull(plan, cancel));
        let pulled = match looks_ahead {
            false => pull.await?,
            true => tokio::select! {
                pulled = &mut pull => pulled?,
                () = self.look_ahead(plan, laid, &mut is_alone, fetcher) => pull.await?,
            },
        };
        self.examiner
            .forget(&plan.layers.iter().map(|task| task.layer.id()).collect());
        self.examiner.note_rewritten(&pulled.layers);
        self.counted.extend(pulled.layers);
        let mut came = 0;
        for (image, fate) in plan.images.iter().zip(pulled.fates) {
            match fate {
                ImageOutcome::Open => {}
                ImageOutcome::Pulled => {
                    came += 1;
                    self.teller.has_been_told(&image.reference, ImagePhase::Pulled);
                }
                ImageOutcome::Failed(reason) => {
                    self.teller.has_been_told(&image.reference, ImagePhase::Failed);
                    self.knowledge.fail(&image.reference, reason);
                }
            }
        }
        let tried = plan.totals.images_to_pull;
        if came < tried {
            self.cancel.check()?;
        }
        let reason = match came == tried {
            true => "Pulled",
            false => self.gravest(plan).map_or("StoreChanged", Failure::reason),
        };
        let message = format!("{came} of {tried} images were pulled");
        steps.end(Step::Pull, came == tried, reason, message);
        Ok(())
    }
}
