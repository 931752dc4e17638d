//! Makes layers from sources other than their whole blobs, one kind of source in each file.
//!
//! A source may be wrong in any way, and what it reads may change at any time. Its fault is [`SourceFailure::Unusable`]; only
//! what would stop the unpacking of the whole blob too is [`SourceFailure::Task`].

mod chunked;
mod delta;
mod medium_tar;
mod source_unpack;
mod stored_layer;

use super::layer_staging::LayerStaging;
use crate::job::error::{JobError, TaskError};
use crate::plan::{LayerSource, LayerTask};
use crate::store::StagedLayer;

/// Why a source could not be used.
pub(super) enum SourceFailure {
    /// A fault of the source, or of what it reads.
    Unusable {
        reason: String,
        /// Bytes that were downloaded for it and not used.
        bytes: u64,
    },
    /// The pull ends.
    Task(TaskError),
}

impl SourceFailure {
    /// For an error after `bytes` were downloaded.
    fn of(error: TaskError, bytes: u64) -> Self {
        let unusable = |reason| Self::Unusable { reason, bytes };
        match error {
            TaskError::Image(reason) => unusable(reason.message),
            TaskError::Host(error @ JobError::Panicked(_)) => unusable(error.to_string()),
            other => Self::Task(other),
        }
    }
}

impl LayerStaging<'_> {
    /// Stages a layer from one source.
    pub(super) async fn stage_from_source(
        &self,
        source: &LayerSource,
        task: &LayerTask,
        connections: usize,
    ) -> Result<StagedLayer, SourceFailure> {
        match source {
            LayerSource::Stored(layer) => self.stage_from_stored_layer(layer, task).await,
            LayerSource::MediumTar(tar) => self.stage_from_medium_tar(tar, task).await,
            LayerSource::Delta(option) => self.stage_from_delta(option, task, connections).await,
            LayerSource::Chunked(option) => self.stage_from_chunks(option, task).await,
        }
    }
}
