//! Look into the store, resolve what is missing, plan, hold the plan against the disk, pull, and look again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream;

use super::board::Fate;
use super::error::JobError;
use super::failure::{Reason, Trouble};
use super::order::Order;
use super::pull::Puller;
use super::steps::Steps;
use super::{Mode, Outcome, release};
use crate::cancel::Cancel;
use crate::exit::Failure;
use crate::fetch::Fetcher;
use crate::oci::{Digest, LayerId, Platform, Reference, ResolvedImage};
use crate::plan::{Action, ExcludedImage, Here, Need, Plan, Totals, Wanted};
use crate::preflight::{Demand, Space, Spaces, Verdict, verdict};
use crate::registry::Registries;
use crate::report::{Event, ImageState, Observer, Step};
use crate::sources::release::{Payload, Selection};
use crate::sources::{ImageRequest, Source};
use crate::spec::Excludes;
use crate::spool::{Spool, SpoolError};
use crate::store::{Inventory, Store};

/// Images that are resolved at the same time: a manifest and a config each, so what counts is the link's latency.
const RESOLVES: usize = 16;

/// How often the work is planned anew because the store changed under it: somebody removed a layer that was to be
/// reused. More often than this is no accident.
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
    registries: Arc<Registries>,
    /// Open from the first time it is looked into; excludes other agents from then on.
    spool: Option<Spool>,
    resolved: HashMap<Reference, Arc<ResolvedImage>>,
    failed: HashMap<Reference, Reason>,
}

/// What came of it.
pub(super) struct Brought {
    /// What was still to be done when the store was last looked at.
    pub(super) plan: Plan,
    /// Whether that plan fits, if it was held against the disk.
    pub(super) verdict: Option<Verdict>,
    /// The store as it was then.
    pub(super) inventory: Inventory,
}

