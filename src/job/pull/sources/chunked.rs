//! Makes a layer from chunks: downloads some ranges of the layer's blob, and makes its tar from them and from files of stored
//! images.
//!
//! If that fails, the whole blob continues with the downloaded ranges, unless they themselves may be wrong.

use std::sync::Arc;

use super::SourceFailure;
use super::source_unpack::SourceUnpack;
use crate::job::error::TaskError;
use crate::job::pull::layer_staging::LayerStaging;
use crate::job::pull::scheduler::request_for_layer;
use crate::plan::LayerTask;
use crate::spool::BlobParts;
use crate::store::{OldImageFiles, StagedLayer};
use crate::zstd_chunked::{ChunkedError, ChunkedOption, ChunkedTar};

/// Why no layer was made.
struct Fault {
    reason: String,
    /// A file of this node is the reason.
    is_local: bool,
}

impl LayerStaging<'_> {
    /// Downloads the chunks that this node lacks, and makes the layer.
    pub(super) async fn stage_from_chunks(
        &self,
        option: &Arc<ChunkedOption>,
        task: &LayerTask,
    ) -> Result<StagedLayer, SourceFailure> {
        let request = request_for_layer(task, self.plan, 1);
        let fetched = self
            .puller
            .fetcher
            .fetch_ranges(request, &option.ranges, &self.puller.halt);
        let parts = fetched
            .await
            .map_err(|error| SourceFailure::of(TaskError::fetching(&error), 0))?;
        let Ok(_permit) = self.patches.acquire().await else {
            return Err(SourceFailure::Task(TaskError::Stopped));
        };
        match self.assemble(task, option, parts).await {
            Ok(Ok(staged)) => Ok(staged),
            Ok(Err(Fault {
                reason,
                is_local: true,
            })) => Err(SourceFailure::Unusable { reason, bytes: 0 }),
            Ok(Err(Fault { reason, .. })) => {
                if let Err(error) = self.puller.spool.remove(&option.blob) {
                    tracing::warn!("wrong chunks stay in the spool: {error}");
                }
                let bytes = option.bytes;
                Err(SourceFailure::Unusable { reason, bytes })
            }
            Err(error) => Err(SourceFailure::of(error, 0)),
        }
    }

    /// Unpacks the tar that the chunks and the files make.
    async fn assemble(
        &self,
        task: &LayerTask,
        option: &Arc<ChunkedOption>,
        parts: BlobParts,
    ) -> Result<Result<StagedLayer, Fault>, TaskError> {
        let puller = self.puller;
        let (store, inventory) = (Arc::clone(&puller.store), Arc::clone(&puller.inventory));
        let (unpack, option) = (SourceUnpack::new(puller, task), Arc::clone(option));
        self.on_unpack_thread(move || {
            let files = OldImageFiles::in_store(store, &inventory, &option.images);
            let mut tar = match ChunkedTar::open(&option, parts, Box::new(files), &unpack.halt) {
                Ok(tar) => tar,
                Err(ChunkedError::Stopped(_)) => return Err(TaskError::Stopped),
                Err(error) => {
                    let (reason, is_local) = (error.to_string(), false);
                    return Ok(Err(Fault { reason, is_local }));
                }
            };
            let is_authenticated = unpack.task.authenticated;
            let staged = unpack.unpack(&mut tar, |staged| staged.with_unseen_blob(is_authenticated))?;
            let is_local = tar.has_changed_file();
            Ok(staged.map_err(|reason| Fault { reason, is_local }))
        })
        .await
    }
}
