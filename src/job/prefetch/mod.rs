//! Downloads blobs for the next round into the spool, and unpacks them, while a release image is still being pulled.
//!
//! Without a prefetch the link is idle between a release image and the images that it names: while the release image's last layer is
//! unpacked and committed, and while manifests are requested; then all connections start slowly. At 100 Mbit/s and a round
//! trip of 150 ms this cost 1.6 s of a run.
//!
//! One continuous queue of blobs, without rounds, was measured as an alternative. It takes as long (59.2 s, with a prefetch
//! 57.5 s, with neither 66.6 s, for 631 MB at 100 Mbit/s and 40 ms on a busy machine, with a scatter of 5 %). But it needs a
//! second path for what rounds do anyway: verification, layers that other programs remove, late answers, space.
//!
//! ```text
//! pull of the release image ──StagedLayers─→ payload read early ─→ resolve ─→ plan ─→ space? ─→ downloads into the spool
//!          └── ReleaseFirst: the release image has the link for itself until it is nearly complete ──┘        │
//!                                                       pull of the next round ←─EarlyLayers── unpacks ←───────┘
//! ```
//!
//! Nothing depends on a prefetch. The next round takes its own snapshot, plans and checks the space as if there had been no
//! prefetch, and finds resolved images and spooled blobs. Prefetch and pull use the same [`Fetcher`], so a blob that is being
//! prefetched is not requested twice, provided that no prefetch starts after blobs began to move from the spool to the store.

mod early_layers;
mod early_payload;
mod release_first;

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::{StreamExt as _, stream};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::config::JobConfig;
use super::deltas::Deltas;
use super::error::JobError;
use super::image_states::ImageStates;
use super::media_blobs::MediaBlobs;
use super::namers::{Namer, Naming, RoundScope};
use super::node_storage::NodeStorage;
use super::pull::scheduler::{connections, request_for};
use super::release_verification::ReleaseVerification;
use super::resolve::ResolveQueue;
use super::space::SpareSpace;
use super::status::StatusReporter;
use super::stored_signatures::StoredSignatureChecker;
use super::unpacker::Unpacker;
use super::{Mode, space};
use crate::cancel::Cancel;
use crate::fetch::{BlobRequest, Fetcher};
use crate::image_request::{ImageRequest, dedupe};
use crate::oci::{Digest, Layer, Reference, ResolvedImage};
use crate::plan::{BlobTask, ImageAction, ImageToPlan, Plan, TarLength};
use crate::spool::VerifiedBlob;
use crate::zstd_chunked::Metadata;
pub(super) use early_layers::EarlyLayers;
use early_layers::EarlyUnpack;
pub(super) use early_payload::StagedLayers;
use early_payload::{EarlyPayload, StagedContents};
pub(super) use release_first::{CHECK_INTERVAL, ReleaseFirst};

/// How long a prefetch waits for the next resolved image before it starts with those that are resolved.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Prefetches during one run.
#[derive(Default)]
pub(super) struct Prefetch {
    downloads: Option<Downloads>,
    early_layers: EarlyLayers,
}

/// What a prefetch learns from the pull that it runs beside.
pub(super) struct PullProgress {
    staged: UnboundedReceiver<StagedContents>,
    /// Whether the release image has the link for itself.
    is_alone: watch::Receiver<bool>,
}

/// What a prefetch plans the next round with.
pub(super) struct NextRound<'a> {
    pub(super) config: &'a JobConfig,
    pub(super) storage: &'a NodeStorage<'a>,
    pub(super) checker: &'a StoredSignatureChecker,
    pub(super) naming: &'a Naming,
    pub(super) release_verification: Option<&'a ReleaseVerification>,
    pub(super) states: &'a ImageStates,
    pub(super) media: &'a mut MediaBlobs,
    pub(super) deltas: &'a mut Deltas,
    pub(super) tars: &'a HashMap<Digest, TarLength>,
    pub(super) queue: &'a mut ResolveQueue,
    pub(super) status: &'a mut StatusReporter,
    pub(super) fetcher: Arc<Fetcher>,
    pub(super) unpacker: Unpacker,
    pub(super) halt: &'a Cancel,
}

