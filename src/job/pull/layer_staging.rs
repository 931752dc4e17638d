//! Stages the layers of one blob: downloads it, or repairs its layers from the store, and unpacks each layer on a thread.
//! `source_staging` does this for layers that are made from something else than their blob.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Semaphore;

use super::Puller;
use super::fallback_space::FallbackSpace;
use super::scheduler::request_for;
use crate::job::error::TaskError;
use crate::oci::LayerId;
use crate::plan::{BlobTask, LayerTask, Plan};
use crate::report::Count;
use crate::spool::VerifiedBlob;
use crate::store::StagedLayer;

/// How many deltas are applied at a time. Each needs at most 18 MiB of memory: a window of zstd and blocks of sources, 8 MiB
/// each, and 2 MiB of buffers, inflaters and deflaters. The sum, 54 MiB, is below 64 MiB.
const MAX_PATCHES: usize = 3;

/// Stages layers for one pull.
pub(super) struct LayerStaging<'a> {
    pub(super) puller: &'a Puller,
    pub(super) plan: &'a Plan,
    tasks: HashMap<LayerId, &'a LayerTask>,
    /// Bounds the number of deltas that are applied.
    pub(super) patches: Semaphore,
    /// Bytes that are downloaded because deltas failed, since they were last taken.
    fallback_bytes: AtomicU64,
    /// Disk space for what is downloaded because deltas failed.
    pub(super) fallback_space: FallbackSpace,
}

/// The layers of one blob, each with its result.
pub(super) struct StagedBlob<'a> {
    pub(super) task: &'a BlobTask,
    pub(super) layers: Vec<(LayerId, Result<StagedLayer, TaskError>)>,
}

impl<'a> LayerStaging<'a> {
    pub(super) fn new(puller: &'a Puller, plan: &'a Plan) -> Self {
        let tasks = plan.layers.iter().map(|task| (task.layer.id(), task));
        Self {
            puller,
            plan,
            tasks: tasks.collect(),
            patches: Semaphore::new(MAX_PATCHES),
            fallback_bytes: AtomicU64::new(0),
            fallback_space: FallbackSpace::new(puller.spool.clone(), Arc::clone(&puller.spool_budget)),
        }
    }

    /// The task of a layer that is not in the store.
    pub(super) fn task(&self, id: &LayerId) -> Option<&'a LayerTask> {
        self.tasks.get(id).copied()
    }

    /// Bytes that are downloaded in addition to the plan, since the last call.
    pub(super) fn take_fallback_bytes(&self) -> u64 {
        self.fallback_bytes.swap(0, Ordering::Relaxed)
    }

    /// Counts what will be downloaded in addition to the plan.
    pub(super) fn count_fallback(&self, bytes: u64) {
        self.fallback_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Stages every layer of the blob. Downloads it over as many `connections`, unless all layers can be copied.
    pub(super) async fn stage(&self, blob: &'a BlobTask, connections: usize) -> StagedBlob<'a> {
        let mut layers = self.copy_from_store(blob).await;
        layers.extend(self.take_early(blob).await);
        let is_open = |id: &&LayerId| !layers.iter().any(|(known, _)| known == *id);
        let open = blob.layers.iter().filter(is_open);
        let open: Vec<&LayerTask> = open.filter_map(|id| self.task(id)).collect();
        if open.is_empty() {
            return StagedBlob { task: blob, layers };
        }
        let request = request_for(blob, self.plan, connections);
        match request.filter(|_| blob.source.is_none()) {
            None => layers.extend(self.stage_from_sources(open, connections).await),
            Some(request) => match self.puller.fetcher.fetch(request, &self.puller.halt).await {
                Ok(verified) => layers.extend(self.unpack_all(open, &verified).await),
                Err(error) => layers.extend(
                    open.into_iter()
                        .map(|task| (task.layer.id(), Err(TaskError::fetching(&error)))),
                ),
            },
        }
        StagedBlob { task: blob, layers }
    }

    /// In a repair, makes layers of the blob from damaged ones whose content is whole, unless the whole blob is in the spool.
    async fn copy_from_store(&self, blob: &BlobTask) -> Vec<(LayerId, Result<StagedLayer, TaskError>)> {
        let mut done = Vec::new();
        let Some(repair) = self.puller.repair.as_ref().filter(|_| blob.unspooled() > 0) else {
            return done;
        };
        for task in blob.layers.iter().filter_map(|id| self.task(id)) {
            let (repair, task, halt) = (repair.clone(), task.clone(), self.puller.halt.clone());
            let id = task.layer.id();
            let copied = self.on_unpack_thread(move || repair.stage(&task, &halt)).await;
            done.extend(copied.transpose().map(|result| (id, result)));
        }
        done
    }

    /// The layers of the blob that a prefetch has unpacked.
    async fn take_early(&self, blob: &BlobTask) -> Vec<(LayerId, Result<StagedLayer, TaskError>)> {
        let mut taken = Vec::new();
        for id in &blob.layers {
            let early = self.puller.early_layers.take(id).await;
            taken.extend(early.map(|layer| (*id, Ok(layer))));
        }
        if !taken.is_empty() {
            let (layers, blob) = (Count(taken.len(), "layer"), blob.digest);
            tracing::debug!(%blob, "a prefetch unpacked {layers} of this blob");
        }
        taken
    }

    async fn unpack_all(
        &self,
        tasks: Vec<&'a LayerTask>,
        blob: &VerifiedBlob,
    ) -> Vec<(LayerId, Result<StagedLayer, TaskError>)> {
        let unpacks = tasks
            .into_iter()
            .map(|task| async { (task.layer.id(), self.unpack(task, blob).await) });
        unpacks.collect::<FuturesUnordered<_>>().collect().await
    }

    pub(super) async fn unpack(
        &self,
        task: &LayerTask,
        blob: &VerifiedBlob,
    ) -> Result<StagedLayer, TaskError> {
        let Puller {
            unpacker,
            budget,
            staged_layers,
            ..
        } = self.puller;
        let (layer, estimate) = (task.layer.clone(), task.tar.bytes());
        let staged = unpacker
            .unpack(layer, estimate, blob.clone(), Arc::clone(budget))
            .await?;
        if let Some(staged_layers) = staged_layers {
            staged_layers.send(&staged).map_err(TaskError::storing)?;
        }
        Ok(staged)
    }

    /// Runs `work` on an unpacking thread.
    pub(super) async fn on_unpack_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, TaskError> + Send + 'static,
    ) -> Result<T, TaskError> {
        self.puller.unpacker.on_thread(work).await
    }
}
