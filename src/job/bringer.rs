//! Brings images into the store, in rounds: look, ask, plan, hold the plan against the disk, pull, and look again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::board::Fate;
use super::error::JobError;
use super::examiner::Examiner;
use super::failure::{Reason, Trouble};
use super::inquiry::{Answer, Inquiry};
use super::knowledge::Knowledge;
use super::mender::Mender;
use super::puller::Puller;
use super::sight::{Seen, Sight};
use super::steps::Steps;
use super::teller::Teller;
use super::{Mode, Order, Outcome, off_the_task, release, room};
use crate::cancel::Cancel;
use crate::exit::Failure;
use crate::fetch::Fetcher;
use crate::oci::{LayerId, Reference};
use crate::plan::{Action, ExcludedImage, Here, Need, Plan, Wanted};
use crate::preflight::Verdict;
use crate::registry::Registries;
use crate::report::{Event, ImageState, Observer, Step};
use crate::sources::release::{Payload, Selection};
use crate::sources::{ImageRequest, Source};
use crate::spec::Excludes;
use crate::spool::Spool;
use crate::store::Store;

/// How long no answer may come before the images whose registries did answer are pulled. Long enough for a slow link to
/// bring a manifest, short beside a deadline.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the same images are pulled again because the store changed under the work: somebody removed a layer that was
/// to be reused. More often than this is no accident.
const ROUNDS: usize = 5;

/// Whether everything is known that will be wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Only the release image, whose payload names the others.
    Release,
    /// All of it.
    Everything,
}

/// Brings images into the store, and remembers what it learnt of each.
pub(super) struct Bringer<'a> {
    order: &'a Order,
    mode: Mode,
    observer: Arc<dyn Observer>,
    cancel: &'a Cancel,
    store: Arc<Store>,
    /// Locked from the start of a run, so that a second agent is told at once. Others only lock it to pull.
    spool: Option<Spool>,
    registries: Arc<Registries>,
    inquiry: Inquiry,
    knowledge: Knowledge,
    examiner: Examiner,
    teller: Teller,
    /// Layers that were counted as brought by this run or as found by it.
    counted: HashSet<LayerId>,
}

/// What came of it.
pub(super) struct Brought {
    /// What was still to be done when the store was last looked at.
    pub(super) plan: Plan,
    /// Whether a plan fits, as it was last held against the disk.
    pub(super) verdict: Option<Verdict>,
    /// The store as it was then.
    pub(super) sight: Sight,
}

impl<'a> Bringer<'a> {
    pub(super) fn new(
        order: &'a Order,
        mode: Mode,
        observer: &Arc<dyn Observer>,
        cancel: &'a Cancel,
        steps: Steps<'_>,
    ) -> Result<Self, JobError> {
        let (store, spool) = steps.take(Step::Store, || {
            let store = Store::open(&order.graph_root, &order.storage_conf)?;
            let spool = match mode {
                Mode::Run | Mode::Repair => Some(Spool::open(&order.spool)?),
                Mode::Plan | Mode::Verify => None,
            };
            let (root, blobs) = (order.graph_root.display(), order.spool.display());
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
            inquiry: Inquiry::new(Arc::clone(&registries), order.platform.clone(), cancel.clone()),
            registries,
            knowledge: Knowledge::default(),
            examiner: Examiner::new(Arc::clone(observer)),
            teller: Teller::new(Arc::clone(observer)),
            counted: HashSet::new(),
        })
    }

    /// Brings the release image into the store and reads what it names. Its failure is a row, and then there is nothing.
    pub(super) async fn release(
        &mut self,
        reference: &Reference,
        excludes: &Excludes,
    ) -> Result<Option<(Payload, Selection)>, JobError> {
        let request = ImageRequest::new(reference.clone(), Source::ReleaseImage);
        let brought = self.bring(&[request], &[], Scope::Release).await?;
        if self.knowledge.failure(reference).is_some() {
            return Ok(None);
        }
        self.cancel.check()?;
        let (platform, inventory) = (&self.order.platform, &brought.sight.inventory);
        match release::payload(reference, platform, excludes, &self.store, inventory) {
            Ok(read) => Ok(Some(read)),
            Err(reason) => {
                self.fail(reference, reason);
                Ok(None)
            }
        }
    }

