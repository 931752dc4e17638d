//! Runs the loop of one pull: starts downloads and commits, and handles their results until every image has an outcome.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::task::JoinHandle;

use super::commit::{COMMIT_BATCH, Committed, Committer, ReadyImage, commit};
use super::layer_staging::{LayerStaging, StagedBlob};
use super::pull_end::{Next, PullEnd};
use super::scheduler::Scheduler;
use super::tracker::{ImageOutcome, PullTracker};
use super::{Pulled, Puller};
use crate::cancel::StopReason;
use crate::exit_code::Failure;
use crate::job::error::{JobError, Reason, TaskError};
use crate::job::prefetch::{CHECK_INTERVAL, ReleaseFirst};
use crate::oci::LayerId;
use crate::plan::{BlobTask, ImageAction, LayerSource, Plan};
use crate::report::{Event, ImagePhase};
use crate::store::StagedLayer;

/// Complete blobs that may wait for an unpacking thread, for each such thread. With fewer, the link is idle while a large
/// layer is unpacked; with more, the spool grows.
const BACKLOG: usize = 4;

/// Blobs that may wait for a throttling registry, in addition to the others. Each has a file open, and a process has at least
/// 1024 ([`crate::open_files`]).
const MAX_THROTTLED: usize = 512;

/// The state of one pull.
pub(super) struct PullLoop<'a> {
    puller: &'a Puller,
    plan: &'a Plan,
    staging: &'a LayerStaging<'a>,
    tracker: PullTracker<StagedLayer>,
    scheduler: Scheduler<'a>,
    /// Set if something ends the run.
    end: Option<PullEnd<'a>>,
    /// Whether images were not begun because the upgrade begins too soon.
    has_given_up: bool,
    release_first: ReleaseFirst,
    downloads: FuturesUnordered<BoxFuture<'a, StagedBlob<'a>>>,
    /// How many of these are copied from media.
    copies: usize,
    /// At most one.
    commits: FuturesUnordered<BoxFuture<'a, Vec<(usize, Committed)>>>,
    /// Threads that remove staged layers without an image.
    removals: &'a mut Vec<JoinHandle<()>>,
    committed: Vec<LayerId>,
    /// The error that stopped the pull.
    fatal: Option<JobError>,
}

impl<'a> PullLoop<'a> {
    pub(super) fn new(
        staging: &'a LayerStaging<'a>,
        release_first: ReleaseFirst,
        removals: &'a mut Vec<JoinHandle<()>>,
    ) -> Self {
        let (puller, plan) = (staging.puller, staging.plan);
        let fetcher = &puller.fetcher;
        let (since, received) = (fetcher.since(), fetcher.received());
        let is_ordered = plan.is_in_upgrade_order();
        let mut scheduler = Scheduler::new(&plan.blobs, is_ordered, puller.deadline, since, received);
        let end = puller.end.clone();
        let end = end.map(|end| PullEnd::new(end, plan, received));
        if end.as_ref().is_some_and(PullEnd::holds_images) {
            scheduler.hold_all();
        }
        Self {
            puller,
            plan,
            staging,
            tracker: PullTracker::new(plan),
            scheduler,
            end,
            has_given_up: false,
            release_first,
            downloads: FuturesUnordered::new(),
            copies: 0,
            commits: FuturesUnordered::new(),
            removals,
            committed: Vec::new(),
            fatal: None,
        }
    }

    /// Ends when no work is left, or when the pull was stopped and all running work has ended.
    pub(super) async fn run(mut self) -> Result<Pulled, JobError> {
        let mut throttled = self.puller.fetcher.throttled();
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        loop {
            self.start_commit();
            self.note_progress();
            let is_release_alone = self.start_downloads(*throttled.borrow_and_update());
            let holds_images = !self.is_halted() && self.end.as_ref().is_some_and(PullEnd::holds_images);
            let is_watched = self.end.is_some() && !self.downloads.is_empty();
            tokio::select! {
                Some(blob) = self.downloads.next() => self.handle_staged(blob),
                Some(images) = self.commits.next() => self.handle_committed(images),
                Ok(()) = throttled.changed(), if !self.scheduler.is_empty() => {}
                _ = checks.tick(), if is_release_alone || holds_images || is_watched => {}
                else => break,
            }
        }
        self.finish()
    }

