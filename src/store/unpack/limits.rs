//! Limits bytes, entries, names and memory of one layer, so that a decompression bomb ends in an error and not in a
//! full disk.
//!
//! Every number is far above real layers; the largest of an OpenShift release have about 100,000 entries and two
//! gigabytes.

use super::space_budget::SpaceBudget;

/// The limits of one layer.
#[derive(Clone, Copy, Debug)]
pub struct UnpackLimits<'a> {
    /// Bytes of the uncompressed tar and of written files, including the holes of sparse files.
    pub bytes: u64,
    /// The budget for more bytes than these, if there is one.
    pub budget: Option<&'a SpaceBudget>,
    /// The bytes that even the budget does not allow.
    pub ceiling: u64,
    /// Headers of any kind, including PAX and long-name headers.
    pub entries: u64,
    /// Bytes of one PAX header, long name or sparse map.
    pub record: usize,
    /// Bytes of a path with its leading slash.
    pub path: usize,
    /// Components of a path.
    pub depth: usize,
    /// Bytes of all directory names together; they are kept until the end to set the times.
    pub directory_names: usize,
    /// Whether the blob may be compressed, which its first bytes show. A decompressor has a window of up to 128 MiB.
    pub is_compressible: bool,
}

/// Without a budget, any layer may unpack to this size: a gibibyte of zeros in a small blob is legitimate.
const BASE_BYTES: u64 = 1 << 30;

/// The largest compression ratio. Gzip reaches 1030 and zstd much more on zeros; layers of real images stay below 20.
const MAX_RATIO: u64 = 200;

/// Limits the memory for names and inode numbers to about 60 MiB.
const MAX_ENTRIES: u64 = 1 << 20;

/// Go's `archive/tar` has the same limit (`maxSpecialFileSize`), and so has libarchive.
const MAX_RECORD: usize = 1 << 20;

/// `PATH_MAX` without the final NUL: containers/storage passes whole paths to the kernel, so it cannot handle longer
/// ones.
const MAX_PATH: usize = 4095;

/// The depth of the longest path with one-letter components.
const MAX_DEPTH: usize = MAX_PATH / 2;

/// A hundred thousand directories with names of a kilobyte.
const MAX_DIRECTORY_NAMES: usize = 100 << 20;

/// A layer with an estimated length may exceed the estimate by half, which the plan accounts for, plus this many
/// bytes, by which small layers differ. Only then it needs space from the budget.
const SLACK: u64 = 1 << 20;

/// The tar that a source makes may be this many times as long as estimated: a layer of text is compressed to a fifteenth, and
/// a guess expects a third.
const MAX_EXCESS: u64 = 8;

/// The tar that a source makes may exceed that by this many bytes: the limit should not depend on the guess for a small layer.
const SOURCE_SLACK: u64 = 64 << 20;

impl<'a> UnpackLimits<'a> {
    /// The limits of a layer with an estimated tar length; more bytes are reserved from `budget`.
    pub fn estimated(tar_bytes: u64, budget: &'a SpaceBudget) -> Self {
        Self {
            bytes: tar_bytes.saturating_add(tar_bytes / 2).saturating_add(SLACK),
            budget: Some(budget),
            ..Self::for_blob(0)
        }
    }

    /// The limits of a tar that something else than the layer's blob makes, like a delta. It is never compressed, and its
    /// length is not authenticated.
    pub fn for_source(tar_bytes: u64, budget: &'a SpaceBudget) -> Self {
        Self {
            ceiling: tar_bytes.saturating_mul(MAX_EXCESS).saturating_add(SOURCE_SLACK),
            is_compressible: false,
            ..Self::estimated(tar_bytes, budget)
        }
    }

    /// The limits of a layer with a blob of this length, without a budget.
    pub fn for_blob(compressed_bytes: u64) -> Self {
        Self {
            bytes: compressed_bytes
                .saturating_mul(MAX_RATIO)
                .saturating_add(BASE_BYTES),
            budget: None,
            ceiling: u64::MAX,
            entries: MAX_ENTRIES,
            record: MAX_RECORD,
            path: MAX_PATH,
            depth: MAX_DEPTH,
            directory_names: MAX_DIRECTORY_NAMES,
            is_compressible: true,
        }
    }
}
