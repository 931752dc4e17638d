//! Stages layers from deltas: downloads a delta, makes the layer's tar from it and from files of old images, and unpacks it.
//!
//! A delta is untrusted, and its sources may change at any time. After a fault of either, the next delta of the layer is used,
//! and finally the whole blob: a delta never fails an image, unless the disk has no space for the whole blob.
//! Only what would stop a pull without deltas too stops it here: a stop, a full disk, a failing disk.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};

use super::Puller;
use super::failed_deltas::Failure;
use super::layer_staging::LayerStaging;
use super::scheduler::request_for_layer;
use crate::delta::{DeltaOption, PatchError, PatchedTar};
use crate::fetch::{BlobRequest, FetchError};
use crate::job::error::{JobError, TaskError};
use crate::oci::{Digest, LayerId};
use crate::plan::LayerTask;
use crate::registry::Kind;
use crate::report::Event;
use crate::spool::VerifiedBlob;
use crate::store::unpack::{Fault, UnpackError, UnpackLimits, unpack};
use crate::store::{OldImageFiles, StagedLayer, StoreError};
use crate::write_back;

/// How long the registry of the whole blob may take to answer, after that of the delta failed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Why a delta could not be used.
enum DeltaFailure {
    /// A fault of the delta or of its sources.
    Unusable {
        reason: String,
        /// Bytes of the delta that were downloaded and not used.
        bytes: u64,
    },
    /// The pull ends.
    Task(TaskError),
}

/// A delta that could not be used.
struct DeltaFault {
    delta: Digest,
    reason: String,
    /// Bytes of it that were downloaded and not used.
    bytes: u64,
}

impl DeltaFailure {
    /// For an error after `bytes` of the delta were downloaded.
    fn of(error: TaskError, bytes: u64) -> Self {
        let unusable = |reason| Self::Unusable { reason, bytes };
        match error {
            TaskError::Image(reason) => unusable(reason.message),
            TaskError::Host(error @ JobError::Panicked(_)) => unusable(error.to_string()),
            other => Self::Task(other),
        }
    }
}

impl<'a> LayerStaging<'a> {
    /// Stages `layers` of a blob that is a delta, each from the first of its deltas that works, or else from its whole blob.
    pub(super) async fn stage_from_deltas(
        &self,
        layers: Vec<&'a LayerTask>,
        connections: usize,
    ) -> Vec<(LayerId, Result<StagedLayer, TaskError>)> {
        let stage = layers
            .iter()
            .map(|task| async { (task.layer.id(), self.stage_from_delta(task, connections).await) });
        let staged = stage.collect::<FuturesUnordered<_>>().collect().await;
        // After all layers, because several may be made from one delta. What was not downloaded completely stays for the next
        // run.
        for option in layers.iter().flat_map(|task| &task.deltas) {
            if self.puller.failed_deltas.failure(option) == Some(Failure::Application)
                && let Err(error) = self.puller.spool.remove(&option.delta.blob)
            {
                tracing::warn!("a delta that cannot be used stays in the spool: {error}");
            }
        }
        staged
    }

    async fn stage_from_delta(&self, task: &LayerTask, connections: usize) -> Result<StagedLayer, TaskError> {
        let failed = &self.puller.failed_deltas;
        let mut fault = None;
        loop {
            let option = task.deltas.iter().find(|option| failed.failure(option).is_none());
            let (blob, size) = match option {
                Some(option) => (option.delta.blob, option.delta.size),
                None => (task.layer.blob, task.layer.size),
            };
            // The plan has space for the first delta only.
            let has_space = match (blob, size) == task.download() {
                true => Ok(()),
                false => self.fallback_space.reserve(blob, size),
            };
            if let Some(fault) = fault.take() {
                self.report_failed(task, fault, option, has_space.is_ok());
            }
            has_space?;
            let Some(option) = option else {
                let request = request_for_layer(task, self.plan, connections);
                return match self.puller.fetcher.fetch(request, &self.puller.halt).await {
                    Ok(verified) => self.unpack(task, &verified).await,
                    Err(error) => Err(TaskError::fetching(&error)),
                };
            };
            match self.apply(option, task, connections).await {
                Ok(staged) => {
                    self.report_applied(task, option);
                    return Ok(staged);
                }
                Err(DeltaFailure::Task(error)) => return Err(error),
                Err(DeltaFailure::Unusable { reason, bytes }) => {
                    let failure = match bytes {
                        0 => Failure::Download,
                        _ => Failure::Application,
                    };
                    failed.add(option, failure);
                    let delta = option.delta.blob;
                    fault = Some(DeltaFault { delta, reason, bytes });
                }
            }
        }
    }

