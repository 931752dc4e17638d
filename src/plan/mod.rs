//! Defines the plan of a run: the layers to unpack and the blobs to download. `plan` prints it, `run` executes it.
//!
//! Input: the requested images, what is known of each, and what the node already has ([`Present`]). Output: the images by
//! priority, each missing layer once, each missing blob once, and the totals for the space check and the progress display.
//! Nothing here does I/O or reads a clock.
//!
//! ```text
//! images  i0: L1 ← L2 ← L3        layers  L1 {i0,i1}  L2 {i0}  L3 {i0}  L4 {i1}     blobs  B1 → L1, L4
//!         i1: L1 ← L4                                                                      B2 → L2   B3 → L3
//! ```

mod blob_contents;
mod blob_sharing;
mod build;
mod disk_estimate;
mod layer_order;
mod layer_source;
mod merge_requests;
mod plan_json;
mod plan_table;
mod release_json;
mod release_section;
mod source_choice;
mod tar_length;
mod totals;
mod upgrade_outlook;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::delta::DeltaOption;
use crate::image_request::Requester;
use crate::oci::{DiffId, Digest, Layer, LayerId, Reference, ResolvedImage};
use crate::release::manifests::UpgradeRank;
use crate::store::StoredLayer;
use crate::zstd_chunked::ChunkedOption;

pub use disk_estimate::TarLength;
pub use layer_source::{LayerSource, MediumTar};
pub use plan_json::PlanDocument;
pub use tar_length::{tar_length, tar_length_range};
pub use totals::PlanTotals;
pub use upgrade_outlook::UpgradeOutlook;

/// A requested image, before planning.
#[derive(Clone, Debug)]
pub struct ImageToPlan {
    /// Its name in the store.
    pub reference: Reference,
    /// Who requests it.
    pub requesters: Vec<Requester>,
    /// When a running update needs it, if one runs: an order among the images of one priority.
    pub rank: Option<UpgradeRank>,
    /// What a run does about it.
    pub action: ImageAction,
    /// Whether its manifest is authenticated: by a verified signature, or by a release that is given by digest or whose
    /// signature was verified.
    pub authenticated: bool,
}

/// What a run does about an image.
#[derive(Clone, Debug)]
pub enum ImageAction {
    /// Nothing: the store has all of it, under this name.
    Present,
    /// Pulls the layers that the store lacks, and commits the image under this name.
    Pull(Arc<ResolvedImage>),
    /// Nothing: it is unavailable, for this reason.
    Failed(String),
}

/// An image of the release that is left out: an exclude pattern matches it, or the node does not use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExcludedImage {
    /// Its name in the payload.
    pub reference: Reference,
    /// Who would have requested it.
    pub requester: Requester,
    /// Why it is excluded.
    pub reason: String,
    /// Bytes to fetch if it were requested too; unknown if no registry was asked about it.
    pub bytes: Option<u64>,
}

/// What the node already has.
#[derive(Clone, Debug, Default)]
pub struct Present {
    /// Complete layers in the store.
    pub layers: HashSet<LayerId>,
    /// Bytes of each blob in the spool: all of it or its beginning.
    pub blobs: HashMap<Digest, u64>,
    /// Blobs of which a medium has all bytes, and the path of the first such medium.
    pub media: HashMap<Digest, Arc<str>>,
    /// Deltas that this node can use, by the digest of the layer's blob, each list in the order to try those of one size.
    pub deltas: HashMap<Digest, Vec<Arc<DeltaOption>>>,
    /// Layers of the store from which others with the same content can be made, each list in the order to try them.
    pub stored: HashMap<DiffId, Vec<StoredLayer>>,
    /// Layers of which only some chunks are missing, by the digest of the blob.
    pub chunked: HashMap<Digest, Arc<ChunkedOption>>,
    /// The tars of layers on media, each list in the order of the media.
    pub medium_tars: HashMap<DiffId, Vec<MediumTar>>,
    /// Lengths of the tars inside blobs, where the blob has stated it ([`tar_length()`]).
    pub tars: HashMap<Digest, TarLength>,
}

/// What a run will do. Made by [`Plan::build`].
#[derive(Clone, Debug)]
pub struct Plan {
    /// Every requested image once, ordered by [`Requester::priority`], then by [`ImageToPlan::rank`].
    pub images: Vec<PlannedImage>,
    /// Excluded images that no other requester wants.
    pub excluded: Vec<ExcludedImage>,
    /// Every layer to unpack, once, parents before children.
    pub layers: Vec<LayerTask>,
    /// Every blob to fetch, once, in the order to start them: first by the priority and the rank of the first image that needs
    /// the blob, then blobs that are complete in the spool, then so that images complete as early as possible.
    pub blobs: Vec<BlobTask>,
    /// The sums.
    pub totals: PlanTotals,
}

impl Plan {
    /// Bytes to copy from each medium, by its path.
    pub fn bytes_by_medium(&self) -> BTreeMap<&str, u64> {
        let mut media: BTreeMap<&str, u64> = BTreeMap::new();
        for blob in &self.blobs {
            if let Some(medium) = &blob.medium {
                let bytes = media.entry(medium).or_default();
                *bytes = bytes.saturating_add(blob.missing_from_medium());
            }
        }
        media
    }

