//! What a run would do, decided once and as a value that can be printed; `run` then executes it.
//!
//! Nothing here does I/O or reads a clock. In come the wanted images, resolved or not, and what is already on the
//! node; out come the images in the order of their importance, each layer to unpack once, each blob to fetch once,
//! and the sums that the space check and the progress display need.
//!
//! ```text
//! images  i0: L1 ← L2 ← L3        layers  L1 {i0,i1}  L2 {i0}  L3 {i0}  L4 {i1}     blobs  B1 → L1, L4
//!         i1: L1 ← L4                                                                      B2 → L2   B3 → L3
//! ```

mod build;
mod dedupe;
mod disk_estimate;
mod layer_order;
mod plan_json;
mod table;
mod tar_length;
mod totals;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::image_request::Requester;
use crate::oci::{DiffId, Digest, LayerId, Reference, ResolvedImage};

pub use disk_estimate::TarLength;
pub use plan_json::PlanDocument;
pub use tar_length::{tar_length, telling_bytes};
pub use totals::Totals;

/// An image that is asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Its name in the store.
    pub reference: Reference,
    /// Everyone who asks for it.
    pub requesters: Vec<Requester>,
    /// What is known of it.
    pub state: Need,
}

/// What an image still needs.
#[derive(Clone, Debug)]
pub enum Need {
    /// Nothing: it is whole in the store under this name.
    Present,
    /// Its layers, as far as they are not here, and its name.
    Resolved(Arc<ResolvedImage>),
    /// It cannot be had, for this reason.
    Failed(String),
}

/// An image of the release that a pattern of the version spec excludes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExcludedImage {
    /// What the payload names.
    pub reference: Reference,
    /// Who would have asked for it.
    pub requester: Requester,
    /// Why it is excluded: the pattern.
    pub reason: String,
}

/// What is already on this node.
#[derive(Clone, Debug, Default)]
pub struct Here {
    /// Layers that are whole in the store.
    pub layers: HashSet<LayerId>,
    /// Bytes in the spool, by the digest of the blob: all of it or its beginning.
    pub blobs: HashMap<Digest, u64>,
    /// SizeProbe of the tars in blobs, as far as the blobs were asked for them: [`tar_length()`].
    pub tars: HashMap<Digest, TarLength>,
}

/// What a run would do. Made by [`Plan::build`].
#[derive(Clone, Debug)]
pub struct Plan {
    /// Every wanted image once, the release image first, then the release's, then the additional ones.
    pub images: Vec<PlannedImage>,
    /// Images that are excluded and that nobody else wants.
    pub excluded: Vec<ExcludedImage>,
    /// Every layer to unpack, once; a parent that is to be unpacked comes before its children.
    pub layers: Vec<LayerTask>,
    /// Every blob to bring here, once, in the order in which to begin: by the importance of the first image that waits
    /// for it, those that are whole in the spool before the others, then so that images become whole as early as can be.
    pub blobs: Vec<BlobTask>,
    /// The sums.
    pub totals: Totals,
}

/// One wanted image.
#[derive(Clone, Debug)]
pub struct PlannedImage {
    /// Its name in the store.
    pub reference: Reference,
    /// Everyone who asks for it, the most important first.
    pub requesters: Vec<Requester>,
    /// What it needs. A resolved image whose every layer is here still needs its name.
    pub need: Need,
    /// Its layers, base first; empty unless resolved.
    pub layers: Vec<PlannedLayer>,
    /// Compressed bytes to fetch for it, those that an earlier image of the plan brings left out, so that the images'
    /// bytes add up to [`Totals::bytes_to_fetch`].
    pub bytes: u64,
}

impl PlannedImage {
    fn priority(&self) -> u8 {
        self.requesters.first().map_or(u8::MAX, Requester::priority)
    }

    /// How many of its layers come into the store in this way.
    pub fn layers_to(&self, action: Action) -> usize {
        self.layers.iter().filter(|layer| layer.action == action).count()
    }
}

/// One layer of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedLayer {
    /// Its id in the store.
    pub id: LayerId,
    /// The layer below.
    pub parent: Option<LayerId>,
    /// Digest of the uncompressed tar.
    pub diff_id: DiffId,
    /// Digest of the compressed blob, as this image's manifest names it.
    pub blob: Digest,
    /// Length of that blob in bytes.
    pub size: u64,
    /// The manifest's media type.
    pub media_type: String,
    /// How it comes into the store.
    pub action: Action,
}

/// How a layer of an image comes into the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is there.
    Reuse,
    /// It is fetched and unpacked for this image.
    Fetch,
    /// It is fetched and unpacked for an earlier image of the plan.
    Share,
}

/// A layer to unpack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerTask {
    /// Its id in the store.
    pub id: LayerId,
    /// The layer below, in the store or among the tasks before this one.
    pub parent: Option<LayerId>,
    /// Digest that its uncompressed tar must have.
    pub diff_id: DiffId,
    /// Digest of the blob to unpack. Two manifests may name one layer by different blobs, say gzip and zstd; this is
    /// the one of which the fewest bytes are missing.
    pub blob: Digest,
    /// Length of that blob in bytes.
    pub size: u64,
    /// Its media type.
    pub media_type: String,
    /// Length of its uncompressed tar.
    pub tar: TarLength,
    /// Indexes into [`Plan::images`] of those that wait for it, ascending.
    pub images: Vec<usize>,
}

/// A blob to bring here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobTask {
    /// Digest of the compressed blob.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// How many of these are in the spool.
    pub spooled: u64,
    /// The layers that are unpacked from it: several when the same content lies on different parents.
    pub layers: Vec<LayerId>,
    /// Indexes into [`Plan::images`], ascending, of those whose manifests name it, so whose repositories hold it.
    pub images: Vec<usize>,
}

impl BlobTask {
    /// Bytes that have to cross the link.
    pub fn missing(&self) -> u64 {
        self.size.saturating_sub(self.spooled)
    }
}