    /// Commits the images that are ready, unless a commit is running.
    fn start_commit(&mut self) {
        if self.is_halted() || !self.commits.is_empty() {
            return;
        }
        let ready = std::iter::from_fn(|| self.tracker.take_ready()).take(COMMIT_BATCH);
        let ready: Vec<ReadyImage> = ready
            .filter_map(|(index, staged)| ready_image(self.plan, index, staged))
            .collect();
        if !ready.is_empty() {
            let committer = Committer {
                store: self.puller.store.clone(),
                stage: self.puller.unpacker.stage.clone(),
                repair: self.puller.repair.clone(),
                halt: self.puller.halt.clone(),
            };
            self.commits.push(commit(committer, ready).boxed());
        }
    }

    /// Measures the rate, and reports what will be missing at the end of the run.
    fn note_progress(&mut self) {
        let received = self.puller.fetcher.received();
        if let Some(forecast) = self.end.as_mut().and_then(|end| end.note(received)) {
            self.puller.observer.observe(Event::Forecast(forecast));
        }
    }

    /// Starts as many downloads as allowed; those that wait for a throttling registry do not hold up the others. Returns
    /// whether only the release image's blobs may be downloaded.
    fn start_downloads(&mut self, throttled: usize) -> bool {
        let not_on_media = self.puller.fetcher.take_not_on_media();
        let fallback_bytes = self.staging.take_fallback_bytes().saturating_add(not_on_media);
        self.scheduler.add(fallback_bytes);
        if let Some(end) = &mut self.end {
            end.add(fallback_bytes);
        }
        let Puller {
            max_downloads,
            max_unpacks,
            ..
        } = *self.puller;
        let copies = max_downloads + max_unpacks * BACKLOG;
        let limit = copies + MAX_THROTTLED.min(throttled);
        let is_release_alone =
            !self.is_halted() && self.release_first.is_alone(self.puller.fetcher.received());
        while self.downloads.len() - self.copies < limit
            && let Some(blob) = match is_release_alone {
                true => self.scheduler.next_of(self.release_first.images()),
                false => self.next_blob(),
            }
        {
            self.start(blob);
        }
        // After the downloads, because these may release images all of whose blobs are on media.
        while self.copies < copies
            && let Some(blob) = self.scheduler.next_copy()
        {
            self.start(blob);
        }
        is_release_alone
    }

    fn start(&mut self, blob: &'a BlobTask) {
        if let Some(end) = &mut self.end {
            end.blob_begun(blob);
        }
        if self.is_halted() || !self.tracker.needs(blob) {
            self.scheduler.drop_blob(blob);
            self.blob_ended(blob);
            return;
        }
        let connections = self.scheduler.connections(blob, self.puller.max_downloads);
        self.copies += usize::from(blob.is_on_medium());
        self.downloads.push(self.staging.stage(blob, connections).boxed());
    }

