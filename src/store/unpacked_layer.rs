//! The result of unpacking a layer: diffID, size, compression, origin and owners, for the layer's record.

use std::collections::BTreeSet;

use crate::oci::DiffId;

/// The compression of a blob, detected from its first bytes. The numbers are those of `compression` in layers.json
/// (containers/storage `pkg/archive`: `Compression`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// A bare tar.
    Uncompressed = 0,
    /// gzip
    Gzip = 2,
    /// zstd
    Zstd = 4,
}

impl Compression {
    /// The compression by the media type of a manifest. An unknown type counts as gzip, the type of nearly all layers.
    pub fn of_media_type(media_type: &str) -> Self {
        match media_type {
            zstd if zstd.ends_with("zstd") => Self::Zstd,
            tar if tar.ends_with(".tar") => Self::Uncompressed,
            _ => Self::Gzip,
        }
    }
}

/// What a layer's record states about its blob: `compressed-diff-digest`, `compressed-size` and `compression`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerOrigin {
    /// Digest and length as in the manifest, and this compression.
    Blob(Compression),
    /// Nothing. All three fields may be missing (containers/storage `layers.go`: `Layer`); then other programs identify
    /// the layer by its diffID, and download the blob again for another image with this layer on other parents.
    Unknown,
}

/// A layer that was unpacked into its stage. Its tar was read to the end and hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpackedLayer {
    /// SHA-256 of the whole uncompressed stream, including trailing bytes.
    pub diff_id: DiffId,
    /// Length of that stream in bytes.
    pub diff_size: u64,
    /// Compression of the blob.
    pub compression: Compression,
    /// The owners of its entries.
    pub owners: Owners,
    /// Whether an entry is named `/`, which sets owner, mode, times and attributes of `diff/` itself. `./` sets none.
    pub has_root: bool,
}

/// The owners of a tar's entries, including hard links and the root entry, without whiteouts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// Every uid.
    pub uids: BTreeSet<u32>,
    /// Every gid.
    pub gids: BTreeSet<u32>,
}
