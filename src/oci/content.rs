//! Keeps a manifest, index or config exactly as received, with its digest.

use bytes::Bytes;

use super::Digest;

/// A manifest, an index or a config, exactly as received. `digest` is always the SHA-256 of `bytes`: the only constructor
/// computes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    digest: Digest,
    bytes: Bytes,
}

impl Content {
    /// Hashes `bytes` and keeps both.
    pub fn new(bytes: Bytes) -> Self {
        Self {
            digest: Digest::of(&bytes),
            bytes,
        }
    }

    /// The SHA-256 of [`Self::bytes`].
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The bytes as received.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}
