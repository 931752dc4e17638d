//! From a plan to a filled store.
//!
//! # Design
//! Each blob of the plan is one future: fetch it, then unpack every layer that is made of it, each on a blocking thread.
//! The loop here polls a bounded number of them and hears of each staged layer; as soon as all layers of an image are
//! staged or in the store, it commits the image on a blocking thread. Images that get ready while others are committed go
//! next, all with one sync of the file system: where the link is fast the disk's syncs are what takes time. So a run that
//! is cut off leaves whole images, a slow blob idles nobody, and what lies in the spool waiting for a thread stays
//! bounded.
//!
//! A trouble of the host, such as a full disk, halts everything; a trouble of one image is its [`ImageOutcome`].

pub(super) mod commit;
pub(super) mod repair;
pub(super) mod scheduler;
pub(super) mod tracker;

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Instant;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::error::{JobError, Reason, TaskError};
use super::prefetch::{CHECK_INTERVAL, ReleaseFirst, StagedLayers};
use crate::cancel::{Cancel, StopReason};
use crate::fetch::{BlobRequest, Fetcher};
use crate::oci::{Digest, LayerId};
use crate::plan::{BlobTask, ImageAction, LayerTask, Plan};
use crate::priority::IoPriority;
use crate::report::{Event, ImagePhase, Observer};
use crate::spool::{Spool, VerifiedBlob};
use crate::store::unpack::{Limits, SpaceBudget, unpack};
use crate::store::{Stage, StagedLayer, Store};
use crate::write_back;
use commit::{Committed, Committer, Ready};
use repair::LayerRepair;
use scheduler::{Queue, request_for};
use tracker::{ImageOutcome, PullTracker};

/// Whole blobs that may wait for a thread that unpacks them, for each such thread. With fewer, the link idles while
/// a large layer is unpacked; with more, the spool grows.
const BACKLOG: usize = 4;

/// Images that go into the store with one sync: so many that what is left to sync for each is small, and so few that what
/// is done is heard of soon.
const BATCH: usize = 16;

/// Blobs that wait for a registry which wants to be left alone, beside those. Each has a file open, of which a process
/// may have 1024.
const RESTING: usize = 512;

/// What a pull works with.
pub(super) struct Puller {
    pub(super) store: Arc<Store>,
    pub(super) stage: Arc<Stage>,
    /// If damaged layers are to be replaced, or there is more than one store to take layers from.
    pub(super) mender: Option<LayerRepair>,
    /// For layers that are larger than was foreseen.
    pub(super) room: Arc<SpaceBudget>,
    pub(super) spool: Spool,
    pub(super) fetcher: Arc<Fetcher>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) deadline: Option<Instant>,
    pub(super) max_downloads: usize,
    pub(super) max_unpacks: usize,
    pub(super) disk_priority: IoPriority,
    /// Ends all that is under way, here and what was fetched ahead.
    pub(super) halt: Cancel,
    /// Passes staged layers to a prefetch, if one runs beside this pull.
    pub(super) staged_layers: Option<StagedLayers>,
}

/// What came of a pull.
pub(super) struct Pulled {
    /// Of the plan's images, in order.
    pub(super) fates: Vec<ImageOutcome>,
    /// Those that are in the store now.
    pub(super) layers: Vec<LayerId>,
}

impl Puller {
    /// Brings what `plan` wants into the store. What was staged for nothing is removed before this returns, unless the
    /// run is to end at once.
    pub(super) async fn pull(
        &self,
        plan: &Plan,
        release_first: ReleaseFirst,
        cancel: &Cancel,
    ) -> Result<Pulled, JobError> {
        let halt = &self.halt;
        let mut removals = Vec::new();
        let follow = async {
            halt.stop(cancel.stopped().await.0);
            std::future::pending().await
        };
        let result = tokio::select! {
            result = self.pull_until_halted(plan, release_first, halt, &mut removals) => result,
            never = follow => never,
        };
        tokio::select! {
            // Their threads end by themselves, or with the process; then the next run removes what they leave.
            _ = cancel.stopped() => {}
            _ = join_all(removals) => {}
        }
        result
    }

