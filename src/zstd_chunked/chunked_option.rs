//! Describes how one layer is made from chunks and from files that this node has.

use std::ops::Range;

use super::metadata::Metadata;
use crate::delta::DeltaSource;
use crate::oci::Digest;

/// A layer whose blob need not be downloaded whole, because this node has many of its files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChunkedOption {
    /// Digest of the layer's blob.
    pub blob: Digest,
    /// Length of the blob in bytes.
    pub size: u64,
    /// Where the blob has its TOC and its tar-split.
    pub metadata: Metadata,
    /// The bytes of the blob to download: TOC, tar-split and chunks. In order; none overlaps another.
    pub ranges: Vec<Range<u64>>,
    /// How many bytes these are.
    pub bytes: u64,
    /// The stored images whose files are used.
    pub images: Vec<DeltaSource>,
    /// Length of the tar.
    pub tar_size: u64,
    /// For each file of the TOC the number of the image that has it; none if its chunks are downloaded.
    pub(super) origins: Vec<Option<u8>>,
}
