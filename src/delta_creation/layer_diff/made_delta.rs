//! What making the delta of one layer may use, and what was made.

use std::collections::BTreeSet;

use crate::oci::Digest;

/// What making a delta may use.
#[derive(Clone, Copy, Debug)]
pub struct DiffParams {
    /// Bytes of memory. With less than [`LayerPlan::memory_needed`](super::LayerPlan::memory_needed), large files are
    /// compared in windows, and the delta is larger.
    pub memory: u64,
    /// Threads that compare files. The result does not depend on it.
    pub threads: usize,
    /// Level of zstd.
    pub level: i32,
}

impl Default for DiffParams {
    fn default() -> Self {
        Self {
            memory: 2 << 30,
            threads: 1,
            level: 19,
        }
    }
}

/// The deltas of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerDiff {
    /// In the format that other programs apply too. It reads files of image 0 only.
    pub tar_diff: MadeDelta,
    /// In the own format, if it is smaller by a tenth.
    pub inflated: Option<MadeDelta>,
}

/// One delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeDelta {
    /// SHA-256 of the delta.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// The old images whose files it reads.
    pub images: BTreeSet<usize>,
}