    /// The next blob of the images that were begun, or of the next one that may be.
    fn next_blob(&mut self) -> Option<&'a BlobTask> {
        let received = self.puller.fetcher.received();
        loop {
            let next = self.scheduler.next(received);
            if next.is_some() || self.is_halted() {
                return next;
            }
            let plan = self.plan;
            match self
                .end
                .as_mut()
                .filter(|end| end.holds_images())?
                .begin(received)
            {
                Next::Nothing => return None,
                Next::Blobs(blobs) => self
                    .scheduler
                    .release(blobs.into_iter().map(|index| &plan.blobs[index])),
                Next::GivenUp(images, forecast) => {
                    self.puller.observer.observe(Event::Forecast(forecast));
                    self.give_up(images);
                    return None;
                }
            }
        }
    }

    /// Fails the images that are not begun any more.
    fn give_up(&mut self, images: Vec<(usize, String)>) {
        self.has_given_up = true;
        for (index, message) in images {
            if self.tracker.is_open(index) {
                let failure = Failure::Incomplete;
                let reason = Reason { failure, message };
                self.report_failed(index, &reason);
                self.tracker.settle(index, ImageOutcome::Failed(reason));
            }
        }
        remove(self.tracker.take_unneeded(), self.removals);
    }

    fn blob_ended(&mut self, blob: &BlobTask) {
        let received = self.puller.fetcher.received();
        if let Some(end) = &mut self.end {
            end.blob_ended(blob, received);
        }
    }

    fn handle_staged(&mut self, StagedBlob { task, layers }: StagedBlob<'a>) {
        self.copies -= usize::from(task.is_on_medium());
        self.release_first.blob_ended(task);
        self.blob_ended(task);
        if layers.iter().all(|(_, result)| result.is_err()) {
            self.scheduler.drop_blob(task);
        }
        let mut unneeded = Vec::new();
        for (id, result) in layers {
            match result {
                Ok(layer) => unneeded.extend(self.tracker.stage(id, layer)),
                Err(error) => {
                    if let Some(reason) = self.image_failure(error) {
                        for index in self.tracker.fail_layer(id, &reason) {
                            self.report_failed(index, &reason);
                        }
                        unneeded.append(&mut self.tracker.take_unneeded());
                    }
                }
            }
        }
        remove(unneeded, self.removals);
    }

    fn handle_committed(&mut self, images: Vec<(usize, Committed)>) {
        let mut unneeded = Vec::new();
        for (index, Committed { layers, image }) in images {
            for id in &layers {
                self.layer_committed(*id);
            }
            self.committed.extend(layers);
            match image {
                Ok(true) => {
                    self.report(index, ImagePhase::Pulled, None);
                    self.tracker.settle(index, ImageOutcome::Pulled);
                }
                Ok(false) => {}
                Err(error) => {
                    if let Some(reason) = self.image_failure(error) {
                        self.report_failed(index, &reason);
                        self.tracker.settle(index, ImageOutcome::Failed(reason));
                        unneeded.append(&mut self.tracker.take_unneeded());
                    }
                }
            }
        }
        remove(unneeded, self.removals);
    }

    fn finish(self) -> Result<Pulled, JobError> {
        let (outcomes, unneeded) = self.tracker.into_outcomes();
        remove(unneeded, self.removals);
        match self.fatal {
            Some(error) => Err(error),
            None => Ok(Pulled {
                outcomes,
                layers: self.committed,
                has_given_up: self.has_given_up,
            }),
        }
    }

    fn is_halted(&self) -> bool {
        self.puller.halt.reason().is_some()
    }

    /// The reason of an error that concerns single images. An error of the host stops the pull.
    fn image_failure(&mut self, error: TaskError) -> Option<Reason> {
        match error {
            TaskError::Image(reason) => Some(reason),
            TaskError::Stopped => None,
            TaskError::Host(error) => {
                self.puller.halt.stop(StopReason::FatalError);
                self.fatal.get_or_insert(error);
                None
            }
        }
    }

    /// Reports the layer, and removes from the spool what it was made of if no other layer needs that.
    fn layer_committed(&mut self, id: LayerId) {
        let unneeded = self.tracker.layer_committed(id);
        let Some(task) = self.staging.task(&id) else {
            return;
        };
        let bytes = task.layer.size;
        self.puller.observer.observe(Event::LayerCommitted { bytes });
        if unneeded.is_some() {
            let sources = task.sources.iter().filter_map(LayerSource::spooled_blob);
            for blob in sources.chain([task.layer.blob]) {
                if let Err(error) = self.puller.spool.remove(&blob) {
                    tracing::warn!("a blob that no layer needs any more stays in the spool: {error}");
                    continue;
                }
                self.staging.fallback_space.release(&blob);
            }
        }
    }

    fn report_failed(&self, index: usize, reason: &Reason) {
        self.report(index, ImagePhase::Failed, Some(reason.message.clone()));
    }

    fn report(&self, index: usize, state: ImagePhase, reason: Option<String>) {
        let name = self.plan.images[index].reference.to_string();
        self.puller
            .observer
            .observe(Event::ImageDone { name, state, reason });
    }
}

/// Removes staged layers on a thread, because a large one takes seconds.
fn remove(staged: Vec<StagedLayer>, removals: &mut Vec<JoinHandle<()>>) {
    if !staged.is_empty() {
        removals.push(tokio::task::spawn_blocking(move || drop(staged)));
    }
}

/// An image whose layers are all staged or in the store. Only images to pull become ready.
fn ready_image(plan: &Plan, index: usize, staged: Vec<StagedLayer>) -> Option<ReadyImage> {
    let planned = &plan.images[index];
    let ImageAction::Pull(resolved) = &planned.action else {
        return None;
    };
    Some(ReadyImage {
        index,
        image: resolved.clone(),
        reference: planned.reference.clone(),
        staged,
    })
}
