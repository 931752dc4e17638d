//! Makes a layer from a delta: downloads it, makes the layer's tar from it and from files of old images, and unpacks the tar.

use std::sync::Arc;
use std::time::Duration;

use super::SourceFailure;
use super::source_unpack::SourceUnpack;
use crate::delta::{DeltaOption, PatchError, PatchedTar};
use crate::fetch::{BlobRequest, FetchError};
use crate::job::error::{JobError, TaskError};
use crate::job::pull::Puller;
use crate::job::pull::layer_staging::LayerStaging;
use crate::plan::LayerTask;
use crate::registry::Kind;
use crate::spool::VerifiedBlob;
use crate::store::{OldImageFiles, StagedLayer};
use crate::write_back;

/// How long the registry of the whole blob may take to answer, after that of the delta failed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

impl LayerStaging<'_> {
    /// Downloads and applies one delta.
    pub(super) async fn stage_from_delta(
        &self,
        option: &Arc<DeltaOption>,
        task: &LayerTask,
        connections: usize,
    ) -> Result<StagedLayer, SourceFailure> {
        let fetched = self.fetch_delta(option, task, connections).await;
        let verified = fetched.map_err(|error| SourceFailure::of(TaskError::fetching(&error), 0))?;
        if let Err(error) = verified.note_layer(task.layer.id()) {
            tracing::debug!("a delta may stay in the spool if this run is killed: {error}");
        }
        let Ok(_permit) = self.patches.acquire().await else {
            return Err(SourceFailure::Task(TaskError::Stopped));
        };
        let bytes = option.delta.size;
        match self.patch(task, option, &verified).await {
            Ok(Ok(staged)) => Ok(staged),
            Ok(Err(reason)) => Err(SourceFailure::Unusable { reason, bytes }),
            Err(error) => Err(SourceFailure::of(error, bytes)),
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
                is_on_medium: false,
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
        let (store, inventory) = (Arc::clone(&puller.store), Arc::clone(&puller.inventory));
        let (objects, option) = (puller.ostree_objects.clone(), Arc::clone(option));
        let (unpack, blob) = (SourceUnpack::new(puller, task), blob.clone());
        self.on_unpack_thread(move || {
            let delta = match blob.open() {
                Ok(delta) => delta,
                // Another layer that failed with it may have removed it.
                Err(error) => return Ok(Err(error.to_string())),
            };
            let again = delta
                .try_clone()
                .map_err(|error| TaskError::Host(JobError::Local(error.to_string())))?;
            let (stage, budget) = (Arc::clone(&unpack.stage), Arc::clone(&unpack.budget));
            let sources = OldImageFiles::new(store, &inventory, stage, budget, &objects, &option.sources);
            let tar = match PatchedTar::open(again, option.delta.format, Box::new(sources), &unpack.halt) {
                Ok(tar) => tar,
                Err(PatchError::Stopped(_)) => return Err(TaskError::Stopped),
                Err(error) => return Ok(Err(error.to_string())),
            };
            let is_authenticated = unpack.task.authenticated;
            let staged = unpack.unpack(tar, |staged| staged.with_unseen_blob(is_authenticated));
            write_back::forget(&delta);
            staged
        })
        .await
    }
}
