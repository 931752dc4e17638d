//! Finds layers in the format `zstd:chunked` of which this node has many files, and decides which of their chunks it lacks.
//!
//! ```text
//! manifests ─→ layers with a TOC ─ spool or registry ─→ TOC, tar-split ─ files of stored images ─→ ChunkedOption*
//! ```
//!
//! The TOC and the tar-split of a blob have one or two percent of its bytes. They are kept in the spool, so they are downloaded
//! once, also if the whole blob is needed in the end. A run without a locked spool, as `plan`, downloads them again.
//!
//! Chunks only save bytes: every error means that the whole blob is downloaded, and a registry that ignores ranges or fails is
//! not asked again.

mod local_files;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};

use super::config::JobConfig;
use super::error::JobError;
use super::node_storage::NodeStorage;
use super::run_blocking;
use super::snapshot::Snapshot;
use crate::cancel::Cancel;
use crate::oci::{Digest, ImageId, Layer, Reference, ResolvedImage};
use crate::plan::{ImageAction, ImageToPlan, Present};
use crate::priority::IoPriority;
use crate::registry::Registries;
use crate::report::Count;
use crate::spool::{Spool, SpoolError};
use crate::zstd_chunked::{ChunkedLayer, ChunkedOption, Metadata};
use local_files::LocalFiles;

/// A smaller blob arrives in the time of a few requests.
const MIN_SIZE: u64 = 1 << 20;

/// A TOC is used if it and the tar-split have at most this part of the blob.
const MAX_METADATA_SHARE: u64 = 4;

/// How many TOCs are downloaded at the same time; each is in memory.
const CONCURRENCY: usize = 4;

/// How long a registry may take for the TOC and the tar-split, and for each of their mebibytes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
const TIMEOUT_PER_MIB: Duration = Duration::from_secs(30);

/// The layers that were found so far.
pub(super) struct ChunkedLayers {
    registries: Arc<Registries>,
    spool: PathBuf,
    is_enabled: bool,
    /// The disk priority of the threads that read files.
    priority: IoPriority,
    /// The blobs that were examined, each once in a run.
    examined: HashSet<Digest>,
    found: HashMap<Digest, Found>,
    /// Registries that do not send ranges.
    without_ranges: Mutex<HashSet<String>>,
}

/// A layer of which this node has many files.
struct Found {
    option: Arc<ChunkedOption>,
    /// Bytes of the blob that were added to the spool.
    spooled: u64,
}

/// A layer that may be found.
#[derive(Clone)]
struct Candidate {
    layer: Layer,
    metadata: Metadata,
    /// An image that contains it.
    reference: Reference,
}

impl ChunkedLayers {
    /// For a run with this configuration.
    pub(super) fn new(registries: Arc<Registries>, config: &JobConfig) -> Self {
        Self {
            registries,
            spool: config.spool.clone(),
            is_enabled: config.deltas.is_some(),
            priority: config.disk_priority,
            examined: HashSet::new(),
            found: HashMap::new(),
            without_ranges: Mutex::default(),
        }
    }

    /// Adds what was found to what the node has.
    pub(super) fn add_to(&self, present: &mut Present) {
        for (blob, Found { option, spooled }) in &self.found {
            present.chunked.insert(*blob, Arc::clone(option));
            // Unless the snapshot is newer.
            present.blobs.entry(*blob).or_insert(*spooled);
        }
    }

    /// Examines the missing layers of the images to pull, except those with deltas and those whose content is here.
    pub(super) async fn find(
        &mut self,
        images: &[ImageToPlan],
        present: &Present,
        snapshot: &Snapshot,
        storage: &NodeStorage<'_>,
        cancel: &Cancel,
    ) -> Result<(), JobError> {
        let candidates = self.candidates(images, present);
        let targets: HashSet<ImageId> = images
            .iter()
            .filter_map(|image| Some(pulled(image)?.id()))
            .collect();
        let files = LocalFiles::new(storage.store(), &snapshot.inventory, &targets);
        if candidates.is_empty() || files.is_empty() {
            return Ok(());
        }
        self.examined
            .extend(candidates.iter().map(|candidate| candidate.layer.blob));
        let search = Search {
            files,
            spool: storage.locked_spool().cloned(),
            priority: self.priority,
            cancel: cancel.clone(),
        };
        let turn = tokio::sync::Mutex::new(());
        let (this, search, turn) = (&*self, &search, &turn);
        let examined = stream::iter(candidates).map(async |candidate: Candidate| {
            let bytes = this.metadata(&candidate, cancel).await?;
            // One at a time, because a TOC needs memory, and the disk gets no faster.
            let _turn = turn.lock().await;
            let (blob, search) = (candidate.layer.blob, search.clone());
            let found = run_blocking(move || Ok(search.examine(&candidate, bytes))).await;
            found.transpose().map(|found| found.map(|found| (blob, found)))
        });
        let found: Vec<_> = examined.buffer_unordered(CONCURRENCY).collect().await;
        let found: HashMap<Digest, Found> = found.into_iter().flatten().collect::<Result<_, JobError>>()?;
        cancel.check()?;
        if !found.is_empty() {
            tracing::info!(
                "found many files of {}, whose other chunks suffice",
                Count(found.len(), "missing layer")
            );
        }
        self.found.extend(found);
        Ok(())
    }