    /// Why an image failed, if it did.
    pub(super) fn failure_of(&self, reference: &Reference) -> Option<&Reason> {
        self.knowledge.failure(reference)
    }

    /// Brings `requests` into the store, as far as the mode goes. The steps of the report are those of the whole; the
    /// release image's way is one step by itself.
    pub(super) async fn bring(
        &mut self,
        requests: &[ImageRequest],
        excluded: &[ExcludedImage],
        scope: Scope,
    ) -> Result<Brought, JobError> {
        let observer = Arc::clone(&self.observer);
        let steps = Steps((scope == Scope::Everything).then_some(observer.as_ref()));
        let pulls = match self.mode {
            Mode::Run | Mode::Repair => true,
            Mode::Plan => scope == Scope::Release,
            Mode::Verify => false,
        };
        for request in requests {
            self.teller
                .list(&request.reference.to_string(), request.sources.first(), 0);
        }
        let looking = match self.mode {
            Mode::Run | Mode::Plan | Mode::Repair => Step::Resolve,
            Mode::Verify => Step::Verify,
        };
        if pulls {
            // Also if nothing is to be pulled: they may be as large as what they were to bring.
            let store = Arc::clone(&self.store);
            off_the_task(move || {
                store.remove_dead_stages();
                Ok(())
            })
            .await?;
        }
        let mut verdict = None;
        let mut is_first = true;
        let mut rounds = 0;
        loop {
            let looked = self.look(requests, is_first, pulls, steps).await;
            let look = looked.map_err(|error| steps.ended_by(looking, error))?;
            // While answers are missing, each round is about other images.
            rounds += usize::from(self.inquiry.open() == 0);
            if rounds > ROUNDS {
                self.fail_what_is_open(requests, &look.sight);
            }
            let plan = self.plan(requests, excluded, &look.sight);
            if look.has_asked && self.inquiry.open() == 0 {
                self.end_resolve(&plan, steps);
            }
            if scope == Scope::Everything && self.inquiry.open() == 0 {
                self.tidy(&plan, &look.sight)
                    .await
                    .map_err(|error| steps.ended_by(looking, error))?;
            }
            let is_idle = plan.totals.images_to_pull == 0;
            if self.mode != Mode::Verify && (is_first || !is_idle) {
                let must_fit = pulls && !is_idle;
                let held = self.hold(&plan, &look.sight, scope, must_fit, steps).await;
                verdict = Some(held.map_err(|error| steps.ended_by(Step::Preflight, error))?);
            }
            if !pulls || is_idle && self.inquiry.open() == 0 {
                if pulls && is_first {
                    // A run that was killed after its last commit leaves a stage too, and nobody else makes one now.
                    let store = Arc::clone(&self.store);
                    off_the_task(move || {
                        store.remove_dead_stages();
                        Ok(())
                    })
                    .await?;
                    let message = "every image that can be had is here".to_owned();
                    steps.end(Step::Pull, true, "NothingToPull", message);
                }
                if pulls && scope == Scope::Everything {
                    // "Done" is to outlast a power loss, also for what others brought.
                    let (store, layers) = (Arc::clone(&self.store), look.sight.layers());
                    let synced = off_the_task(move || Ok(store.make_durable(&layers)?)).await;
                    synced.map_err(|error| steps.ended_by(Step::Verify, error))?;
                }
                if self.mode != Mode::Plan {
                    steps.verified(&plan.totals, self.gravest(&plan));
                }
                let sight = look.sight;
                return Ok(Brought { plan, verdict, sight });
            }
            is_first = false;
            if is_idle {
                continue;
            }
            let pulled = self.pull(&plan, &look.sight, steps).await;
            pulled.map_err(|error| steps.ended_by(Step::Pull, error))?;
        }
    }

    /// Sums up what became of everything.
    pub(super) fn outcome(self, brought: Brought) -> Outcome {
        Outcome::of(self.mode, brought.plan, brought.verdict, &self.knowledge)
    }

