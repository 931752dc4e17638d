//! What was learnt about a layer while it was unpacked; most of it goes into the layer's record.

use std::collections::BTreeSet;

use crate::oci::DiffId;

/// How a blob was compressed, as its first bytes say. The numbers are those of `compression` in layers.json
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

/// A layer that lies unpacked in its stage. Its tar was read to the end and hashed on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpackedLayer {
    /// SHA-256 of the whole uncompressed stream, trailing bytes included.
    pub diff_id: DiffId,
    /// Length of that stream in bytes.
    pub diff_size: u64,
    /// Compression of the blob.
    pub compression: Compression,
    /// Who owns its entries.
    pub owners: Owners,
    /// Whether an entry is named `/`, which gives `diff/` itself owner, mode, times and attributes; `./` gives none.
    pub has_root: bool,
}

/// The owners of a tar's entries, hard links and the root entry included, whiteouts not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// Every uid.
    pub uids: BTreeSet<u32>,
    /// Every gid.
    pub gids: BTreeSet<u32>,
}