impl Prefetch {
    /// Whether the pull of this round leaves something to prefetch.
    pub(super) fn is_useful(mode: Mode, scope: RoundScope, naming: &Naming) -> bool {
        let mut unread = naming.unread();
        mode == Mode::Run && scope == RoundScope::Namers && unread.any(|it| matches!(it, Namer::Release(_)))
    }

    /// Connects a pull to a prefetch: what the prefetch receives, and both things that the pull works with. `releases` are
    /// the release images among the plan's images, and `received` is how many bytes were downloaded before.
    pub(super) fn connect(
        plan: &Plan,
        releases: HashSet<usize>,
        received: u64,
    ) -> (PullProgress, ReleaseFirst, StagedLayers) {
        let (sender, staged) = mpsc::unbounded_channel();
        let (release_first, is_alone) = ReleaseFirst::new(&plan.blobs, releases, received);
        let progress = PullProgress { staged, is_alone };
        (progress, release_first, StagedLayers::new(sender))
    }

    /// The layers that were unpacked, for the next pull.
    pub(super) fn early_layers(&self) -> EarlyLayers {
        self.early_layers.clone()
    }

    /// Starts no more downloads and unpacks, because from now on blobs leave the spool, and would be downloaded again. Running
    /// ones continue.
    pub(super) fn start_no_more(&self) {
        if let Some(downloads) = &self.downloads {
            downloads.may_start.store(false, Ordering::Release);
        }
    }

    /// Waits for a pull, and prefetches for the next round while it runs.
    pub(super) async fn run_beside<T>(
        &mut self,
        pull: impl Future<Output = T>,
        plan: &Plan,
        progress: PullProgress,
        next: NextRound<'_>,
    ) -> T {
        let mut pull = pin!(pull);
        tokio::select! {
            pulled = &mut pull => pulled,
            () = self.run(plan, progress, next) => pull.await,
        }
    }

    /// Reads the payload of the release image that `plan` pulls, and starts to download what it names as soon as the
    /// release image does not have the link for itself any more. May be dropped at any moment.
    async fn run(&mut self, plan: &Plan, mut progress: PullProgress, mut next: NextRound<'_>) {
        let release = next.naming.unread().find_map(|namer| match namer {
            Namer::Release(release) => Some(release),
            Namer::Index(_) => None,
        });
        let Some(mut payload) = release.and_then(|release| EarlyPayload::of(release, plan)) else {
            return;
        };
        let selection = loop {
            let Some(layer) = progress.staged.recv().await else {
                return;
            };
            payload.add(layer);
            if let Some(selection) = payload.selection(&next.naming.filter) {
                break selection;
            }
        };
        // Nothing that a refused release names is requested. The next round reports the refusal.
        if let Some(verification) = next.release_verification
            && verification.refusal().await.is_some()
        {
            return;
        }
        // If the run ends before the release image is complete, its report lists what is missing.
        next.status.list_requests(&selection.wanted);
        // Two hundred manifests and configs are megabytes, and would slow the release image down. The sender is dropped when
        // the pull ends.
        if progress.is_alone.wait_for(|alone| !alone).await.is_err() {
            return;
        }
        let requests = next.naming.requests.iter().cloned().chain(selection.wanted);
        match next.plan(&dedupe(requests)).await {
            Ok(Some(next_plan)) => {
                self.downloads = Some(next.start_downloads(&next_plan, plan, self.early_layers.clone()))
            }
            Ok(None) => tracing::debug!("no prefetch: the next plan may not fit on the disk"),
            // The next round meets the same error if it matters.
            Err(error) => tracing::debug!("no prefetch: {error}"),
        }
    }
}