    /// Looks at the node, and asks registries about what is not there.
    async fn look(
        &mut self,
        requests: &[ImageRequest],
        is_first: bool,
        pulls: bool,
        steps: Steps<'_>,
    ) -> Result<Look, JobError> {
        let references: Vec<Reference> = requests.iter().map(|it| it.reference.clone()).collect();
        let sight = self.sight(&references).await?;
        if self.mode == Mode::Repair {
            self.fail_what_is_in_use(&references, &sight).await?;
            self.describe(&references, &sight).await?;
        }
        if self.mode == Mode::Verify {
            self.fail_what_is_missing(&references, &sight);
            let has_asked = false;
            return Ok(Look { sight, has_asked });
        }
        let open = references
            .iter()
            .filter(|it| self.knowledge.is_open(it, &sight, self.mode));
        let open: Vec<Reference> = open.cloned().collect();
        let has_asked = is_first || !open.is_empty();
        if has_asked {
            steps.start(Step::Resolve);
        }
        if open.is_empty() {
            return Ok(Look { sight, has_asked });
        }
        self.inquiry.ask(open, &sight.inventory);
        self.gather(&references, &sight, pulls).await;
        self.cancel.check()?;
        // The answers may have taken hours.
        let sight = self.sight(&references).await?;
        Ok(Look { sight, has_asked })
    }

    /// Looks at the node; where all is to be read, reads it, and mends what needs no layer to be unpacked.
    async fn sight(&mut self, references: &[Reference]) -> Result<Sight, JobError> {
        let mut sight = self.glance(references).await?;
        if !self.mode.reads_all() {
            return Ok(sight);
        }
        let (at_once, host) = (self.order.max_unpacks, &self.order.host_state);
        self.examiner.examine(&mut sight, at_once, self.cancel).await?;
        if self.mode == Mode::Repair
            && self
                .examiner
                .mend_frames(&sight, &self.store, host, self.cancel)
                .await?
        {
            sight = self.glance(references).await?;
            self.examiner.examine(&mut sight, at_once, self.cancel).await?;
        }
        Ok(sight)
    }

    async fn glance(&self, references: &[Reference]) -> Result<Sight, JobError> {
        let (store, spool, mode) = (Arc::clone(&self.store), self.spool.clone(), self.mode);
        let (references, platform) = (references.to_vec(), self.order.platform.clone());
        let path = self.order.spool.clone();
        off_the_task(move || {
            let spooled = match (spool, mode) {
                (Some(spool), _) => spool.list()?,
                (None, Mode::Run | Mode::Plan | Mode::Repair) => Spool::glance(&path)?,
                (None, Mode::Verify) => Vec::new(),
            };
            Sight::of(&store, spooled, &references, &platform)
        })
        .await
    }

    /// Takes the answers, until there are none to come or those that are to come can wait.
    async fn gather(&mut self, references: &[Reference], sight: &Sight, pulls: bool) {
        loop {
            let Answer { reference, image } = match tokio::time::timeout(PATIENCE, self.inquiry.next()).await
            {
                Ok(Some(answer)) => answer,
                Ok(None) => return,
                Err(_elapsed) => {
                    let to_pull = |it: &&Reference| self.knowledge.is_to_pull(it, sight, self.mode);
                    let ready = references.iter().filter(to_pull).count();
                    if pulls && ready > 0 {
                        tracing::warn!(
                            "no answer for {} images yet, going on with {ready} others meanwhile",
                            self.inquiry.open()
                        );
                        return;
                    }
                    continue;
                }
            };
            match image.map_err(|error| Trouble::resolving(&error)) {
                Ok(image) => self.knowledge.resolve(&reference, image),
                Err(Trouble::Image(reason)) => self.fail(&reference, reason),
                Err(Trouble::Stopped | Trouble::Host(_)) => {}
            }
        }
    }

    fn plan(&mut self, requests: &[ImageRequest], excluded: &[ExcludedImage], sight: &Sight) -> Plan {
        let wanted = requests.iter().map(|request| Wanted {
            name: request.reference.to_string(),
            sources: request.sources.clone(),
            state: self.knowledge.need(&request.reference, sight, self.mode),
        });
        let (layers, damaged) = (self.knowledge.layers(), self.examiner.damaged());
        let here = Here {
            layers: layers
                .filter(|id| sight.inventory.layer(id).is_some() && !damaged.contains(id))
                .collect(),
            blobs: sight.spooled_bytes(),
        };
        let plan = Plan::build(wanted.collect(), excluded.to_vec(), &here);
        self.teller.tell(&plan);
        self.fail_contradictions(&plan);
        plan
    }