impl<'a> Bringer<'a> {
    pub(super) fn new(
        order: &'a Order,
        mode: Mode,
        observer: &Arc<dyn Observer>,
        cancel: &'a Cancel,
    ) -> Result<Self, JobError> {
        let store = Store::open(&order.graph_root, &order.storage_conf)?;
        let registries =
            Registries::new(order.registries.clone(), Arc::clone(observer)).map_err(JobError::Registries)?;
        Ok(Self {
            order,
            mode,
            observer: Arc::clone(observer),
            cancel,
            store: Arc::new(store),
            registries: Arc::new(registries),
            spool: None,
            resolved: HashMap::new(),
            failed: HashMap::new(),
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
        if self.failed.contains_key(reference) {
            return Ok(None);
        }
        self.cancel.check()?;
        match release::payload(
            reference,
            &self.order.platform,
            excludes,
            &self.store,
            &brought.inventory,
        ) {
            Ok(read) => Ok(Some(read)),
            Err(reason) => {
                self.fail(reference, reason);
                Ok(None)
            }
        }
    }

    /// Why an image failed, if it did.
    pub(super) fn failure_of(&self, reference: &Reference) -> Option<&Reason> {
        self.failed.get(reference)
    }

    /// Tells what became of each image, and sums it up.
    pub(super) fn outcome(self, brought: Brought) -> Outcome {
        let mut failures = Vec::new();
        for image in &brought.plan.images {
            let reason = image
                .name
                .parse()
                .ok()
                .and_then(|reference| self.failed.get(&reference));
            let state = match (&image.need, reason) {
                (_, Some(reason)) => {
                    failures.push(reason.failure);
                    ImageState::Failed
                }
                (Need::Present, None) => ImageState::Present,
                (Need::Failed(_), None) => {
                    failures.push(Failure::Payload);
                    ImageState::Failed
                }
                (Need::Resolved(_), None) => {
                    if self.mode == Mode::Run {
                        failures.push(Failure::Incomplete);
                    }
                    ImageState::Pending
                }
            };
            let message = match &image.need {
                _ if reason.is_some() => reason.map(|reason| reason.message.clone()),
                Need::Failed(message) => Some(message.clone()),
                Need::Present | Need::Resolved(_) => None,
            };
            self.observer.observe(Event::ImageDone {
                name: image.name.clone(),
                state,
                reason: message,
            });
        }
        for image in &brought.plan.excluded {
            let (name, source) = (image.name.clone(), image.source.kind());
            self.observer.observe(Event::ImageListed {
                name: name.clone(),
                source,
                bytes: 0,
            });
            let (state, reason) = (ImageState::Excluded, Some(image.reason.clone()));
            self.observer.observe(Event::ImageDone { name, state, reason });
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
        let mut step = Step::Resolve;
        let result = self
            .bring_in_rounds(requests, excluded, scope, steps, &mut step)
            .await;
        result.map_err(|error| steps.ended_by(step, error))
    }

    /// Sets `step` to the one that is going on, for whoever hears of an error.
    async fn bring_in_rounds(
        &mut self,
        requests: &[ImageRequest],
        excluded: &[ExcludedImage],
        scope: Scope,
        steps: Steps<'_>,
        step: &mut Step,
    ) -> Result<Brought, JobError> {
        let pulls = match self.mode {
            Mode::Run => true,
            Mode::Plan => scope == Scope::Release,
            Mode::Verify => false,
        };
        for round in 1.. {
            *step = Step::Resolve;
            steps.start(*step);
            let inventory = self.inventory().await?;
            match self.mode {
                Mode::Run | Mode::Plan => self.resolve(requests, &inventory).await,
                Mode::Verify => self.fail_what_is_missing(requests, &inventory)?,
            }
            self.cancel.check()?;
            if round > ROUNDS {
                self.fail_what_is_open(requests, &inventory)?;
            }
            let here = self.here(&inventory)?;
            let plan = Plan::build(self.wanted(requests, &inventory)?, excluded.to_vec(), &here);
            self.list(&plan);
            steps.end(
                *step,
                plan.totals.images_failed == 0,
                "Resolved",
                resolved_message(&plan.totals),
            );

            *step = Step::Preflight;
            steps.start(*step);
            let verdict = match self.mode {
                Mode::Run | Mode::Plan => Some(self.verdict(&plan, &inventory, scope)?),
                Mode::Verify => None,
            };
            let is_done = plan.totals.images_to_pull == 0;
            let verdict = match (pulls && !is_done, verdict) {
                (true, Some(verdict)) => Some(verdict.into_result()?),
                (_, verdict) => verdict,
            };
            if let Some(verdict) = &verdict {
                let reason = if verdict.fits {
                    "SpaceSuffices"
                } else {
                    Failure::Space.reason()
                };
                steps.end(*step, verdict.fits, reason, verdict.to_string());
            }
            if !pulls || is_done {
                if self.mode == Mode::Run && round == 1 {
                    steps.end(
                        Step::Pull,
                        true,
                        "NothingToPull",
                        "every image that can be had is here".to_owned(),
                    );
                }
                if self.mode != Mode::Plan {
                    steps.verified(&plan.totals);
                }
                return Ok(Brought {
                    plan,
                    verdict,
                    inventory,
                });
            }

            *step = Step::Pull;
            steps.start(*step);
            let pulled = self.pull(&plan).await?;
            let tried = plan.totals.images_to_pull;
            if pulled < tried {
                self.cancel.check()?;
            }
            let reason = if pulled == tried {
                "Pulled"
            } else {
                Failure::Incomplete.reason()
            };
            steps.end(
                *step,
                pulled == tried,
                reason,
                format!("{pulled} of {tried} images were pulled"),
            );
        }
        unreachable!("the rounds end by returning")
    }

    /// Puts every image on the report's list, so that a run which is cut off says what it did not come to.
    fn list(&self, plan: &Plan) {
        for image in &plan.images {
            if let Some(source) = image.sources.first() {
                let (name, source) = (image.name.clone(), source.kind());
                self.observer.observe(Event::ImageListed {
                    name,
                    source,
                    bytes: 0,
                });
            }
        }
    }

    async fn inventory(&self) -> Result<Inventory, JobError> {
        let store = Arc::clone(&self.store);
        let task = tokio::task::spawn_blocking(move || store.inventory());
        task.await
            .map_err(|panic| JobError::Panicked(panic.to_string()))?
            .map_err(JobError::Store)
    }

    /// Asks for the manifest and config of each image that is not known to be present. The store's own copies are as
    /// good as the registry's, for digests name them.
    async fn resolve(&mut self, requests: &[ImageRequest], inventory: &Inventory) {
        let known = |digest: &Digest| {
            inventory.content(digest).unwrap_or_else(|error| {
                tracing::warn!("cannot read `{digest}` from the store, asking the registry: {error}");
                None
            })
        };
        let unknown = requests
            .iter()
            .map(|request| &request.reference)
            .filter(|reference| {
                !self.resolved.contains_key(*reference)
                    && !self.failed.contains_key(*reference)
                    && !matches!(self.is_present(reference, inventory), Ok(true))
            });
        let unknown: Vec<&Reference> = unknown.collect();
        let mut answers = stream::iter(unknown)
            .map(async |reference| {
                let answer = self
                    .registries
                    .resolve(reference, &self.order.platform, &known, self.cancel)
                    .await;
                (reference, answer)
            })
            .buffer_unordered(RESOLVES);
        let (mut resolved, mut failed) = (Vec::new(), Vec::new());
        while let Some((reference, answer)) = answers.next().await {
            match answer.map_err(|error| Trouble::resolving(&error)) {
                Ok(image) => resolved.push((reference.clone(), Arc::new(image))),
                Err(Trouble::Image(reason)) => failed.push((reference.clone(), reason)),
                Err(Trouble::Stopped | Trouble::Host(_)) => {}
            }
        }
        drop(answers);
        self.resolved.extend(resolved);
        self.failed.extend(failed);
    }

    /// Whether the store has the image, whole. For a run it must bear the very name, for other names of its repository
    /// may be taken from it, and if it is wanted by tag it must be the image that the registry now gives for it. Where
    /// nobody is to be asked, it is enough that CRI-O would find it.
    fn is_present(&self, reference: &Reference, inventory: &Inventory) -> Result<bool, JobError> {
        let Some(image) = inventory.find(reference, &self.order.platform)? else {
            return Ok(false);
        };
        let is_it = self.mode == Mode::Verify
            || match (reference.tag(), self.resolved.get(reference)) {
                (None, _) => image.names.contains(&reference.to_string()),
                (Some(_), Some(resolved)) => image.id == resolved.id(),
                (Some(_), None) => false,
            };
        Ok(is_it && inventory.is_whole(image)?)
    }

    fn wanted(&self, requests: &[ImageRequest], inventory: &Inventory) -> Result<Vec<Wanted>, JobError> {
        let wanted = requests.iter().map(|request| {
            let reference = &request.reference;
            let state = if let Some(reason) = self.failed.get(reference) {
                Need::Failed(reason.message.clone())
            } else if self.is_present(reference, inventory)? {
                Need::Present
            } else if let Some(resolved) = self.resolved.get(reference) {
                Need::Resolved(Arc::clone(resolved))
            } else {
                Need::Failed("nobody asked the registry for it".to_owned())
            };
            Ok(Wanted {
                name: reference.to_string(),
                sources: request.sources.clone(),
                state,
            })
        });
        wanted.collect()
    }

    fn fail(&mut self, reference: &Reference, reason: Reason) {
        self.failed.insert(reference.clone(), reason);
    }

    fn fail_what_is_missing(
        &mut self,
        requests: &[ImageRequest],
        inventory: &Inventory,
    ) -> Result<(), JobError> {
        for request in requests {
            let reference = &request.reference;
            if self.failed.contains_key(reference) || self.is_present(reference, inventory)? {
                continue;
            }
            let image = inventory.find(reference, &self.order.platform)?;
            let flaw = image
                .map(|image| inventory.find_flaw(image))
                .transpose()?
                .flatten();
            let message = flaw.unwrap_or_else(|| "it is not in the store".to_owned());
            self.fail(
                reference,
                Reason {
                    failure: Failure::Incomplete,
                    message,
                },
            );
        }
        Ok(())
    }

    fn fail_what_is_open(
        &mut self,
        requests: &[ImageRequest],
        inventory: &Inventory,
    ) -> Result<(), JobError> {
        for request in requests {
            let reference = &request.reference;
            if !self.failed.contains_key(reference) && !self.is_present(reference, inventory)? {
                let message =
                    format!("its layers were removed from the store while it was pulled, {ROUNDS} times");
                self.fail(
                    reference,
                    Reason {
                        failure: Failure::Incomplete,
                        message,
                    },
                );
            }
        }
        Ok(())
    }

    fn fail_named(&mut self, name: &str, reason: Reason) {
        match name.parse() {
            Ok(reference) => self.fail(&reference, reason),
            Err(error) => tracing::error!("a planned image has no name: {error}"),
        }
    }

    fn here(&mut self, inventory: &Inventory) -> Result<Here, JobError> {
        let entries = match (self.mode, self.spool()) {
            (_, Ok(spool)) => spool.list()?,
            (Mode::Plan | Mode::Verify, Err(SpoolError::Busy { path })) => {
                tracing::warn!(
                    "what lies in `{}` is not counted: an agent is at work there",
                    path.display()
                );
                Vec::new()
            }
            (_, Err(error)) => return Err(error.into()),
        };
        let chains = self.resolved.values().flat_map(|image| image.layer_ids());
        Ok(Here {
            layers: chains.filter(|id| inventory.layer(id).is_some()).collect(),
            blobs: entries
                .into_iter()
                .map(|entry| (entry.digest, entry.bytes))
                .collect(),
        })
    }

    fn spool(&mut self) -> Result<Spool, SpoolError> {
        match &self.spool {
            Some(spool) => Ok(spool.clone()),
            None => Ok(self.spool.insert(Spool::open(&self.order.spool)?).clone()),
        }
    }

    fn verdict(&self, plan: &Plan, inventory: &Inventory, scope: Scope) -> Result<Verdict, JobError> {
        let spaces = Spaces {
            store: Space::of(&self.order.graph_root)?,
            spool: Space::of(&self.order.spool)?,
        };
        let demand = Demand {
            spool: plan.totals.bytes_to_fetch,
            store: plan.totals.unpacked_estimate,
            required: self.order.spec.space_required,
            cached: match scope {
                Scope::Everything => cached(plan, inventory, &self.order.platform),
                // Which of the store's layers will be wanted is not known yet; any of them may be.
                Scope::Release => inventory.stored_bytes(),
            },
        };
        Ok(verdict(&spaces, demand, self.order.image_gc_high_threshold))
    }

    /// Pulls what the plan says; returns how many of its images came in.
    async fn pull(&mut self, plan: &Plan) -> Result<u64, JobError> {
        self.observer.observe(Event::Planned {
            images: plan.totals.images_wanted,
            present: plan.totals.images_present,
            bytes: plan.totals.bytes_to_fetch,
        });
        self.observer.observe(Event::LayersReused {
            layers: plan.totals.layers_to_reuse,
        });
        for image in &plan.images {
            if let Some(source) = image.sources.first() {
                let (name, source) = (image.name.clone(), source.kind());
                self.observer.observe(Event::ImageListed {
                    name,
                    source,
                    bytes: image.bytes,
                });
            }
        }
        self.store.create_if_missing()?;
        let spool = self.spool()?;
        let puller = Puller {
            store: Arc::clone(&self.store),
            stage: Arc::new(self.store.stage()?),
            fetcher: Arc::new(Fetcher::new(
                Arc::clone(&self.registries),
                spool.clone(),
                Arc::clone(&self.observer),
                self.order.max_downloads,
            )),
            spool,
            observer: Arc::clone(&self.observer),
            max_downloads: self.order.max_downloads.get(),
            max_unpacks: self.order.max_unpacks.get(),
        };
        let fates = puller.pull(plan, self.cancel).await?;
        let mut pulled = 0;
        for (image, fate) in plan.images.iter().zip(fates) {
            match fate {
                Fate::Open => {}
                Fate::Pulled => pulled += 1,
                Fate::Failed(reason) => self.fail_named(&image.name, reason),
            }
        }
        Ok(pulled)
    }
}

fn resolved_message(totals: &Totals) -> String {
    let (wanted, present, failed) = (totals.images_wanted, totals.images_present, totals.images_failed);
    format!("{wanted} images are wanted, {present} are present, {failed} cannot be had")
}

/// What of everything that is wanted lies here already, in bytes: unpacked layers and spooled blobs.
fn cached(plan: &Plan, inventory: &Inventory, platform: &Platform) -> u64 {
    let present = plan
        .images
        .iter()
        .filter(|image| matches!(image.need, Need::Present));
    let whole = present.filter_map(|image| {
        let image = inventory.find(&image.name.parse().ok()?, platform).ok()??;
        inventory.chain_of(image)
    });
    let reused = plan
        .images
        .iter()
        .flat_map(|image| &image.layers)
        .filter(|layer| layer.action == Action::Reuse);
    let layers: HashSet<LayerId> = whole.flatten().chain(reused.map(|layer| layer.id)).collect();
    let unpacked = layers.iter().filter_map(|id| inventory.layer(id)?.diff_size);
    unpacked.fold(plan.totals.bytes_in_spool, u64::saturating_add)
}