impl NextRound<'_> {
    /// The expected plan of the next round, if it fits on the disk for certain.
    async fn plan(&mut self, requests: &[ImageRequest]) -> Result<Option<Plan>, JobError> {
        let references: Vec<Reference> = requests.iter().map(|it| it.reference.clone()).collect();
        let snapshot = self.storage.snapshot(&references, self.checker).await?;
        let unresolved = references
            .iter()
            .filter(|it| self.states.is_unresolved(it, &snapshot, Mode::Run));
        self.queue.add(unresolved.cloned().collect(), &snapshot.inventory);
        let resolutions = self.queue.peek_all(RESOLVE_TIMEOUT).await;
        let resolved = resolutions.filter_map(|it| {
            let image = it.image.as_ref().ok()?.clone();
            Some((it.reference.clone(), Arc::new(image)))
        });
        let resolved: HashMap<Reference, Arc<ResolvedImage>> = resolved.collect();
        let wanted = requests.iter().map(|request| ImageToPlan {
            reference: request.reference.clone(),
            requesters: request.requesters.clone(),
            rank: None,
            action: match resolved.get(&request.reference) {
                Some(image) => ImageAction::Pull(Arc::clone(image)),
                None => self.states.action(&request.reference, &snapshot, Mode::Run),
            },
            authenticated: false,
        });
        let wanted: Vec<ImageToPlan> = wanted.collect();
        let release = self.naming.release_manifest(self.states, &snapshot);
        // Only a verification finds damaged layers, and a prefetch is not part of one.
        let damaged = HashSet::new();
        self.media.find_layers(&wanted).await;
        let on_media = self.media.found();
        self.deltas
            .find(&wanted, release, &snapshot, &damaged, on_media, self.halt)
            .await;
        self.media.find_deltas(self.deltas.found()).await;
        let layers = resolved.values().flat_map(|image| image.layer_ids());
        let layers = self.states.layers().chain(layers);
        let here = snapshot.here(layers, &damaged, self.deltas.found(), self.media, self.tars);
        let plan = Plan::build(wanted, Vec::new(), &here);
        let (mode, scope) = (Mode::Run, RoundScope::Everything);
        let demand = space::demand(self.config, mode, scope, &plan, &snapshot);
        let fits = space::check(self.config, demand)?.fits
            && space::fits_for_certain(self.config, mode, scope, &plan, &snapshot)?;
        Ok(fits.then_some(plan))
    }

    /// Starts to download the blobs of `next` that `current` does not pull, or to copy them from media. Of those in the format
    /// `zstd:chunked` a pull may need some ranges only.
    fn start_downloads(self, next: &Plan, current: &Plan, layers: EarlyLayers) -> Downloads {
        let pulled: HashSet<Digest> = current.blobs.iter().map(|blob| blob.digest).collect();
        let chunked = match self.config.deltas {
            Some(_) => chunked_blobs(next),
            None => HashSet::new(),
        };
        let is_early = |blob: &&BlobTask| !pulled.contains(&blob.digest) && !chunked.contains(&blob.digest);
        let blobs = next.blobs.iter().filter(is_early);
        let mut blobs: Vec<&BlobTask> = blobs.collect();
        // A plan lists the largest blob last. It takes longest, and if it is a large part of everything, the link would
        // transfer it alone at the end.
        let largest = (0..blobs.len()).max_by_key(|index| blobs[*index].missing());
        if let Some(index) = largest {
            blobs[..=index].rotate_right(1);
        }
        self.status.report_prefetch(next, &blobs);
        let max_downloads = self.config.max_downloads.get();
        let all = blobs.iter().map(|blob| blob.missing()).sum();
        let request =
            |blob: &BlobTask| request_for(blob, next, connections(blob.missing(), all, max_downloads));
        let blobs = blobs.into_iter().filter_map(|blob| {
            Some(EarlyBlob {
                request: request(blob)?,
                layers: layers_of(blob, next),
            })
        });
        let blobs = blobs.collect();
        // The next round reports the error.
        let spare = SpareSpace::after(next, self.config).ok();
        let unpack = spare.map(|spare| EarlyUnpack {
            layers,
            unpacker: self.unpacker,
            spare: spare.store,
        });
        // The rest of the release image needs its share of the link: nothing is committed before it is complete.
        let concurrency = max_downloads.div_ceil(2);
        Downloads::start(blobs, concurrency, self.fetcher, unpack, self.halt.clone())
    }
}

