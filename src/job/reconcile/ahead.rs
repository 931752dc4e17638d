//! What is done for the round after this one, while a release image is on its way.
//!
//! Without it the link idles between a release image and what that names: while the image's last layer is unpacked and
//! committed, and while manifests are asked for; then all connections begin slowly. At 100 Mbit/s and a round trip of 150 ms
//! that was 1.6 s of a run. So the payload is read as soon as its layers are here, and what it names is asked about, planned,
//! held against the disk, and begun with.
//!
//! None of it counts: the next round looks, asks, plans and judges as if there had been no foresight, and finds answers that
//! have come and blobs in the spool.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use super::{Reconciler, Scope};
use crate::fetch::Fetcher;
use crate::image_request::{ImageRequest, dedupe};
use crate::job::advance::Advance;
use crate::job::error::JobError;
use crate::job::foresight::Foresight;
use crate::job::namers::Namer;
use crate::job::pull::scheduler::connections;
use crate::job::pull::{Laid, request_for};
use crate::job::snapshot::Snapshot;
use crate::job::{Mode, space};
use crate::oci::{Digest, Reference, ResolvedImage};
use crate::plan::{BlobTask, ImageAction, ImageToPlan, Plan};

/// How long no answer may come before the images whose registries did answer are begun with.
const PATIENCE: Duration = Duration::from_secs(5);

impl Reconciler<'_> {
    /// Whether it is worth while to look ahead. Where layers may come from another store, fewer blobs will be wanted.
    pub(super) fn may_look_ahead(&self, scope: Scope, sight: &Snapshot) -> bool {
        let releases = || self.naming.unread().any(|it| matches!(it, Namer::Release(_)));
        self.mode == Mode::Run && scope == Scope::Naming && !sight.inventory.has_additional() && releases()
    }

    /// Looks for a release image's payload in what `plan` brings, and begins to fetch what it names, once that image has not
    /// the link for itself any more. May be dropped at any
    /// moment.
    pub(super) async fn look_ahead(
        &mut self,
        plan: &Plan,
        mut laid: UnboundedReceiver<Laid>,
        is_alone: &mut watch::Receiver<bool>,
        fetcher: Arc<Fetcher>,
    ) {
        let release = self.naming.unread().find_map(|namer| match namer {
            Namer::Release(release) => Some(release),
            Namer::Index(_) => None,
        });
        let Some(mut foresight) = release.and_then(|release| Foresight::of(release, plan)) else {
            return;
        };
        let selection = loop {
            let Some(layer) = laid.recv().await else {
                return;
            };
            foresight.add(layer);
            if let Some(selection) = foresight.selection(&self.naming.excludes) {
                break selection;
            }
        };
        // Should the run end before the release image is whole, its report says what is missing.
        self.list(&selection.wanted);
        // Two hundred manifests and configs are megabytes, and the image is to have the link for itself. The pull is over if
        // nobody says any more that it has.
        if is_alone.wait_for(|alone| !alone).await.is_err() {
            return;
        }
        let requests = self.naming.requests.iter().cloned().chain(selection.wanted);
        match self.foresee(&dedupe(requests)).await {
            Ok(Some(next)) => self.advance = Some(self.begin_with(&next, plan, fetcher)),
            Ok(None) => tracing::debug!("nothing is fetched before its turn: it may not fit"),
            // If it matters, the next round will meet it too.
            Err(error) => tracing::debug!("nothing is fetched before its turn: {error}"),
        }
    }

    /// The plan of the next round, as far as it can be told, if that fits for certain.
    async fn foresee(&mut self, requests: &[ImageRequest]) -> Result<Option<Plan>, JobError> {
        let references: Vec<Reference> = requests.iter().map(|it| it.reference.clone()).collect();
        let sight = self.glance(&references).await?;
        let open = references
            .iter()
            .filter(|it| self.knowledge.is_open(it, &sight, self.mode));
        self.inquiry.ask(open.cloned().collect(), &sight.inventory);
        let answers = self.inquiry.foresee(PATIENCE).await;
        let answers = answers.filter_map(|it| Some((it.reference.clone(), it.image.as_ref().ok()?.clone())));
        let answers: HashMap<Reference, Arc<ResolvedImage>> = answers
            .map(|(reference, image)| (reference, Arc::new(image)))
            .collect();
        let wanted = requests.iter().map(|request| ImageToPlan {
            reference: request.reference.clone(),
            requesters: request.requesters.clone(),
            action: match answers.get(&request.reference) {
                Some(image) => ImageAction::Pull(Arc::clone(image)),
                None => self.knowledge.need(&request.reference, &sight, self.mode),
            },
        });
        let layers = answers.values().flat_map(|image| image.layer_ids());
        let here = self.here(self.knowledge.layers().chain(layers), &sight);
        let plan = Plan::build(wanted.collect(), Vec::new(), &here);
        let demand = space::demand(self.order, self.mode, Scope::Everything, &plan, &sight);
        let fits = space::hold(self.order, demand)?.fits
            && self.fits_for_certain(&plan, &sight, Scope::Everything)?;
        Ok(fits.then_some(plan))
    }

    /// Begins with the blobs of `next` that `plan` does not bring.
    fn begin_with(&mut self, next: &Plan, plan: &Plan, fetcher: Arc<Fetcher>) -> Advance {
        let here: HashSet<Digest> = plan.blobs.iter().map(|blob| blob.digest).collect();
        let blobs = next.blobs.iter().filter(|blob| !here.contains(&blob.digest));
        let mut blobs: Vec<&BlobTask> = blobs.collect();
        // The plan has the largest last. It takes longest, and where it is a large part of all it would be awaited alone.
        let largest = (0..blobs.len()).max_by_key(|place| blobs[*place].missing());
        if let Some(place) = largest {
            blobs[..=place].rotate_right(1);
        }
        self.teller.foretell(next, &blobs);
        let most = self.order.max_downloads.get();
        let all = blobs.iter().map(|blob| blob.missing()).sum();
        let request = |blob: &BlobTask| request_for(blob, next, connections(blob.missing(), all, most));
        let requests = blobs.into_iter().map(request).collect();
        // What the release image still lacks is to have its share of the link: nothing is committed before it is here.
        let at_once = self.order.max_downloads.get().div_ceil(2);
        Advance::begin(requests, at_once, fetcher, self.halt.clone())
    }
}
