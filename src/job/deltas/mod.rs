//! Finds deltas for the images to pull: which exist, and for which of them this node has the old images.
//!
//! ```text
//! release, single images ─referrers─→ indexes ─→ Offer* ─ are its old images here? ─→ artifacts ─→ DeltaOption*
//! `--deltas` ──────────────────────────┘
//! ```
//!
//! An index lists the deltas from one release to another, so one request finds out whether there are any. The images of the
//! payload are looked up in the indexes of their release; images of operators and additional images have an index each.
//!
//! Deltas only save bytes: every error means that there are none, and a registry that does not answer is not asked again.
//! Nothing here is trusted. Sizes, counts and times are bounded; a layer that a delta makes is used only if it has the digest
//! in the image's config.

mod delta_location;
mod delta_registry;
mod local_sources;
mod offer;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use futures::stream::{self, StreamExt as _};

use crate::cancel::Cancel;
use crate::delta::DeltaOption;
use crate::delta::artifact::{DeltaArtifact, DeltaIndex};
use crate::image_request::Requester;
use crate::oci::{Digest, ImageId, Layer, LayerId, Reference, ResolvedImage};
use crate::plan::{ImageAction, ImageToPlan};
use crate::registry::Registries;
use crate::report::{Count, Size};
use crate::store::Inventory;

use super::os_images;
use super::snapshot::Snapshot;
pub use delta_location::DeltaLocation;
use delta_registry::{CONCURRENCY, DeltaRegistry, Lookup, Subject};
use local_sources::LocalSources;
use offer::Offer;

/// Two images may share a new layer, and the delta of it is in the artifact of one of them. If at least this many bytes have no
/// delta, the artifacts of images that are not pulled are read as well.
const UNCOVERED: u64 = 8 << 20;

/// How many artifacts of images that are not pulled are read.
const MAX_OTHERS: usize = 256;

/// How many artifacts of all indexes are remembered.
const MAX_OFFERS: usize = 16 << 10;

/// For how many layers deltas are remembered.
const MAX_LAYERS: usize = 16 << 10;

/// The deltas that were found so far.
pub(super) struct Deltas {
    registry: DeltaRegistry,
    /// Where to look besides the repositories of the images; none if deltas are not used.
    locations: Option<Vec<DeltaLocation>>,
    /// The objects of the node's ostree repository.
    ostree_objects: PathBuf,
    /// What was looked up, each once in a run.
    looked_up: HashSet<Lookup>,
    /// By the digest of the target image's manifest, in an order that is the same in every run.
    offers: BTreeMap<Digest, Vec<Offer>>,
    /// Digests of the artifacts that were read.
    read: HashSet<Digest>,
    found: HashMap<Digest, Vec<Arc<DeltaOption>>>,
}

/// An image whose layers may be made from deltas.
struct Target<'a> {
    reference: &'a Reference,
    requesters: &'a [Requester],
    image: &'a ResolvedImage,
}

impl Deltas {
    pub(super) fn new(
        registries: Arc<Registries>,
        locations: Option<Vec<DeltaLocation>>,
        ostree_objects: PathBuf,
    ) -> Self {
        Self {
            registry: DeltaRegistry::new(registries),
            locations,
            ostree_objects,
            looked_up: HashSet::new(),
            offers: BTreeMap::new(),
            read: HashSet::new(),
            found: HashMap::new(),
        }
    }

    /// The deltas whose sources this node had when they were found, by the digest of the layer's blob.
    pub(super) fn found(&self) -> &HashMap<Digest, Vec<Arc<DeltaOption>>> {
        &self.found
    }