    fn report_applied(&self, task: &LayerTask, option: &DeltaOption) {
        let (Some(name), Some(source)) = (self.first_image(task), option.sources.first()) else {
            return;
        };
        self.puller.observer.observe(Event::DeltaApplied {
            name,
            delta: option.delta.blob,
            source: source.config,
            bytes: option.delta.size,
            whole_bytes: task.layer.size,
        });
    }

    /// Reports that a delta failed, and counts what is downloaded instead: `next` or the whole blob, if there is space for it.
    fn report_failed(
        &self,
        task: &LayerTask,
        fault: DeltaFault,
        next: Option<&Arc<DeltaOption>>,
        has_space: bool,
    ) {
        let DeltaFault { delta, reason, bytes } = fault;
        let (instead, more_bytes) = match next {
            Some(next) => (format!("the delta `{}`", next.delta.blob), next.delta.size),
            None => ("the whole blob".to_owned(), task.layer.size),
        };
        let (consequence, more_bytes) = match has_space {
            true => (format!("downloading {instead} instead"), more_bytes),
            false => (format!("and there is not enough disk space for {instead}"), 0),
        };
        self.count_fallback(more_bytes);
        let Some(name) = self.first_image(task) else {
            return;
        };
        self.puller.observer.observe(Event::DeltaFailed {
            name,
            delta,
            reason: format!("cannot use the delta `{delta}`, {consequence}: {reason}"),
            bytes,
            more_bytes,
        });
    }

    /// The name of the first image that needs the layer.
    fn first_image(&self, task: &LayerTask) -> Option<String> {
        let image = self.plan.images.get(*task.images.first()?)?;
        Some(image.reference.to_string())
    }

    /// Downloads and applies one delta.
    async fn apply(
        &self,
        option: &Arc<DeltaOption>,
        task: &LayerTask,
        connections: usize,
    ) -> Result<StagedLayer, DeltaFailure> {
        let fetched = self.fetch_delta(option, task, connections).await;
        let verified = fetched.map_err(|error| DeltaFailure::of(TaskError::fetching(&error), 0))?;
        if let Err(error) = verified.note_layer(task.layer.id()) {
            tracing::debug!("a delta may stay in the spool if this run is killed: {error}");
        }
        let Ok(_permit) = self.patches.acquire().await else {
            return Err(DeltaFailure::Task(TaskError::Stopped));
        };
        let bytes = option.delta.size;
        match self.patch(task, option, &verified).await {
            Ok(Ok(staged)) => Ok(staged),
            Ok(Err(reason)) => Err(DeltaFailure::Unusable { reason, bytes }),
            Err(error) => Err(DeltaFailure::of(error, bytes)),
        }
    }

