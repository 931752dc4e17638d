//! Defines the identifiers of layers and images, one type each, so that a blob's digest cannot be used as a layer's id.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Digest, Hasher};

/// The SHA-256 of a layer's *uncompressed* tar: an element of the config's `rootfs.diff_ids`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DiffId(pub Digest);

impl fmt::Display for DiffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a layer in containers/storage: the diffID of a base layer; above it
/// `sha256(parent-id "+" diffID-hex)`, as containers/image computes it (`storage_dest.go`). Not Docker's chainID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerId(Digest);

impl LayerId {
    /// The id of the layer `diff_id` on top of `parent`.
    pub fn of(parent: Option<LayerId>, diff_id: DiffId) -> Self {
        let Some(parent) = parent else {
            return Self(diff_id.0);
        };
        let mut hasher = Hasher::default();
        hasher.update(parent.to_string().as_bytes());
        hasher.update(b"+");
        hasher.update(diff_id.0.hex().as_bytes());
        Self(hasher.finish())
    }

    /// The ids of a chain of layers, base layer first.
    pub fn chain(diff_ids: impl IntoIterator<Item = DiffId>) -> Vec<Self> {
        let mut parent = None;
        let ids = diff_ids.into_iter().map(|diff_id| {
            let id = Self::of(parent, diff_id);
            parent = Some(id);
            id
        });
        ids.collect()
    }

    /// Parses the 64 hexadecimal digits of a record. Layers of other programs may have other ids.
    pub fn from_hex(hex: &str) -> Option<Self> {
        Digest::from_hex(hex).ok().map(Self)
    }
}

/// The id of an image in containers/storage: the hexadecimal digest of its config.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(Digest);

impl ImageId {
    /// The id of the image whose config has this digest.
    pub fn of_config(config: Digest) -> Self {
        Self(config)
    }

    /// The digest of its config.
    pub fn config(self) -> Digest {
        self.0
    }

    /// Parses the 64 hexadecimal digits of a record.
    pub fn from_hex(hex: &str) -> Option<Self> {
        Digest::from_hex(hex).ok().map(Self)
    }
}

macro_rules! prints_as_hex {
    ($($id:ty),*) => {$(
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0.hex())
            }
        }
        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}
prints_as_hex!(LayerId, ImageId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_layer_has_its_diff_id_and_a_child_hashes_both() {
        let diff_id = DiffId(Digest::of(b"layer"));
        let chain = LayerId::chain([diff_id, diff_id]);
        assert_eq!(chain[0].to_string(), diff_id.0.hex());
        let text = format!("{0}+{0}", diff_id.0.hex());
        assert_eq!(chain[1].to_string(), Digest::of(text.as_bytes()).hex());
    }
}