    /// Looks for deltas of the images to pull, except for the layers that are `on_media`. `release` is the release image and
    /// the digest of its manifest. Asks nothing if no such layer is missing or damaged, if each is copied from another layer
    /// of the store, or if the store has only images that are requested.
    pub(super) async fn find(
        &mut self,
        images: &[ImageToPlan],
        release: Option<(Reference, Digest)>,
        snapshot: &Snapshot,
        damaged: &HashSet<LayerId>,
        on_media: &HashMap<Digest, Arc<str>>,
        cancel: &Cancel,
    ) {
        let inventory = &snapshot.inventory;
        let targets: Vec<Target<'_>> = images.iter().filter_map(Target::of).collect();
        let mut missing = missing_layers(&targets, inventory, damaged);
        missing.retain(|blob, _| !on_media.contains_key(blob));
        let stored = inventory.stored_layers();
        let is_downloaded = |layer: &Layer| {
            let mut same = stored.get(&layer.diff_id()).into_iter().flatten();
            missing.contains_key(&layer.blob) && same.all(|layer| damaged.contains(&layer.id))
        };
        let mut layers = targets.iter().flat_map(|target| &target.image.layers);
        let needs_download = layers.any(is_downloaded);
        let requested: HashSet<ImageId> = snapshot.images().map(|image| image.id).collect();
        let ids = targets.iter().map(|target| target.image.id()).collect();
        let local = LocalSources::new(inventory, self.ostree_objects.clone(), ids);
        if self.locations.is_none() || !needs_download || !local.has_other_than(&requested) {
            return;
        }
        let lookups = self.lookups(&targets, release);
        self.registry.start();
        let indexes = self.registry.indexes(lookups.clone(), &local, cancel).await;
        // Not earlier: a prefetch that ends during the requests drops this future, and the next round repeats the lookups.
        self.looked_up.extend(lookups);
        for (repository, index) in indexes {
            self.remember(&repository, index, &local);
        }
        let covered = self.covered(&missing);
        let offers = targets.iter().flat_map(|target| self.usable(target, &local));
        let offers: Vec<Offer> = offers.collect();
        self.read_artifacts(offers, &local, cancel).await;
        // The images that name others are few, and a round for them must not read what the next round needs.
        if targets.iter().any(Target::is_component) {
            let others = self.others(&missing, &local);
            self.read_artifacts(others, &local, cancel).await;
        }
        self.registry.stop();
        match self.covered(&missing) {
            0 => tracing::info!("found no deltas for {}", Count(missing.len(), "missing layer")),
            now if now > covered => tracing::info!("found deltas for {}", Count(now, "layer")),
            _ => {}
        }
    }

    /// For how many of these layers there are deltas.
    fn covered(&self, missing: &HashMap<Digest, u64>) -> usize {
        missing
            .keys()
            .filter(|blob| self.found.contains_key(blob))
            .count()
    }

    /// Remembers the artifacts of an index whose old images may be here.
    fn remember(&mut self, repository: &Reference, index: DeltaIndex, local: &LocalSources<'_>) {
        let mut room = MAX_OFFERS.saturating_sub(self.offers.values().map(Vec::len).sum());
        for (target, offer) in Offer::of_index(repository, index) {
            // Whether an image is an operating system is known when its target is.
            if room > 0 && local.may_have(&offer.sources, true) {
                self.offers.entry(target).or_default().push(offer);
                room -= 1;
            }
        }
    }

