//! Unpacks layers on a bounded number of threads, for all pulls of a run and the prefetches beside them.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::error::{JobError, TaskError};
use crate::cancel::Cancel;
use crate::oci::Layer;
use crate::priority::IoPriority;
use crate::spool::VerifiedBlob;
use crate::store::unpack::{SpaceBudget, UnpackLimits, unpack};
use crate::store::{Stage, StagedLayer};
use crate::write_back;

/// The stage of a run, and its threads.
#[derive(Clone)]
pub(super) struct Unpacker {
    pub(super) stage: Arc<Stage>,
    halt: Cancel,
    disk_priority: IoPriority,
    threads: Arc<Semaphore>,
}

impl Unpacker {
    /// At most `max_unpacks` threads; `halt` stops them.
    pub(super) fn new(
        stage: Arc<Stage>,
        max_unpacks: usize,
        disk_priority: IoPriority,
        halt: Cancel,
    ) -> Self {
        Self {
            stage,
            halt,
            disk_priority,
            threads: Arc::new(Semaphore::new(max_unpacks)),
        }
    }

    /// Unpacks a layer from its blob. `estimate` is the expected length of its tar; `budget` has space for more.
    pub(super) async fn unpack(
        &self,
        layer: Layer,
        estimate: u64,
        blob: VerifiedBlob,
        budget: Arc<SpaceBudget>,
    ) -> Result<StagedLayer, TaskError> {
        let (stage, halt) = (Arc::clone(&self.stage), self.halt.clone());
        self.on_thread(move || {
            let file = blob.open().map_err(|error| TaskError::Host(error.into()))?;
            let staging = stage.layer(layer).map_err(TaskError::storing)?;
            let diff = staging.open_diff().map_err(TaskError::storing)?;
            let tar_split = staging.create_tar_split().map_err(TaskError::storing)?;
            let limits = UnpackLimits::estimated(estimate, &budget);
            let unpacked = unpack(
                &file,
                diff.as_fd(),
                &tar_split,
                limits,
                staging.write_queue(),
                &halt,
            )
            .map_err(|error| TaskError::unpacking(blob.digest(), error))?;
            // Frees the page cache now: the file stays in the spool until the image's other blobs have arrived.
            write_back::forget(&file);
            staging.finish(unpacked).map_err(TaskError::storing)
        })
        .await
    }

    /// Runs `work` on a blocking thread with the configured disk priority, when a thread is free.
    pub(super) async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, TaskError> + Send + 'static,
    ) -> Result<T, TaskError> {
        let Ok(_permit) = self.threads.acquire().await else {
            return Err(TaskError::Stopped);
        };
        let priority = self.disk_priority;
        let done = tokio::task::spawn_blocking(move || {
            let _lowered = priority.lower();
            work()
        });
        done.await
            .unwrap_or_else(|panic| Err(TaskError::Host(JobError::Panicked(panic.to_string()))))
    }
}
