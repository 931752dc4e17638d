//! An image as a registry described it: everything but its layers' bytes.

use super::{Content, DiffId, Digest, ImageId, LayerId};

/// One layer of a manifest, beside the diffID that the config promises for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerDescriptor {
    /// Digest of the blob as it travels, that is, compressed.
    pub blob: Digest,
    /// Length of that blob in bytes, as the manifest says.
    pub size: u64,
    /// The manifest's media type; what the bytes really are is seen when they are unpacked.
    pub media_type: String,
    /// Digest of the uncompressed tar, as the config says.
    pub diff_id: DiffId,
}

/// Manifest, config and, when the reference led to one, the list; parsed once and checked against each other:
/// as many layers as diffIDs, the config's digest as the manifest names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedImage {
    /// The manifest list or OCI index that the reference named, if it named one.
    pub list: Option<Content>,
    /// The manifest of the chosen instance.
    pub manifest: Content,
    /// The image's config.
    pub config: Content,
    /// Base layer first.
    pub layers: Vec<LayerDescriptor>,
    /// The config's `created`, if it has one, as written there.
    pub created: Option<String>,
}

impl ResolvedImage {
    /// The image's id in the store.
    pub fn id(&self) -> ImageId {
        ImageId::of_config(self.config.digest())
    }

    /// The ids of its layers in the store, base layer first.
    pub fn layer_ids(&self) -> Vec<LayerId> {
        LayerId::chain(self.layers.iter().map(|layer| layer.diff_id))
    }
}
