//! Defines what a layer can be made from instead of its whole blob.

use std::fmt;
use std::sync::Arc;

use crate::delta::DeltaOption;
use crate::oci::{DiffId, Digest};
use crate::store::StoredLayer;
use crate::zstd_chunked::ChunkedOption;

/// What a layer can be made from instead of its whole blob. A source may be wrong; the diffID of the image's config proves
/// the layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LayerSource {
    /// A layer with the same content in the store, on other parents, or in an additional store.
    Stored(StoredLayer),
    /// The tar itself, in a docker-archive on a medium.
    MediumTar(MediumTar),
    /// A delta, applied to files of old images.
    Delta(Arc<DeltaOption>),
    /// Some ranges of the blob, and files of stored images.
    Chunked(Arc<ChunkedOption>),
}

/// The uncompressed tar of a layer on a medium.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MediumTar {
    /// SHA-256 of the tar, as the medium states it.
    pub diff_id: DiffId,
    /// The path of the medium, as given.
    pub medium: Arc<str>,
    /// Length of the tar in bytes.
    pub size: u64,
}

impl LayerSource {
    /// What is fetched for it: a digest by which layers share it, and its length. It is the digest of a blob only if
    /// [`Self::spooled_blob`] is one. Of layers of the store nothing is fetched.
    pub fn download(&self) -> (Digest, u64) {
        match self {
            Self::Stored(layer) => (Digest::of(format!("stored {}", layer.diff_id).as_bytes()), 0),
            Self::MediumTar(tar) => (Digest::of(format!("tar {}", tar.diff_id).as_bytes()), tar.size),
            Self::Delta(option) => (option.delta.blob, option.delta.size),
            Self::Chunked(option) => (option.blob, option.bytes),
        }
    }

    /// The blob that it alone has in the spool. Ranges of the layer's own blob are not: the whole blob continues with them.
    pub fn spooled_blob(&self) -> Option<Digest> {
        match self {
            Self::Stored(_) | Self::MediumTar(_) => None,
            Self::Delta(option) => Some(option.delta.blob),
            Self::Chunked(_) => None,
        }
    }

    /// The delta, if it is one.
    pub fn delta(&self) -> Option<&Arc<DeltaOption>> {
        match self {
            Self::Delta(option) => Some(option),
            Self::Stored(_) | Self::MediumTar(_) | Self::Chunked(_) => None,
        }
    }

    /// The layer of the store, if it is one.
    pub fn stored(&self) -> Option<&StoredLayer> {
        match self {
            Self::Stored(layer) => Some(layer),
            Self::MediumTar(_) | Self::Delta(_) | Self::Chunked(_) => None,
        }
    }

    /// The tar on a medium, if it is one.
    pub fn medium_tar(&self) -> Option<&MediumTar> {
        match self {
            Self::MediumTar(tar) => Some(tar),
            Self::Stored(_) | Self::Delta(_) | Self::Chunked(_) => None,
        }
    }
}

impl fmt::Display for LayerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored(layer) => write!(f, "the layer {} in the store", layer.id),
            Self::MediumTar(tar) => write!(f, "the tar `{}` on the medium `{}`", tar.diff_id, tar.medium),
            Self::Delta(option) => write!(f, "the delta `{}`", option.delta.blob),
            Self::Chunked(option) => write!(f, "chunks of the blob `{}`", option.blob),
        }
    }
}