    async fn pull_until_halted(
        &self,
        plan: &Plan,
        mut release_first: ReleaseFirst,
        halt: &Cancel,
        removals: &mut Vec<JoinHandle<()>>,
    ) -> Result<Pulled, JobError> {
        let tasks: HashMap<LayerId, &LayerTask> =
            plan.layers.iter().map(|task| (task.layer.id(), task)).collect();
        let mut board = PullTracker::new(plan);
        let unpacks = Semaphore::new(self.max_unpacks);
        let at_once = self.max_downloads + self.max_unpacks * BACKLOG;
        let mut queue = Queue::new(
            &plan.blobs,
            self.deadline,
            self.fetcher.since(),
            self.fetcher.received(),
        );
        let mut blobs = FuturesUnordered::new();
        let mut throttled = self.fetcher.throttled();
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        let mut commits = FuturesUnordered::new();
        let mut layers = Vec::new();
        let mut trouble = None;
        loop {
            if halt.reason().is_none() && commits.is_empty() {
                let ready: Vec<_> = std::iter::from_fn(|| board.take()).take(BATCH).collect();
                if !ready.is_empty() {
                    commits.push(self.commit(ready, plan, halt));
                }
            }
            // A blob whose registry has to be left alone stands in no other's way.
            let room = at_once + RESTING.min(*throttled.borrow_and_update());
            let is_alone = halt.reason().is_none() && release_first.is_alone(self.fetcher.received());
            while blobs.len() < room
                && let Some(blob) = match is_alone {
                    true => queue.take_of(release_first.images()),
                    false => queue.take(self.fetcher.received()),
                }
            {
                if halt.reason().is_none() && board.wants(blob) {
                    let connections = queue.connections(blob, self.max_downloads);
                    blobs.push(self.bring(blob, connections, plan, &tasks, &unpacks, halt));
                } else {
                    queue.failed(blob);
                }
            }
            let mut unwanted = Vec::new();
            tokio::select! {
                Some((blob, layers)) = blobs.next() => {
                    release_first.blob_ended(blob);
                    if layers.iter().all(|(_, layer)| layer.is_err()) {
                        queue.failed(blob);
                    }
                    for (id, result) in layers {
                        match result {
                            Ok(layer) => unwanted.extend(board.stage(id, layer)),
                            Err(TaskError::Image(reason)) => {
                                let failing = board.fail_layer(id, &reason);
                                for index in failing {
                                    self.say_failed(plan, index, &reason);
                                }
                                unwanted.append(&mut board.take_unwanted());
                            }
                            Err(TaskError::Stopped) => {}
                            Err(TaskError::Host(error)) => {
                                halt.stop(StopReason::FatalError);
                                trouble.get_or_insert(error);
                            }
                        }
                    }
                }
                Ok(()) = throttled.changed(), if !queue.is_empty() => {}
                _ = checks.tick(), if is_alone => {}
                Some(committed) = commits.next() => for (index, committed) in committed {
                    for id in &committed.layers {
                        let freed = board.committed(*id);
                        self.layer_is_in(*id, freed, &tasks);
                    }
                    layers.extend(committed.layers);
                    match committed.image {
                        Ok(true) => {
                            self.say(plan, index, ImagePhase::Pulled, None);
                            board.settle(index, ImageOutcome::Pulled);
                        }
                        Ok(false) => {}
                        Err(TaskError::Image(reason)) => {
                            self.say_failed(plan, index, &reason);
                            board.settle(index, ImageOutcome::Failed(reason));
                            unwanted.append(&mut board.take_unwanted());
                        }
                        Err(TaskError::Stopped) => {}
                        Err(TaskError::Host(error)) => {
                            halt.stop(StopReason::FatalError);
                            trouble.get_or_insert(error);
                        }
                    }
                },
                else => break,
            }
            remove(unwanted, removals);
        }
        drop((blobs, commits));
        let (fates, unused) = board.into_fates();
        remove(unused, removals);
        trouble.map_or(Ok(Pulled { fates, layers }), Err)
    }