    /// Downloads a delta. Gives up if its registries fail all the time, unless those of the whole blob fail too: then the link
    /// is down, and the delta is still the smaller download.
    async fn fetch_delta(
        &self,
        option: &DeltaOption,
        task: &LayerTask,
        connections: usize,
    ) -> Result<VerifiedBlob, FetchError> {
        let Puller { fetcher, halt, .. } = self.puller;
        let image = task.images.first().and_then(|index| self.plan.images.get(*index));
        loop {
            let request = BlobRequest {
                digest: option.delta.blob,
                size: option.delta.size,
                images: vec![option.repository.clone()],
                connections,
                is_optional: true,
            };
            match (fetcher.fetch(request, halt).await, image) {
                (Err(error), Some(image))
                    if error.kind() == Kind::Network
                        && !fetcher.is_reachable(&image.reference, ANSWER_TIMEOUT, halt).await => {}
                (fetched, _) => return fetched,
            }
            halt.check()?;
        }
    }

    /// Unpacks the tar that the delta makes. The inner error is a fault of the delta or of its sources.
    async fn patch(
        &self,
        task: &LayerTask,
        option: &Arc<DeltaOption>,
        blob: &VerifiedBlob,
    ) -> Result<Result<StagedLayer, String>, TaskError> {
        let puller = self.puller;
        let (store, stage) = (Arc::clone(&puller.store), Arc::clone(&puller.stage));
        let (inventory, objects) = (Arc::clone(&puller.inventory), puller.ostree_objects.clone());
        let (budget, halt) = (Arc::clone(&puller.budget), puller.halt.clone());
        let (staged_layers, option) = (puller.staged_layers.clone(), Arc::clone(option));
        let (task, blob) = (task.clone(), blob.clone());
        self.on_unpack_thread(move || {
            let delta = match blob.open() {
                Ok(delta) => delta,
                // Another layer that failed with it may have removed it.
                Err(error) => return Ok(Err(error.to_string())),
            };
            let again = delta
                .try_clone()
                .map_err(|error| TaskError::Host(JobError::Local(error.to_string())))?;
            let sources = OldImageFiles::new(
                store,
                &inventory,
                Arc::clone(&stage),
                Arc::clone(&budget),
                &objects,
                &option.sources,
            );
            let tar = match PatchedTar::open(again, option.delta.format, Box::new(sources), &halt) {
                Ok(tar) => tar,
                Err(PatchError::Stopped(_)) => return Err(TaskError::Stopped),
                Err(error) => return Ok(Err(error.to_string())),
            };
            let staging = stage.layer(task.layer.clone()).map_err(TaskError::storing)?;
            let diff = staging.open_diff().map_err(TaskError::storing)?;
            let tar_split = staging.create_tar_split().map_err(TaskError::storing)?;
            let limits = UnpackLimits::for_delta(task.tar.bytes(), &budget);
            let unpacked = match unpack(tar, diff.as_fd(), &tar_split, limits, &halt) {
                Ok(unpacked) => unpacked,
                Err(error) if stops_the_pull(&error) => {
                    return Err(TaskError::unpacking(blob.digest(), error));
                }
                Err(error) => return Ok(Err(reason_of(&error))),
            };
            write_back::forget(&delta);
            let staged = match staging.finish(unpacked) {
                Ok(staged) => staged.made_from_delta(task.authenticated),
                Err(error @ StoreError::ContentMismatch { .. }) => return Ok(Err(error.to_string())),
                Err(error) => return Err(TaskError::storing(error)),
            };
            if let Some(staged_layers) = staged_layers {
                staged_layers.send(&staged).map_err(TaskError::storing)?;
            }
            Ok(Ok(staged))
        })
        .await
    }
}

/// The fault of the delta or of a source, if that is the cause.
fn reason_of(error: &UnpackError) -> String {
    let cause = match error {
        UnpackError::Content {
            fault: Fault::Compression { source, .. },
            ..
        }
        | UnpackError::Host { source, .. } => PatchError::of(source),
        _ => None,
    };
    cause.map_or_else(|| error.to_string(), ToString::to_string)
}

/// Whether the error would stop the unpacking of the whole blob too.
fn stops_the_pull(error: &UnpackError) -> bool {
    matches!(error, UnpackError::Stopped(_)) || error.is_no_space() || error.is_broken_disk()
}