/// A blob to download, and the layers to unpack from it with the expected lengths of their tars.
struct EarlyBlob {
    request: BlobRequest,
    layers: Vec<(Layer, u64)>,
}

/// The layers that `plan` unpacks from the blob.
fn layers_of(blob: &BlobTask, plan: &Plan) -> Vec<(Layer, u64)> {
    let tasks = plan.layers.iter().filter(|task| task.sources.is_empty());
    tasks
        .filter(|task| task.layer.blob == blob.digest)
        .map(|task| (task.layer.clone(), task.tar.bytes()))
        .collect()
}

/// The blobs that have a table of their chunks.
fn chunked_blobs(plan: &Plan) -> HashSet<Digest> {
    let manifests = plan.images.iter().filter_map(|image| match &image.action {
        ImageAction::Pull(resolved) => Some(resolved.manifest.bytes()),
        ImageAction::Present | ImageAction::Failed(_) => None,
    });
    manifests
        .flat_map(|manifest| Metadata::of_manifest(manifest).into_keys())
        .collect()
}

/// Running downloads into the spool. Dropping it stops them; the spool keeps what was downloaded.
struct Downloads {
    may_start: Arc<AtomicBool>,
    /// Contains one task.
    _task: JoinSet<()>,
}

impl Downloads {
    /// Starts the downloads in this order, up to `concurrency` at the same time, and unpacks what has arrived.
    fn start(
        blobs: Vec<EarlyBlob>,
        concurrency: usize,
        fetcher: Arc<Fetcher>,
        unpack: Option<EarlyUnpack>,
        halt: Cancel,
    ) -> Self {
        let may_start = Arc::new(AtomicBool::new(true));
        let is_allowed = Arc::clone(&may_start);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let may_start = || is_allowed.load(Ordering::Acquire);
            let fetch = async |EarlyBlob { request, layers }: EarlyBlob| {
                // The fetcher registers the request before its first await, so no download can start in between.
                if !may_start() {
                    return None;
                }
                let digest = request.digest;
                match fetcher.fetch(request, &halt).await {
                    Ok(blob) => Some((blob, layers)),
                    // The pull downloads the blob again and reports the error.
                    Err(error) => {
                        tracing::debug!("cannot prefetch `{digest}`: {error}");
                        None
                    }
                }
            };
            // A slow medium does not take the connections of downloads.
            let (copies, downloads): (Vec<_>, Vec<_>) =
                blobs.into_iter().partition(|blob| blob.request.is_on_medium);
            let [copied, downloaded] = [copies, downloads]
                .map(|blobs| stream::iter(blobs).map(&fetch).buffer_unordered(concurrency));
            let fetched = stream::select(copied, downloaded);
            let unpack_layers = async |fetched: Option<(VerifiedBlob, Vec<(Layer, u64)>)>| {
                if let (Some((blob, layers)), Some(unpack)) = (fetched, &unpack)
                    && may_start()
                {
                    let unpacks = layers
                        .into_iter()
                        .map(|(layer, tar)| unpack.unpack(layer, tar, blob.clone()));
                    join_all(unpacks).await;
                }
            };
            fetched.for_each_concurrent(None, unpack_layers).await;
        });
        Self {
            may_start,
            _task: task,
        }
    }
}
