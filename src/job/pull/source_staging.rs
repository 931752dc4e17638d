//! Stages layers from their sources: tries one after the other, and finally the whole blob.
//!
//! A source is untrusted, and what it reads may change at any time. So it never fails an image, unless the disk has no space
//! for the whole blob. Only what would stop a pull without sources too stops it here: a stop, a full disk, a failing disk.

use futures::stream::{FuturesUnordered, StreamExt as _};

use super::failed_sources::Failure;
use super::layer_staging::LayerStaging;
use super::scheduler::request_for_layer;
use super::sources::SourceFailure;
use crate::fetch::BlobRequest;
use crate::job::error::TaskError;
use crate::oci::{Digest, LayerId};
use crate::plan::{LayerSource, LayerTask};
use crate::report::Event;
use crate::store::StagedLayer;

/// A source that could not be used.
struct SourceFault {
    source: LayerSource,
    reason: String,
    /// Bytes that were downloaded for it and not used.
    bytes: u64,
}

impl<'a> LayerStaging<'a> {
    /// Stages `layers` that share a source, each from the first of its sources that works, or else from its whole blob.
    pub(super) async fn stage_from_sources(
        &self,
        layers: Vec<&'a LayerTask>,
        connections: usize,
    ) -> Vec<(LayerId, Result<StagedLayer, TaskError>)> {
        let stage = layers.iter().map(|task| async {
            let staged = self.stage_from_sources_of(task, connections).await;
            (task.layer.id(), staged)
        });
        let staged = stage.collect::<FuturesUnordered<_>>().collect().await;
        // After all layers, because several may be made from one delta. What was not downloaded completely stays for the next
        // run.
        for source in layers.iter().flat_map(|task| &task.sources) {
            if self.puller.failed_sources.failure(source) == Some(Failure::Application)
                && let Some(blob) = source.spooled_blob()
                && let Err(error) = self.puller.spool.remove(&blob)
            {
                tracing::warn!("{source} cannot be used, and stays in the spool: {error}");
            }
        }
        staged
    }

    async fn stage_from_sources_of(
        &self,
        task: &LayerTask,
        connections: usize,
    ) -> Result<StagedLayer, TaskError> {
        let failed = &self.puller.failed_sources;
        let mut fault = None;
        loop {
            let source = task
                .sources
                .iter()
                .find(|source| failed.failure(source).is_none());
            let (blob, size) = source.map_or((task.layer.blob, task.layer.size), LayerSource::download);
            // The plan has space for the first source only.
            let needs_space = source.is_none_or(|source| source.spooled_blob().is_some());
            let is_planned = !needs_space || (blob, size) == task.download();
            let has_space = match is_planned {
                true => Ok(()),
                false => self.fallback_space.reserve(blob, size),
            };
            let is_on_medium = source.is_none() && self.is_on_medium(blob, size).await;
            if let Some(fault) = fault.take() {
                self.report_failed(task, fault, source, is_on_medium, has_space.is_ok());
            }
            has_space?;
            let Some(source) = source else {
                let request = BlobRequest {
                    is_on_medium,
                    ..request_for_layer(task, self.plan, connections)
                };
                return match self.puller.fetcher.fetch(request, &self.puller.halt).await {
                    Ok(verified) => self.unpack(task, &verified).await,
                    Err(error) => Err(TaskError::fetching(&error)),
                };
            };
            match self.stage_from_source(source, task, connections).await {
                Ok(staged) => {
                    self.report_used(task, source);
                    return Ok(staged);
                }
                Err(SourceFailure::Task(error)) => return Err(error),
                Err(SourceFailure::Unusable { reason, bytes }) => {
                    let failure = match bytes {
                        0 => Failure::Download,
                        _ => Failure::Application,
                    };
                    failed.add(source, failure);
                    fault = Some(SourceFault {
                        source: source.clone(),
                        reason,
                        bytes,
                    });
                }
            }
        }
    }

    /// Whether the blob is copied from a medium.
    async fn is_on_medium(&self, blob: Digest, size: u64) -> bool {
        let registries = self.puller.fetcher.registries();
        let found = registries.in_media(move |media| media.blobs(blob).iter().any(|it| it.size() == size));
        found.await
    }

    fn report_used(&self, task: &LayerTask, source: &LayerSource) {
        let Some(name) = self.first_image(task) else {
            return;
        };
        let event = match source {
            LayerSource::Stored(_) => Some(Event::LayerCopied {
                blob: task.layer.blob,
                bytes: task.layer.size,
            }),
            LayerSource::MediumTar(_) => None,
            LayerSource::Delta(option) => option.sources.first().map(|old| Event::DeltaApplied {
                name,
                delta: option.delta.blob,
                source: old.config,
                bytes: option.delta.size,
                whole_bytes: task.layer.size,
            }),
            LayerSource::Chunked(option) => Some(Event::ChunksUsed {
                name,
                blob: option.blob,
                bytes: option.bytes,
                whole_bytes: task.layer.size,
            }),
        };
        if let Some(event) = event {
            self.puller.observer.observe(event);
        }
    }

    /// Reports that a source failed, and counts what is downloaded instead: for `next`, or the whole blob, if there is space
    /// for it and no medium has it.
    fn report_failed(
        &self,
        task: &LayerTask,
        fault: SourceFault,
        next: Option<&LayerSource>,
        is_on_medium: bool,
        has_space: bool,
    ) {
        let SourceFault {
            source,
            reason,
            bytes,
        } = fault;
        let (instead, more_bytes) = match next {
            Some(next) if next.spooled_blob().is_none() => (next.to_string(), 0),
            Some(next) => (next.to_string(), next.download().1),
            None if is_on_medium => ("the whole blob on a medium".to_owned(), 0),
            None => ("the whole blob".to_owned(), task.layer.size),
        };
        let (consequence, more_bytes) = match (has_space, more_bytes) {
            (true, 0) => (format!("using {instead} instead"), 0),
            (true, more_bytes) => (format!("downloading {instead} instead"), more_bytes),
            (false, _) => (format!("and there is not enough disk space for {instead}"), 0),
        };
        self.count_fallback(more_bytes);
        let Some(name) = self.first_image(task) else {
            return;
        };
        self.puller.observer.observe(Event::SourceFailed {
            name,
            source: source.download().0,
            reason: format!("cannot use {source}, {consequence}: {reason}"),
            bytes,
            more_bytes,
        });
    }

    /// The name of the first image that needs the layer.
    fn first_image(&self, task: &LayerTask) -> Option<String> {
        let image = self.plan.images.get(*task.images.first()?)?;
        Some(image.reference.to_string())
    }
}
