//! Describes one layer's delta: its blob, the layer that it makes, and the images whose files it needs.

use super::Format;
use crate::oci::{Digest, Reference};

/// The largest delta that is used, in percent of the bytes that are downloaded otherwise.
const MAX_PERCENT: u128 = 80;

/// Whether a delta of `delta` bytes is used where otherwise `whole` bytes are downloaded. Applying it reads the old files and
/// may fail, and then the whole bytes are downloaded as well.
pub fn is_worthwhile(delta: u64, whole: u64) -> bool {
    u128::from(delta) * 100 <= u128::from(whole) * MAX_PERCENT
}

/// The delta of one layer, as an artifact describes it. Untrusted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayerDelta {
    /// Digest of the delta.
    pub blob: Digest,
    /// Length of the delta in bytes.
    pub size: u64,
    /// How it is encoded.
    pub format: Format,
    /// Digest of the layer's blob, as the target image's manifest names it.
    pub target: Digest,
    /// Length of the tar that it makes, if the artifact states it; only for estimates.
    pub tar_size: Option<u64>,
}

/// An old image whose files a delta reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeltaSource {
    /// Digest of the image's config, so its id in the store.
    pub config: Digest,
    /// The ostree commit that the image contains, for an image of the operating system: the node has these files in
    /// `/ostree/repo`.
    pub ostree_commit: Option<String>,
}

/// A delta that this node can use, because it has the files of its sources.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeltaOption {
    /// The delta.
    pub delta: LayerDelta,
    /// Where the registry has its blob: any reference in that repository.
    pub repository: Reference,
    /// The old images, in the order in which the delta numbers them; the first one is number 0.
    pub sources: Vec<DeltaSource>,
}