    /// What is resolved and yet failed contradicts itself or another manifest.
    fn fail_contradictions(&mut self, plan: &Plan) {
        for image in &plan.images {
            if let Need::Failed(message) = &image.need
                && let Ok(reference) = image.name.parse()
                && self.knowledge.is_resolved(&reference)
            {
                let (failure, message) = (Failure::Payload, message.clone());
                self.fail(&reference, Reason { failure, message });
            }
        }
    }

    fn end_resolve(&self, plan: &Plan, steps: Steps<'_>) {
        let totals = &plan.totals;
        let (present, failed) = (totals.images_present, totals.images_failed);
        let reason = self.gravest(plan).map_or("Resolved", Failure::reason);
        let message = format!(
            "{} images are wanted, {present} are present, {failed} cannot be had",
            totals.images_wanted
        );
        steps.end(Step::Resolve, failed == 0, reason, message);
    }

    /// Holds the plan against the disk. If it has to fit and does not, what killed runs have left makes room for it.
    async fn hold(
        &self,
        plan: &Plan,
        sight: &Sight,
        scope: Scope,
        must_fit: bool,
        steps: Steps<'_>,
    ) -> Result<Verdict, JobError> {
        steps.start(Step::Preflight);
        let demand = room::demand(self.order, self.mode, scope, plan, sight);
        let mut verdict = room::hold(self.order, demand)?;
        if must_fit && !verdict.fits {
            let store = Arc::clone(&self.store);
            off_the_task(move || {
                store.remove_dead_stages();
                Ok(())
            })
            .await?;
            verdict = room::hold_again(self.order, demand, self.cancel).await?;
        }
        // What images without an answer want is not known.
        if must_fit
            && self.inquiry.open() == 0
            && let Some(spool) = self.spool.clone()
        {
            let blobs = room::dispensable(&verdict, plan, &sight.spooled);
            if !blobs.is_empty() {
                off_the_task(move || room::remove(&blobs, &spool, "the space is short")).await?;
                verdict = room::hold_again(self.order, demand, self.cancel).await?;
            }
        }
        if must_fit {
            verdict = verdict.into_result()?;
        }
        let reason = match verdict.fits {
            true => "SpaceSuffices",
            false => Failure::Space.reason(),
        };
        steps.end(Step::Preflight, verdict.fits, reason, verdict.to_string());
        Ok(verdict)
    }

    /// Removes what earlier runs have left and nobody needs. In each round, for others may have brought meanwhile what a
    /// blob lies here for.
    async fn tidy(&self, plan: &Plan, sight: &Sight) -> Result<(), JobError> {
        let (Mode::Run, Some(spool)) = (self.mode, self.spool.clone()) else {
            return Ok(());
        };
        let spent = room::spent(plan, sight, SystemTime::now());
        let store = Arc::clone(&self.store);
        off_the_task(move || {
            store.remove_leftovers();
            if !spent.is_empty()
                && let Err(error) = room::remove(&spent, &spool, "they are in the store, or a month old")
            {
                tracing::warn!("blobs that nobody needs stay in the spool: {error}");
            }
            Ok(())
        })
        .await
    }

