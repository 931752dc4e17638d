//! What an image states about one of its layers: the config gives chain and diffID, the manifest the blob.

use super::store_location::StoreLocation;
use crate::oci::{DiffId, Digest, LayerId};

/// One layer as the config of an image describes it: the position in the chain and the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpectedLayer {
    /// Its id in the store.
    pub id: LayerId,
    /// The layer below.
    pub parent: Option<LayerId>,
    /// Digest of its uncompressed tar.
    pub diff_id: DiffId,
    /// The store whose copy counts.
    pub location: StoreLocation,
}

/// The blob of a layer as the manifest of an image describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerBlob {
    /// Digest of the blob.
    pub digest: Digest,
    /// Length of the blob in bytes, if the manifest states it.
    pub size: Option<u64>,
}
