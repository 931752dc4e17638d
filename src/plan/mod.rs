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

mod build;
mod delta_choice;
mod disk_estimate;
mod layer_order;
mod merge_requests;
mod plan_json;
mod plan_table;
mod tar_length;
mod totals;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::delta::DeltaOption;
use crate::image_request::Requester;
use crate::oci::{Digest, Layer, LayerId, Reference, ResolvedImage};

pub use disk_estimate::TarLength;
pub use plan_json::PlanDocument;
pub use tar_length::{tar_length, tar_length_range};
pub use totals::PlanTotals;

/// A requested image, before planning.
#[derive(Clone, Debug)]
pub struct ImageToPlan {
    /// Its name in the store.
    pub reference: Reference,
    /// Who requests it.
    pub requesters: Vec<Requester>,
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

/// An image of the release that an exclude pattern of the version spec matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExcludedImage {
    /// Its name in the payload.
    pub reference: Reference,
    /// Who would have requested it.
    pub requester: Requester,
    /// Why it is excluded: the pattern.
    pub reason: String,
}

/// What the node already has.
#[derive(Clone, Debug, Default)]
pub struct Present {
    /// Complete layers in the store.
    pub layers: HashSet<LayerId>,
    /// Bytes of each blob in the spool: all of it or its beginning.
    pub blobs: HashMap<Digest, u64>,
    /// Deltas that this node can use, by the digest of the layer's blob, each list in the order to try those of one size.
    pub deltas: HashMap<Digest, Vec<Arc<DeltaOption>>>,
    /// Lengths of the tars inside blobs, where the blob has stated it ([`tar_length()`]).
    pub tars: HashMap<Digest, TarLength>,
}

/// What a run will do. Made by [`Plan::build`].
#[derive(Clone, Debug)]
pub struct Plan {
    /// Every requested image once, ordered by [`Requester::priority`].
    pub images: Vec<PlannedImage>,
    /// Excluded images that no other requester wants.
    pub excluded: Vec<ExcludedImage>,
    /// Every layer to unpack, once, parents before children.
    pub layers: Vec<LayerTask>,
    /// Every blob to fetch, once, in the order to start them: first by the priority of the first image that needs the
    /// blob, then blobs that are complete in the spool, then so that images complete as early as possible.
    pub blobs: Vec<BlobTask>,
    /// The sums.
    pub totals: PlanTotals,
}

/// One requested image.
#[derive(Clone, Debug)]
pub struct PlannedImage {
    /// Its name in the store.
    pub reference: Reference,
    /// Who requests it, highest priority first.
    pub requesters: Vec<Requester>,
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
}

impl PlannedImage {
    fn priority(&self) -> u8 {
        self.requesters.first().map_or(u8::MAX, Requester::priority)
    }

    /// How many of its layers have this action.
    pub fn count_layers(&self, action: LayerAction) -> usize {
        self.layers
            .iter()
            .filter(|planned| planned.action == action)
            .count()
    }
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
    /// zstd; this is the blob with the fewest missing bytes, or with the smallest delta.
    pub layer: Layer,
    /// Whether an authenticated image lists this blob for this diffID, and no image of the plan lists it for another.
    pub authenticated: bool,
    /// Deltas to make its tar from, in the order to try them; the first is downloaded instead of the blob. Empty if the blob
    /// is downloaded.
    pub deltas: Vec<Arc<DeltaOption>>,
    /// Length of its uncompressed tar.
    pub tar: TarLength,
    /// Indexes into [`Plan::images`] of the images that need it, ascending.
    pub images: Vec<usize>,
}

impl LayerTask {
    /// Digest and length of the blob that is downloaded for it: its first delta, or the layer's own blob.
    pub fn download(&self) -> (Digest, u64) {
        match self.deltas.first() {
            Some(option) => (option.delta.blob, option.delta.size),
            None => (self.layer.blob, self.layer.size),
        }
    }
}

/// A blob to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobTask {
    /// Digest of the compressed blob or of the delta.
    pub digest: Digest,
    /// The delta, if the blob is one; its layers may have other options for the same blob.
    pub delta: Option<Arc<DeltaOption>>,
    /// Its length in bytes.
    pub size: u64,
    /// How many of these are in the spool.
    pub spooled: u64,
    /// The layers that are unpacked from it: several, if the same content has different parents.
    pub layers: Vec<LayerId>,
    /// Indexes into [`Plan::images`], ascending, of the images whose manifests list it, whose repositories have it; or of the
    /// images that need the layers made from it, if it is a delta.
    pub images: Vec<usize>,
}

impl BlobTask {
    /// Bytes that must be downloaded.
    pub fn missing(&self) -> u64 {
        self.size.saturating_sub(self.spooled)
    }
}