    /// What to look up for these images, and was not looked up before.
    fn lookups(&self, targets: &[Target<'_>], release: Option<(Reference, Digest)>) -> Vec<Lookup> {
        let locations = self.locations.as_deref().unwrap_or_default();
        let release = release.filter(|_| targets.iter().any(Target::is_of_release));
        let single = targets.iter().filter(|target| !target.is_of_release());
        let single = single.map(|target| (target.reference.clone(), target.image.manifest.digest()));
        let subjects = release.into_iter().chain(single);
        let mut lookups: Vec<Lookup> = locations
            .iter()
            .filter_map(|location| match location {
                DeltaLocation::Index(reference) => Some(Lookup::Index(reference.clone())),
                DeltaLocation::Repository(_) => None,
            })
            .collect();
        for (reference, manifest) in subjects {
            let elsewhere = locations.iter().filter_map(|location| match location {
                DeltaLocation::Repository(repository) => Some(repository.clone()),
                DeltaLocation::Index(_) => None,
            });
            lookups.extend(std::iter::once(reference).chain(elsewhere).map(|reference| {
                let image = reference.with_digest(manifest);
                Lookup::Referrers(Subject { image, manifest })
            }));
        }
        let mut distinct = HashSet::new();
        lookups.retain(|lookup| !self.looked_up.contains(lookup) && distinct.insert(lookup.clone()));
        lookups
    }

    /// The artifacts to read for an image: one in each format.
    fn usable(&self, target: &Target<'_>, local: &LocalSources<'_>) -> Vec<Offer> {
        let offers = self.offers.get(&target.image.manifest.digest());
        let is_os = os_images::tag(target.requesters).is_some();
        Offer::choose(offers.map_or(&[], Vec::as_slice), |offer| {
            !self.read.contains(&offer.digest()) && local.may_have(&offer.sources, is_os)
        })
    }

    /// The artifacts of images that are not pulled, if many bytes have no delta.
    fn others(&self, missing: &HashMap<Digest, u64>, local: &LocalSources<'_>) -> Vec<Offer> {
        let uncovered = missing.iter().filter(|(blob, _)| !self.found.contains_key(blob));
        let uncovered = uncovered.map(|(_, size)| *size).fold(0, u64::saturating_add);
        if uncovered < UNCOVERED {
            return Vec::new();
        }
        let others = self.offers.values().filter_map(|offers| {
            let is_read = offers.iter().any(|offer| self.read.contains(&offer.digest()));
            let usable = Offer::choose(offers, |offer| !is_read && local.may_have(&offer.sources, false));
            usable.into_iter().next()
        });
        let others: Vec<Offer> = others.take(MAX_OTHERS).collect();
        tracing::debug!(
            "{} have no delta; reading {} of other images",
            Size(uncovered),
            Count(others.len(), "artifact")
        );
        others
    }

    /// Reads the artifacts, and keeps their deltas, also of layers that only a later round needs.
    async fn read_artifacts(&mut self, offers: Vec<Offer>, local: &LocalSources<'_>, cancel: &Cancel) {
        let registry = &self.registry;
        let artifacts = stream::iter(offers).map(async |offer| {
            let artifact = registry.artifact(&offer, cancel).await;
            artifact.map(|artifact| (offer, artifact))
        });
        // In the order of the offers, so that the same deltas are used in every run.
        let artifacts: Vec<_> = artifacts.buffered(CONCURRENCY).collect().await;
        for (offer, artifact) in artifacts.into_iter().flatten() {
            self.read.insert(offer.digest());
            if artifact.target == offer.target && local.have(&artifact.sources) {
                self.add(&offer, artifact);
            }
        }
    }

    /// Keeps one delta of each format for a layer. The artifacts of the image itself are read first.
    fn add(&mut self, offer: &Offer, artifact: DeltaArtifact) {
        let DeltaArtifact { sources, layers, .. } = artifact;
        for delta in layers {
            if self.found.len() >= MAX_LAYERS && !self.found.contains_key(&delta.target) {
                return;
            }
            let options = self.found.entry(delta.target).or_default();
            if options.iter().all(|option| option.delta.format != delta.format) {
                options.push(Arc::new(DeltaOption {
                    delta,
                    repository: offer.artifact.clone(),
                    sources: sources.clone(),
                }));
            }
        }
    }
}

impl<'a> Target<'a> {
    fn of(image: &'a ImageToPlan) -> Option<Self> {
        match &image.action {
            ImageAction::Pull(resolved) => Some(Self {
                reference: &image.reference,
                requesters: &image.requesters,
                image: resolved,
            }),
            ImageAction::Present | ImageAction::Failed(_) => None,
        }
    }

    /// Whether the payload of the release names it.
    fn is_component(&self) -> bool {
        let mut requesters = self.requesters.iter();
        requesters.any(|it| matches!(it, Requester::Release { .. }))
    }

    /// Whether an index of the release lists it. Other images have an index of their own.
    fn is_of_release(&self) -> bool {
        let is_of_release =
            |it: &Requester| matches!(it, Requester::ReleaseImage | Requester::Release { .. });
        self.requesters.iter().any(is_of_release)
    }
}

/// The blobs of layers that the store lacks or has damaged, with their sizes.
fn missing_layers(
    targets: &[Target<'_>],
    inventory: &Inventory,
    damaged: &HashSet<LayerId>,
) -> HashMap<Digest, u64> {
    let layers = targets.iter().flat_map(|target| &target.image.layers);
    let is_missing = |id: &LayerId| inventory.layer(id).is_none() || damaged.contains(id);
    let missing = layers.filter(|layer| is_missing(&layer.id()));
    missing.map(|layer| (layer.blob, layer.size)).collect()
}