    fn layer_is_in(&self, id: LayerId, freed: Option<Digest>, tasks: &HashMap<LayerId, &LayerTask>) {
        if let Some(task) = tasks.get(&id) {
            self.observer.observe(Event::LayerCommitted {
                bytes: task.layer.size,
            });
        }
        if let Some(Err(error)) = freed.map(|blob| self.spool.remove(&blob)) {
            tracing::warn!("a blob that is not needed any more stays in the spool: {error}");
        }
    }

    fn say_failed(&self, plan: &Plan, index: usize, reason: &Reason) {
        self.say(plan, index, ImagePhase::Failed, Some(reason.message.clone()));
    }

    fn say(&self, plan: &Plan, index: usize, state: ImagePhase, reason: Option<String>) {
        let name = plan.images[index].reference.to_string();
        self.observer.observe(Event::ImageDone { name, state, reason });
    }

    /// Of many at a time, says which one it was.
    async fn bring<'a>(
        &self,
        task: &'a BlobTask,
        connections: usize,
        plan: &Plan,
        layers: &HashMap<LayerId, &LayerTask>,
        unpacks: &Semaphore,
        halt: &Cancel,
    ) -> (&'a BlobTask, Vec<(LayerId, Result<StagedLayer, TaskError>)>) {
        let request = request_for(task, plan, connections);
        (
            task,
            self.staged_layers(task, request, layers, unpacks, halt).await,
        )
    }

    /// Fetches a blob and stages every layer that is made of it.
    async fn staged_layers(
        &self,
        task: &BlobTask,
        request: BlobRequest,
        layers: &HashMap<LayerId, &LayerTask>,
        unpacks: &Semaphore,
        halt: &Cancel,
    ) -> Vec<(LayerId, Result<StagedLayer, TaskError>)> {
        let mut done = self.stage_from_store(task, layers, unpacks, halt).await;
        if done.len() == task.layers.len() {
            return done;
        }
        let blob = match self.fetcher.fetch(request, halt).await {
            Ok(blob) => blob,
            Err(error) => {
                let is_open = |id: &&LayerId| !done.iter().any(|(known, _)| known == *id);
                let open: Vec<&LayerId> = task.layers.iter().filter(is_open).collect();
                done.extend(open.into_iter().map(|id| (*id, Err(TaskError::fetching(&error)))));
                return done;
            }
        };
        let open = task
            .layers
            .iter()
            .filter(|id| !done.iter().any(|(known, _)| known == *id));
        let layers = open.filter_map(|id| layers.get(id));
        let unpacked = layers.map(|layer| async {
            let result = match unpacks.acquire().await {
                Ok(_permit) => self.stage(layer, &blob, halt).await,
                Err(_closed) => Err(TaskError::Stopped),
            };
            (layer.layer.id(), result)
        });
        let unpacked: Vec<_> = unpacked.collect::<FuturesUnordered<_>>().collect().await;
        done.extend(unpacked);
        done
    }

    /// Stages what the store has elsewhere, unless the blob is here already.
    async fn stage_from_store(
        &self,
        task: &BlobTask,
        layers: &HashMap<LayerId, &LayerTask>,
        unpacks: &Semaphore,
        halt: &Cancel,
    ) -> Vec<(LayerId, Result<StagedLayer, TaskError>)> {
        let mut done = Vec::new();
        let Some(mender) = self.mender.as_ref().filter(|_| task.missing() > 0) else {
            return done;
        };
        for layer in task.layers.iter().filter_map(|id| layers.get(id)) {
            let Ok(_permit) = unpacks.acquire().await else {
                break;
            };
            let (mender, layer, halt) = (mender.clone(), LayerTask::clone(layer), halt.clone());
            let (id, priority) = (layer.layer.id(), self.disk_priority);
            let staged = tokio::task::spawn_blocking(move || {
                let _lowered = priority.lower();
                mender.stage(&layer, &halt)
            });
            match staged
                .await
                .unwrap_or_else(|panic| Err(TaskError::Host(JobError::Panicked(panic.to_string()))))
            {
                Ok(Some(staged)) => done.push((id, Ok(staged))),
                Ok(None) => {}
                Err(trouble) => done.push((id, Err(trouble))),
            }
        }
        done
    }

    async fn stage(
        &self,
        layer: &LayerTask,
        blob: &VerifiedBlob,
        halt: &Cancel,
    ) -> Result<StagedLayer, TaskError> {
        let spec = layer.layer.clone();
        let (stage, blob, halt) = (Arc::clone(&self.stage), blob.clone(), halt.clone());
        let (priority, staged_layers) = (self.disk_priority, self.staged_layers.clone());
        let (room, foreseen) = (Arc::clone(&self.room), layer.tar.bytes());
        let task = tokio::task::spawn_blocking(move || {
            let _lowered = priority.lower();
            let file = blob.open().map_err(|error| TaskError::Host(error.into()))?;
            let staging = stage.layer(spec).map_err(TaskError::storing)?;
            let diff = staging.open_diff().map_err(TaskError::storing)?;
            let tar_split = staging.create_tar_split().map_err(TaskError::storing)?;
            let limits = Limits::estimated(foreseen, &room);
            let unpacked = unpack(&file, diff.as_fd(), &tar_split, limits, &halt)
                .map_err(|error| TaskError::unpacking(blob.digest(), error))?;
            // It may lie in the spool for as long as its image's other blobs take to come; then its removal does this.
            write_back::forget(&file);
            let staged = staging.finish(unpacked).map_err(TaskError::storing)?;
            if let Some(staged_layers) = staged_layers {
                staged_layers.send(&staged).map_err(TaskError::storing)?;
            }
            Ok(staged)
        });
        task.await
            .unwrap_or_else(|panic| Err(TaskError::Host(JobError::Panicked(panic.to_string()))))
    }

    /// Commits images one after the other: its layers, then its record. Only waiting for a lock is cancelled, nothing
    /// half-way.
    async fn commit(
        &self,
        ready: Vec<(usize, Vec<StagedLayer>)>,
        plan: &Plan,
        halt: &Cancel,
    ) -> Vec<(usize, Committed)> {
        let indices: Vec<usize> = ready.iter().map(|(index, _)| *index).collect();
        let resolve = |(index, staged): (usize, Vec<StagedLayer>)| {
            let image = &plan.images[index];
            // Only what is resolved can be ready.
            let ImageAction::Pull(resolved) = &image.action else {
                return None;
            };
            let (image, name) = (Arc::clone(resolved), image.reference.clone());
            Some(Ready {
                index,
                image,
                name,
                staged,
            })
        };
        let ready: Vec<Ready> = ready.into_iter().filter_map(resolve).collect();
        let committer = Committer {
            store: Arc::clone(&self.store),
            mender: self.mender.clone(),
            halt: halt.clone(),
        };
        let task = tokio::task::spawn_blocking(move || committer.commit(ready));
        task.await.unwrap_or_else(|panic| {
            let message = panic.to_string();
            let panicked = || Committed::nothing(TaskError::Host(JobError::Panicked(message.clone())));
            indices.into_iter().map(|index| (index, panicked())).collect()
        })
    }
}

/// Removes staged layers on a thread, for a large one takes seconds.
fn remove(staged: Vec<StagedLayer>, removals: &mut Vec<JoinHandle<()>>) {
    if !staged.is_empty() {
        removals.push(tokio::task::spawn_blocking(move || drop(staged)));
    }
}
