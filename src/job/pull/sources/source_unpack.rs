//! Unpacks the tar that a source makes, and tells a fault of the source from one of the host.

use std::io::{Read, Seek};
use std::os::fd::AsFd as _;
use std::sync::Arc;

use crate::cancel::Cancel;
use crate::delta::PatchError;
use crate::job::error::TaskError;
use crate::job::prefetch::StagedLayers;
use crate::job::pull::Puller;
use crate::plan::LayerTask;
use crate::store::unpack::{Fault, SpaceBudget, UnpackError, UnpackLimits, unpack};
use crate::store::{Stage, StagedLayer, StoreError};
use crate::zstd_chunked::ChunkedError;

/// What a thread needs to unpack one layer from a source.
pub(super) struct SourceUnpack {
    pub(super) task: LayerTask,
    pub(super) stage: Arc<Stage>,
    pub(super) budget: Arc<SpaceBudget>,
    pub(super) halt: Cancel,
    staged_layers: Option<StagedLayers>,
}

impl SourceUnpack {
    pub(super) fn new(puller: &Puller, task: &LayerTask) -> Self {
        Self {
            task: task.clone(),
            stage: Arc::clone(&puller.unpacker.stage),
            budget: Arc::clone(&puller.budget),
            halt: puller.halt.clone(),
            staged_layers: puller.staged_layers.clone(),
        }
    }

    /// Unpacks `tar`, whose bytes nobody has verified. `finish` completes the layer after its diffID matched. The inner error
    /// is a fault of the source.
    pub(super) fn unpack(
        self,
        tar: impl Read + Seek,
        finish: impl FnOnce(StagedLayer) -> StagedLayer,
    ) -> Result<Result<StagedLayer, String>, TaskError> {
        let layer = &self.task.layer;
        let staging = self.stage.layer(layer.clone()).map_err(TaskError::storing)?;
        let diff = staging.open_diff().map_err(TaskError::storing)?;
        let tar_split = staging.create_tar_split().map_err(TaskError::storing)?;
        let limits = UnpackLimits::for_source(self.task.tar.bytes(), &self.budget);
        let unpacked = match unpack(
            tar,
            diff.as_fd(),
            &tar_split,
            limits,
            staging.write_queue(),
            &self.halt,
        ) {
            Ok(unpacked) => unpacked,
            Err(error) if stops_the_pull(&error) => return Err(TaskError::unpacking(layer.blob, error)),
            Err(error) => return Ok(Err(reason_of(&error))),
        };
        let staged = match staging.finish(unpacked) {
            Ok(staged) => finish(staged),
            Err(error @ StoreError::ContentMismatch { .. }) => return Ok(Err(error.to_string())),
            Err(error) => return Err(TaskError::storing(error)),
        };
        if let Some(staged_layers) = self.staged_layers {
            staged_layers.send(&staged).map_err(TaskError::storing)?;
        }
        Ok(Ok(staged))
    }
}

/// The fault of the source, or of the files that it reads, if that is the cause.
fn reason_of(error: &UnpackError) -> String {
    match error {
        // The tar is not compressed: this is the error of its reader.
        UnpackError::Content {
            fault: Fault::Compression { source, .. },
            ..
        } => source.to_string(),
        UnpackError::Host { source, .. } => {
            let patch = PatchError::of(source).map(ToString::to_string);
            let fault = patch.or_else(|| Some(ChunkedError::of(source)?.to_string()));
            fault.unwrap_or_else(|| error.to_string())
        }
        _ => error.to_string(),
    }
}

/// Whether the error would stop the unpacking of the whole blob too.
fn stops_the_pull(error: &UnpackError) -> bool {
    matches!(error, UnpackError::Stopped(_)) || error.is_no_space() || error.is_broken_disk()
}