    /// Whether the order of the blobs is that in which a running update needs their images.
    pub fn is_in_upgrade_order(&self) -> bool {
        self.images.iter().any(|image| image.rank.is_some())
    }
}

/// One requested image.
#[derive(Clone, Debug)]
pub struct PlannedImage {
    /// Its name in the store.
    pub reference: Reference,
    /// Who requests it, highest priority first.
    pub requesters: Vec<Requester>,
    /// When a running update needs it, if one runs.
    pub rank: Option<UpgradeRank>,
    /// What a run does about it. [`ImageAction::Pull`] also if only the image's record is missing.
    pub action: ImageAction,
    /// Its layers, base first; empty unless the image is pulled.
    pub layers: Vec<PlannedLayer>,
    /// Bytes to fetch for it. A shared blob counts for the first image only, so that all images add up to
    /// [`PlanTotals::bytes_to_fetch`].
    pub bytes: u64,
    /// The share of these that are deltas.
    pub delta_bytes: u64,
    /// Bytes to fetch for it without deltas; all images add up to [`PlanTotals::bytes_whole`].
    pub bytes_whole: u64,
    /// Bytes to copy from media for it; all images add up to [`PlanTotals::bytes_from_media`].
    pub bytes_from_media: u64,
}

impl PlannedImage {
    fn priority(&self) -> Priority {
        priority(&self.requesters, self.rank)
    }

    /// Whether its manifest lists the blob as a layer.
    pub fn lists(&self, blob: &Digest) -> bool {
        self.layers.iter().any(|planned| planned.layer.blob == *blob)
    }

    /// How many of its layers have this action.
    pub fn count_layers(&self, action: LayerAction) -> usize {
        self.layers
            .iter()
            .filter(|planned| planned.action == action)
            .count()
    }
}

/// Priority and rank of an image: smaller goes first.
type Priority = (u8, Option<UpgradeRank>);

fn priority(requesters: &[Requester], rank: Option<UpgradeRank>) -> Priority {
    let requester = requesters.iter().map(Requester::priority).min();
    (requester.unwrap_or(u8::MAX), rank)
}

/// One layer of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedLayer {
    /// As this image's manifest and config describe it.
    pub layer: Layer,
    /// What a run does about it.
    pub action: LayerAction,
}

/// What a run does about a layer of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerAction {
    /// Nothing: the store has it.
    Reuse,
    /// Fetches and unpacks it for this image.
    Fetch,
    /// Fetches and unpacks it for an earlier image of the plan.
    Share,
}

/// A layer to unpack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerTask {
    /// The layer, with the blob to unpack. Two manifests may have one layer in different blobs, for instance gzip and
    /// zstd; this is the blob with the fewest missing bytes, or with the smallest delta. Perhaps only an image with the
    /// same content on other parents lists this blob.
    pub layer: Layer,
    /// Whether an authenticated image lists this blob for this diffID, and no image of the plan lists it for another.
    pub authenticated: bool,
    /// What to make it from, in the order to try them. Empty if the blob is downloaded.
    pub sources: Vec<LayerSource>,
    /// Length of its uncompressed tar.
    pub tar: TarLength,
    /// Indexes into [`Plan::images`] of the images that need it, ascending.
    pub images: Vec<usize>,
}

impl LayerTask {
    /// Digest and length of what is downloaded for it: for its first source, or the layer's own blob.
    pub fn download(&self) -> (Digest, u64) {
        let whole = (self.layer.blob, self.layer.size);
        self.sources.first().map_or(whole, LayerSource::download)
    }

    /// The delta that it is made from, if its first source is one.
    pub fn delta(&self) -> Option<&Arc<DeltaOption>> {
        self.sources.first()?.delta()
    }

    /// Whether its first source are chunks of its blob.
    pub fn is_chunked(&self) -> bool {
        matches!(self.sources.first(), Some(LayerSource::Chunked(_)))
    }

    /// The layer of the store that it is copied from, if its first source is one.
    pub fn stored(&self) -> Option<&StoredLayer> {
        self.sources.first()?.stored()
    }
}

/// A blob to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobTask {
    /// Digest of the compressed blob or of the delta.
    pub digest: Digest,
    /// The source, if it is not the whole blob of its layers; its layers may have other options with the same download.
    pub source: Option<LayerSource>,
    /// Its length in bytes.
    pub size: u64,
    /// How many of these are in the spool.
    pub spooled: u64,
    /// The path of the medium from which the others are copied; none if they are downloaded.
    pub medium: Option<Arc<str>>,
    /// The layers that are unpacked from it: several, if the same content has different parents.
    pub layers: Vec<LayerId>,
    /// Indexes into [`Plan::images`], ascending, of the images whose manifests list it, whose repositories have it; or of the
    /// images that need the layers made from it, if it is a delta.
    pub images: Vec<usize>,
}

impl BlobTask {
    /// Whether it is copied from a medium.
    pub fn is_on_medium(&self) -> bool {
        self.medium.is_some()
    }

    /// Bytes that must be downloaded.
    pub fn missing(&self) -> u64 {
        match self.is_on_medium() {
            true => 0,
            false => self.unspooled(),
        }
    }

    /// Bytes that are copied from a medium.
    pub fn missing_from_medium(&self) -> u64 {
        self.unspooled() - self.missing()
    }

    /// Bytes that are not in the spool.
    pub fn unspooled(&self) -> u64 {
        self.size.saturating_sub(self.spooled)
    }
}
