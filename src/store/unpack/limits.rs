//! What a layer may cost, so that a decompression bomb or an endless tar ends in an error and not in a full disk.
//!
//! Every number is far above what a real layer has; the largest of an OpenShift release hold about 100,000 entries
//! and unpack to some two gigabytes.

use super::space_budget::SpaceBudget;

/// Bounds of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Bytes of the uncompressed tar, and of files written, the holes of sparse ones included.
    pub bytes: u64,
    /// Where more bytes than these are taken from, if they may be.
    pub budget: Option<&'a SpaceBudget>,
    /// Headers of any kind, PAX and long-name ones included.
    pub entries: u64,
    /// Bytes of one PAX header, long name or sparse map.
    pub record: usize,
    /// Bytes of a path with its leading slash.
    pub path: usize,
    /// Components of a path.
    pub depth: usize,
    /// Bytes of all directory names together, which are kept until the end to set the times.
    pub directory_names: usize,
}

/// Without a disk that decides, any layer may unpack to this much: a gibibyte of zeros in a small blob is legitimate.
const BASE_BYTES: u64 = 1 << 30;

/// Gzip reaches 1030 and zstd much more on zeros; layers of real images stay below 20.
const MAX_RATIO: u64 = 200;

/// Bounds the memory for names and inode numbers, which grow with the entries, to about 60 MiB.
const MAX_ENTRIES: u64 = 1 << 20;

/// Go's `archive/tar` has the same limit (`maxSpecialFileSize`), and so has libarchive.
const MAX_RECORD: usize = 1 << 20;

/// `PATH_MAX` with the final NUL: containers/storage hands whole paths to the kernel, and so cannot do longer ones.
const MAX_PATH: usize = 4095;

/// A path of one-letter components that is as long as the kernel takes.
const MAX_DEPTH: usize = MAX_PATH / 2;

/// A hundred thousand directories with names of a kilobyte.
const MAX_DIRECTORY_NAMES: usize = 100 << 20;

/// A layer whose length was guessed may be so much longer before it needs room that others could need: half as much
/// again, which is what a plan fits with for certain, and what small layers differ by.
const SLACK: u64 = 1 << 20;

impl<'a> Limits<'a> {
    /// The limits of a layer of which this many bytes of tar were foreseen, and which takes more from `room`.
    pub fn estimated(tar_bytes: u64, budget: &'a SpaceBudget) -> Self {
        Self {
            bytes: tar_bytes.saturating_add(tar_bytes / 2).saturating_add(SLACK),
            budget: Some(budget),
            ..Self::for_blob(0)
        }
    }

    /// The limits of a layer whose blob has this many bytes, whatever room there is.
    pub fn for_blob(compressed_bytes: u64) -> Self {
        Self {
            bytes: compressed_bytes
                .saturating_mul(MAX_RATIO)
                .saturating_add(BASE_BYTES),
            budget: None,
            entries: MAX_ENTRIES,
            record: MAX_RECORD,
            path: MAX_PATH,
            depth: MAX_DEPTH,
            directory_names: MAX_DIRECTORY_NAMES,
        }
    }
}
