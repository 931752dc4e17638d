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
mod offer;
mod old_images;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use futures::stream::{self, StreamExt as _};

use crate::cancel::Cancel;
use crate::delta::artifact::DeltaArtifact;
use crate::delta::{DeltaOption, LayerDelta};
use crate::image_request::Requester;
use crate::oci::{Digest, ImageId, LayerId, Reference, ResolvedImage};
use crate::plan::{ImageAction, ImageToPlan};
use crate::registry::Registries;
use crate::report::{Count, Size};
use crate::store::Inventory;

use super::os_images;
use super::snapshot::Snapshot;
pub use delta_location::DeltaLocation;
use delta_registry::{CONCURRENCY, DeltaRegistry, Lookup, Subject};
use offer::Offer;
use old_images::OldImages;

/// Two images may share a new layer, and the delta of it is in the artifact of one of them. If so many bytes have no delta,
/// the artifacts of images that are not pulled are read as well.
const UNCOVERED: u64 = 8 << 20;

/// How many of those are read.
const MAX_OTHERS: usize = 256;

/// The deltas that were found so far.
pub(super) struct Deltas {
    registry: DeltaRegistry,
    /// Where to look besides the repositories of the images; none if deltas are not used.
    locations: Option<Vec<DeltaLocation>>,
    /// The objects of the node's ostree repository.
    ostree_objects: PathBuf,
    /// What was looked up, each once in a run.
    looked_up: HashSet<Lookup>,
    /// By the digest of the target image's manifest.
    offers: HashMap<Digest, Vec<Offer>>,
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
            offers: HashMap::new(),
            read: HashSet::new(),
            found: HashMap::new(),
        }
    }

    /// The deltas that this node could use when they were found, by the digest of the layer's blob.
    pub(super) fn found(&self) -> &HashMap<Digest, Vec<Arc<DeltaOption>>> {
        &self.found
    }

    /// Looks for deltas of the images to pull. `release` is the release image and the digest of its manifest. Asks nothing
    /// if no layer is missing or damaged, or if the store has only images that are requested.
    pub(super) async fn find(
        &mut self,
        images: &[ImageToPlan],
        release: Option<(Reference, Digest)>,
        snapshot: &Snapshot,
        damaged: &HashSet<LayerId>,
        cancel: &Cancel,
    ) {
        let inventory = &snapshot.inventory;
        let targets: Vec<Target<'_>> = images.iter().filter_map(Target::of).collect();
        let missing = missing_layers(&targets, inventory, damaged);
        let requested: HashSet<ImageId> = snapshot.images().map(|image| image.id).collect();
        let ids = targets.iter().map(|target| target.image.id()).collect();
        let old = OldImages::new(inventory, self.ostree_objects.clone(), ids);
        if self.locations.is_none() || missing.is_empty() || !old.has_other_than(&requested) {
            return;
        }
        let lookups = self.lookups(&targets, release);
        self.registry.start();
        for (repository, index) in self.registry.indexes(lookups, &old, cancel).await {
            for (target, offer) in Offer::of_index(&repository, index) {
                self.offers.entry(target).or_default().push(offer);
            }
        }
        let before = self.found.len();
        let offers = targets.iter().flat_map(|target| self.usable(target, &old));
        let offers: Vec<Offer> = offers.collect();
        self.read_artifacts(offers, &missing, &old, cancel).await;
        let others = self.others(&missing, &old);
        self.read_artifacts(others, &missing, &old, cancel).await;
        self.registry.stop();
        if self.found.len() > before {
            tracing::info!("found deltas for {}", Count(self.found.len(), "layer"));
        }
    }

    /// What to look up for these images, and was not looked up before.
    fn lookups(&mut self, targets: &[Target<'_>], release: Option<(Reference, Digest)>) -> Vec<Lookup> {
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
        lookups.retain(|lookup| self.looked_up.insert(lookup.clone()));
        lookups
    }

    /// The artifacts to read for an image: one in each format.
    fn usable(&self, target: &Target<'_>, old: &OldImages<'_>) -> Vec<Offer> {
        let offers = self.offers.get(&target.image.manifest.digest());
        let is_os = os_images::tag(target.requesters).is_some();
        Offer::choose(offers.map_or(&[], Vec::as_slice), |offer| {
            !self.read.contains(&offer.digest()) && old.may_have(&offer.sources, is_os)
        })
    }

    /// The artifacts of images that are not pulled, if many bytes have no delta.
    fn others(&self, missing: &HashMap<Digest, u64>, old: &OldImages<'_>) -> Vec<Offer> {
        let uncovered = missing.iter().filter(|(blob, _)| !self.found.contains_key(blob));
        let uncovered = uncovered.map(|(_, size)| *size).fold(0, u64::saturating_add);
        if uncovered < UNCOVERED {
            return Vec::new();
        }
        let others = self.offers.values().filter_map(|offers| {
            let is_read = offers.iter().any(|offer| self.read.contains(&offer.digest()));
            let usable = Offer::choose(offers, |offer| !is_read && old.may_have(&offer.sources, false));
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

    /// Reads the artifacts, and keeps their deltas for `missing` layers.
    async fn read_artifacts(
        &mut self,
        offers: Vec<Offer>,
        missing: &HashMap<Digest, u64>,
        old: &OldImages<'_>,
        cancel: &Cancel,
    ) {
        self.read.extend(offers.iter().map(Offer::digest));
        let registry = &self.registry;
        let artifacts = stream::iter(offers).map(async |offer| {
            let artifact = registry.artifact(&offer, cancel).await;
            artifact.map(|artifact| (offer, artifact))
        });
        // In the order of the offers, so that the same deltas are used in every run.
        let artifacts: Vec<_> = artifacts.buffered(CONCURRENCY).collect().await;
        for (offer, artifact) in artifacts.into_iter().flatten() {
            if artifact.target == offer.target && old.have(&artifact.sources) {
                self.add(&offer, artifact, missing);
            }
        }
    }

    fn add(&mut self, offer: &Offer, artifact: DeltaArtifact, missing: &HashMap<Digest, u64>) {
        let DeltaArtifact { sources, layers, .. } = artifact;
        let wanted = |delta: &LayerDelta| missing.contains_key(&delta.target);
        for delta in layers.into_iter().filter(wanted) {
            let options = self.found.entry(delta.target).or_default();
            let is_known = |option: &Arc<DeltaOption>| option.delta.blob == delta.blob;
            if !options.iter().any(is_known) {
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
