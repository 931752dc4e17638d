//! Brings images into the store, in rounds: look, ask, plan, hold the plan against the disk, pull, and look again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::board::Fate;
use super::error::JobError;
use super::failure::{Reason, Trouble};
use super::inquiry::{Answer, Inquiry};
use super::knowledge::Knowledge;
use super::puller::Puller;
use super::sight::Sight;
use super::steps::Steps;
use super::{Mode, Order, Outcome, release, room};
use crate::cancel::Cancel;
use crate::exit::Failure;
use crate::fetch::Fetcher;
use crate::oci::{LayerId, Reference};
use crate::plan::{Action, ExcludedImage, Here, Need, Plan, Wanted};
use crate::preflight::{Demand, Verdict};
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
    /// What was said of each image last.
    told: HashMap<String, ImageState>,
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
                Mode::Run => Some(Spool::open(&order.spool)?),
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
            told: HashMap::new(),
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
            Mode::Run => true,
            Mode::Plan => scope == Scope::Release,
            Mode::Verify => false,
        };
        for request in requests {
            self.list(&request.reference.to_string(), request.sources.first(), 0);
        }
        let looking = match self.mode {
            Mode::Run | Mode::Plan => Step::Resolve,
            Mode::Verify => Step::Verify,
        };
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
            let is_done = plan.totals.images_to_pull == 0;
            if self.mode != Mode::Verify && (is_first || !is_done) {
                let must_fit = pulls && !is_done;
                let held = self.hold(&plan, &look.sight, scope, must_fit, steps).await;
                verdict = Some(held.map_err(|error| steps.ended_by(Step::Preflight, error))?);
            }
            if !pulls || is_done {
                if pulls && is_first {
                    let message = "every image that can be had is here".to_owned();
                    steps.end(Step::Pull, true, "NothingToPull", message);
                }
                if self.mode != Mode::Plan {
                    steps.verified(&plan.totals);
                }
                let sight = look.sight;
                return Ok(Brought { plan, verdict, sight });
            }
            let pulled = self.pull(&plan, steps).await;
            pulled.map_err(|error| steps.ended_by(Step::Pull, error))?;
            is_first = false;
        }
    }

    /// Sums up what became of everything.
    pub(super) fn outcome(self, brought: Brought) -> Outcome {
        let mut failures = Vec::new();
        for image in &brought.plan.images {
            let reason = image
                .name
                .parse()
                .ok()
                .and_then(|reference| self.knowledge.failure(&reference));
            match (reason, &image.need) {
                (Some(reason), _) => failures.push(reason.failure),
                (None, Need::Present) => {}
                (None, Need::Resolved(_)) if self.mode == Mode::Plan => {}
                (None, Need::Resolved(_) | Need::Failed(_)) => failures.push(Failure::Incomplete),
            }
        }
        if brought.verdict.as_ref().is_some_and(|verdict| !verdict.fits) {
            failures.push(Failure::Space);
        }
        Outcome {
            plan: brought.plan,
            verdict: brought.verdict,
            failures,
        }
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

    async fn sight(&self, references: &[Reference]) -> Result<Sight, JobError> {
        let (store, spool, mode) = (Arc::clone(&self.store), self.spool.clone(), self.mode);
        let (references, platform) = (references.to_vec(), self.order.platform.clone());
        let path = self.order.spool.clone();
        off_the_task(move || {
            let spooled = match (spool, mode) {
                (Some(spool), _) => spool.list()?,
                (None, Mode::Run | Mode::Plan) => Spool::glance(&path)?,
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
        let layers = self.knowledge.layers();
        let here = Here {
            layers: layers.filter(|id| sight.inventory.layer(id).is_some()).collect(),
            blobs: sight.spooled_bytes(),
        };
        let plan = Plan::build(wanted.collect(), excluded.to_vec(), &here);
        self.observer.observe(Event::Planned {
            images: plan.totals.images_wanted,
            present: plan.totals.images_present,
            bytes: plan.totals.bytes_to_fetch,
        });
        self.tell(&plan);
        plan
    }

    /// Says what the plan shows of each image, as far as it is news.
    fn tell(&mut self, plan: &Plan) {
        for image in &plan.images {
            let told = self.told.get(&image.name).copied();
            let state = match (&image.need, told) {
                (_, Some(ImageState::Failed)) => continue,
                (Need::Present, Some(ImageState::Present | ImageState::Pulled)) => continue,
                (Need::Present, _) => ImageState::Present,
                (Need::Resolved(_), Some(ImageState::Present | ImageState::Pulled)) => {
                    tracing::warn!("`{}` was removed from the store meanwhile", image.name);
                    ImageState::Pending
                }
                (Need::Resolved(_), _) => continue,
                (Need::Failed(message), _) => {
                    // Resolved, and yet failed: its manifest contradicts another one.
                    if let Ok(reference) = image.name.parse()
                        && self.knowledge.is_resolved(&reference)
                    {
                        let (failure, message) = (Failure::Payload, message.clone());
                        self.fail(&reference, Reason { failure, message });
                    }
                    continue;
                }
            };
            self.say(&image.name, state, None);
        }
        for image in &plan.excluded {
            if !self.told.contains_key(&image.name) {
                self.list(&image.name, Some(&image.source), 0);
                self.say(&image.name, ImageState::Excluded, Some(image.reason.clone()));
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

    /// Holds the plan against the disk. If it has to fit and does not, blobs that it does not want make room for it.
    async fn hold(
        &self,
        plan: &Plan,
        sight: &Sight,
        scope: Scope,
        must_fit: bool,
        steps: Steps<'_>,
    ) -> Result<Verdict, JobError> {
        steps.start(Step::Preflight);
        let spooled = sight.spooled.iter().map(|entry| entry.bytes);
        let demand = Demand {
            spool: plan.totals.bytes_to_fetch,
            store: plan.totals.unpacked_estimate,
            required: match (self.mode, scope) {
                // Whether everything fits is what the plan is to say; for that it needs the payload.
                (Mode::Plan, Scope::Release) => 0,
                _ => self.order.spec.space_required,
            },
            cached: match scope {
                Scope::Everything => room::cached(plan, sight),
                // Which of it will be wanted is not known yet; any of it may be.
                Scope::Release => spooled.fold(sight.inventory.stored_bytes(), u64::saturating_add),
            },
        };
        let mut verdict = room::hold(self.order, demand)?;
        // What images without an answer want is not known.
        if must_fit
            && self.inquiry.open() == 0
            && let Some(spool) = self.spool.clone()
        {
            let blobs = room::dispensable(&verdict, plan, &sight.spooled);
            if !blobs.is_empty() {
                off_the_task(move || room::remove(&blobs, &spool)).await?;
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

    /// Pulls what the plan says.
    async fn pull(&mut self, plan: &Plan, steps: Steps<'_>) -> Result<(), JobError> {
        steps.start(Step::Pull);
        let layers = plan.images.iter().flat_map(|image| &image.layers);
        let reused = layers.filter(|layer| layer.action == Action::Reuse && self.counted.insert(layer.id));
        let layers = reused.count() as u64;
        self.observer.observe(Event::LayersReused { layers });
        for image in &plan.images {
            self.list(&image.name, image.sources.first(), image.bytes);
        }
        let (store, path, spool) = (
            Arc::clone(&self.store),
            self.order.spool.clone(),
            self.spool.clone(),
        );
        // This removes what killed runs have left.
        let (stage, spool) = off_the_task(move || {
            let spool = spool.map_or_else(|| Spool::open(&path), Ok)?;
            store.create_if_missing()?;
            Ok((store.stage()?, spool))
        })
        .await?;
        let puller = Puller {
            store: Arc::clone(&self.store),
            stage: Arc::new(stage),
            fetcher: Fetcher::new(
                Arc::clone(&self.registries),
                spool.clone(),
                Arc::clone(&self.observer),
                self.order.max_downloads,
            ),
            spool,
            observer: Arc::clone(&self.observer),
            max_downloads: self.order.max_downloads.get(),
            max_unpacks: self.order.max_unpacks.get(),
        };
        let pulled = puller.pull(plan, self.cancel).await?;
        self.counted.extend(pulled.layers);
        let mut came = 0;
        for (image, fate) in plan.images.iter().zip(pulled.fates) {
            match fate {
                Fate::Open => {}
                Fate::Pulled => {
                    came += 1;
                    self.told.insert(image.name.clone(), ImageState::Pulled);
                }
                Fate::Failed(reason) => {
                    self.told.insert(image.name.clone(), ImageState::Failed);
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
            let message = flaw.unwrap_or_else(|| "it is not in the store".to_owned());
            let failure = Failure::Incomplete;
            self.fail(reference, Reason { failure, message });
        }
    }

    fn fail_what_is_open(&mut self, requests: &[ImageRequest], sight: &Sight) {
        for request in requests {
            if self.knowledge.is_to_pull(&request.reference, sight, self.mode) {
                let message =
                    format!("its layers were removed from the store while it was pulled, {ROUNDS} times");
                let failure = Failure::Incomplete;
                self.fail(&request.reference, Reason { failure, message });
            }
        }
    }

    fn fail(&mut self, reference: &Reference, reason: Reason) {
        let message = reason.message.clone();
        if self.knowledge.fail(reference, reason) {
            self.say(&reference.to_string(), ImageState::Failed, Some(message));
        }
    }

    /// Puts an image on the report's list, so that a run which is cut off says what it did not come to.
    fn list(&self, name: &str, source: Option<&Source>, bytes: u64) {
        if let Some(source) = source {
            let (name, source) = (name.to_owned(), source.kind());
            self.observer.observe(Event::ImageListed { name, source, bytes });
        }
    }

    fn say(&mut self, name: &str, state: ImageState, reason: Option<String>) {
        self.told.insert(name.to_owned(), state);
        let name = name.to_owned();
        self.observer.observe(Event::ImageDone { name, state, reason });
    }
}

/// What came of looking.
struct Look {
    sight: Sight,
    has_asked: bool,
}

/// Does what waits for the disk on a thread, so that the task can be stopped meanwhile.
async fn off_the_task<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, JobError> + Send + 'static,
) -> Result<T, JobError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(JobError::Panicked(panic.to_string())))
}