    fn candidates(&self, images: &[ImageToPlan], present: &Present) -> Vec<Candidate> {
        let mut candidates: Vec<Candidate> = Vec::new();
        if !self.is_enabled {
            return candidates;
        }
        let mut seen = HashSet::new();
        for image in images {
            let Some(resolved) = pulled(image) else { continue };
            let mut metadata = Metadata::of_manifest(resolved.manifest.bytes());
            let is_missing = |layer: &&Layer| {
                let has_deltas = present
                    .deltas
                    .get(&layer.blob)
                    .is_some_and(|deltas| !deltas.is_empty());
                let is_stored = present
                    .stored
                    .get(&layer.diff_id())
                    .is_some_and(|stored| !stored.is_empty());
                let spooled = present.blobs.get(&layer.blob).copied().unwrap_or(0);
                let is_here = spooled >= layer.size || present.media.contains_key(&layer.blob);
                !present.layers.contains(&layer.id()) && !has_deltas && !is_stored && !is_here
            };
            for layer in resolved.layers.iter().filter(is_missing) {
                let Some(metadata) = metadata.remove(&layer.blob) else {
                    continue;
                };
                let is_small = metadata.length().saturating_mul(MAX_METADATA_SHARE) <= layer.size;
                let is_new = || !self.examined.contains(&layer.blob);
                if layer.size >= MIN_SIZE && is_small && is_new() && seen.insert(layer.blob) {
                    candidates.push(Candidate {
                        layer: layer.clone(),
                        metadata,
                        reference: image.reference.clone(),
                    });
                }
            }
        }
        candidates
    }

    /// The TOC and the tar-split of a blob, from the spool or the first source that sends them.
    async fn metadata(&self, candidate: &Candidate, cancel: &Cancel) -> Option<Bytes> {
        let Candidate { layer, metadata, .. } = candidate;
        let (path, blob, range) = (self.spool.clone(), layer.blob, metadata.range.clone());
        let spooled = run_blocking(move || Ok(Spool::peek(&path, &blob, range))).await;
        if let Ok(Some(spooled)) = spooled {
            return Some(spooled.into());
        }
        let mebibytes = u32::try_from(metadata.length().div_ceil(1 << 20)).unwrap_or(u32::MAX);
        let timeout = ANSWER_TIMEOUT + TIMEOUT_PER_MIB.saturating_mul(mebibytes);
        for source in self.registries.sources(&candidate.reference).ok()? {
            let registry = source.reference.domain();
            if self.without_ranges().contains(registry) {
                continue;
            }
            let range = metadata.range.clone();
            let bytes = self
                .registries
                .read_range(&source, blob, layer.size, range, cancel);
            match tokio::time::timeout(timeout, bytes).await {
                Ok(Ok(Some(bytes))) => return Some(bytes),
                Ok(Ok(None)) => tracing::debug!("`{registry}` does not support range requests"),
                Ok(Err(error)) => {
                    tracing::debug!("cannot read the table of contents of `{blob}`: {error}");
                    continue;
                }
                Err(_elapsed) => {
                    tracing::debug!("`{registry}` does not send the table of contents of `{blob}` in time")
                }
            }
            self.without_ranges().insert(registry.to_owned());
        }
        None
    }

    fn without_ranges(&self) -> MutexGuard<'_, HashSet<String>> {
        self.without_ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The image, if it is pulled.
fn pulled(image: &ImageToPlan) -> Option<&ResolvedImage> {
    match &image.action {
        ImageAction::Pull(resolved) => Some(resolved),
        ImageAction::Present | ImageAction::Failed(_) => None,
    }
}

/// What a thread needs to examine a layer.
#[derive(Clone)]
struct Search {
    files: LocalFiles,
    /// Where TOC and tar-split are kept.
    spool: Option<Spool>,
    priority: IoPriority,
    cancel: Cancel,
}

impl Search {
    /// Looks for the files of a layer. `bytes` are its TOC and its tar-split.
    fn examine(&self, candidate: &Candidate, bytes: Bytes) -> Option<Found> {
        let _lowered = self.priority.lower();
        let Candidate {
            layer,
            metadata,
            reference,
        } = candidate;
        let parsed = ChunkedLayer::parse(layer, metadata, bytes.clone(), &self.cancel);
        let parsed =
            parsed.inspect_err(|error| tracing::debug!("cannot use the chunks of `{}`: {error}", layer.blob));
        let parsed = parsed.ok()?;
        let kept = self
            .spool
            .as_ref()
            .map(|spool| keep(spool, layer, metadata, &bytes));
        if let Some(Err(error)) = &kept {
            tracing::debug!(
                "the table of contents of `{}` will be downloaded again: {error}",
                layer.blob
            );
        }
        drop(bytes);
        Some(Found {
            option: Arc::new(self.files.choose(&parsed, reference, &self.cancel)?),
            spooled: kept.and_then(Result::ok).map_or(0, |()| metadata.length()),
        })
    }
}

fn keep(spool: &Spool, layer: &Layer, metadata: &Metadata, bytes: &[u8]) -> Result<(), SpoolError> {
    let mut range = spool.range(&layer.blob, layer.size, metadata.range.start)?;
    let here = usize::try_from(range.offset() - range.start()).unwrap_or(usize::MAX);
    range.write(bytes.get(here..).unwrap_or_default())
}