    /// Pulls what the plan says.
    async fn pull(&mut self, plan: &Plan, sight: &Sight, steps: Steps<'_>) -> Result<(), JobError> {
        steps.start(Step::Pull);
        let layers = plan.images.iter().flat_map(|image| &image.layers);
        let reused = layers.filter(|layer| layer.action == Action::Reuse && self.counted.insert(layer.id));
        let layers = reused.count() as u64;
        self.observer.observe(Event::LayersReused { layers });
        for image in &plan.images {
            self.teller.list(&image.name, image.sources.first(), image.bytes);
        }
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
        let mender = (self.mode == Mode::Repair).then(|| Mender {
            store: Arc::clone(&self.store),
            stage: Arc::clone(&stage),
            inventory: Arc::clone(&sight.inventory),
            host: self.order.host_state.clone(),
        });
        let puller = Puller {
            store: Arc::clone(&self.store),
            stage,
            mender,
            fetcher: Fetcher::new(
                Arc::clone(&self.registries),
                spool.clone(),
                Arc::clone(&self.observer),
                self.order.max_downloads,
            ),
            spool,
            observer: Arc::clone(&self.observer),
            deadline: self.order.deadline,
            max_downloads: self.order.max_downloads.get(),
            max_unpacks: self.order.max_unpacks.get(),
        };
        let pulled = puller.pull(plan, self.cancel).await?;
        self.examiner
            .forget(&plan.layers.iter().map(|layer| layer.id).collect());
        self.counted.extend(pulled.layers);
        let mut came = 0;
        for (image, fate) in plan.images.iter().zip(pulled.fates) {
            match fate {
                Fate::Open => {}
                Fate::Pulled => {
                    came += 1;
                    self.teller.has_been_told(&image.name, ImageState::Pulled);
                }
                Fate::Failed(reason) => {
                    self.teller.has_been_told(&image.name, ImageState::Failed);
                    if let Ok(reference) = image.name.parse() {
                        self.knowledge.fail(&reference, reason);
                    }
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

    /// The failure of the plan's images that has to be mended first.
    fn gravest(&self, plan: &Plan) -> Option<Failure> {
        let references = plan.images.iter().filter_map(|image| image.name.parse().ok());
        let failures =
            references.filter_map(|reference| self.knowledge.failure(&reference).map(|it| it.failure));
        failures.min()
    }

    fn fail_what_is_missing(&mut self, references: &[Reference], sight: &Sight) {
        for reference in references {
            if self.knowledge.is_present(reference, sight, self.mode) {
                continue;
            }
            let flaw = sight.image(reference).and_then(|seen| seen.flaw.clone());
            let reason = flaw.unwrap_or_else(|| Reason {
                failure: Failure::Incomplete,
                message: "it is not in the store".to_owned(),
            });
            self.fail(reference, reason);
        }
    }

    /// What somebody uses is not mended, and nothing is fetched for it.
    async fn fail_what_is_in_use(&mut self, references: &[Reference], sight: &Sight) -> Result<(), JobError> {
        let is_damaged = |it: &Reference| {
            sight
                .image(it)
                .is_some_and(|seen| seen.damaged_layers().next().is_some())
        };
        let damaged: Vec<&Reference> = references.iter().filter(|it| is_damaged(it)).collect();
        if damaged.is_empty() {
            return Ok(());
        }
        let (store, host) = (Arc::clone(&self.store), self.order.host_state.clone());
        let users = off_the_task(move || Ok(store.users(&host)?)).await?;
        for reference in damaged {
            let layers = sight.image(reference).into_iter().flat_map(Seen::damaged_layers);
            let refusal = layers.into_iter().find_map(|layer| users.refuse(&layer).err());
            if let Some(error) = refusal {
                let (failure, message) = (Failure::Store, error.to_string());
                self.fail(reference, Reason { failure, message });
            }
        }
        Ok(())
    }

    /// Takes from the store itself what it can say of damaged images, so that no registry has to be asked, and the image
    /// that is mended is the one that is here.
    async fn describe(&mut self, references: &[Reference], sight: &Sight) -> Result<(), JobError> {
        for reference in references {
            let Some(seen) = sight.image(reference) else {
                continue;
            };
            if seen.flaw.is_none() || self.knowledge.is_resolved(reference) {
                continue;
            }
            let (inventory, id) = (Arc::clone(&sight.inventory), seen.id);
            let described = off_the_task(move || match inventory.image(&id) {
                Some(image) => Ok(inventory.describe(image)?),
                None => Ok(None),
            });
            if let Some(image) = described.await? {
                self.knowledge.resolve(reference, image);
            }
        }
        Ok(())
    }

    fn fail_what_is_open(&mut self, requests: &[ImageRequest], sight: &Sight) {
        for request in requests {
            if self.knowledge.is_to_pull(&request.reference, sight, self.mode) {
                let flaw = sight.image(&request.reference).and_then(|seen| seen.flaw.clone());
                let reason = flaw
                    .filter(|flaw| flaw.failure == Failure::Store)
                    .unwrap_or_else(|| Reason {
                        failure: Failure::Incomplete,
                        message: format!(
                            "its layers were removed from the store while it was pulled, {ROUNDS} times"
                        ),
                    });
                self.fail(&request.reference, reason);
            }
        }
    }

    fn fail(&mut self, reference: &Reference, reason: Reason) {
        let message = reason.message.clone();
        if self.knowledge.fail(reference, reason) {
            self.teller
                .say(&reference.to_string(), ImageState::Failed, Some(message));
        }
    }
}

/// What came of looking.
struct Look {
    sight: Sight,
    has_asked: bool,
}
