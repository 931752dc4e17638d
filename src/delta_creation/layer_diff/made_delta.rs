//! What making the delta of one layer may use, and what was made.

use crate::delta::Format;
use crate::oci::Digest;

/// The deltas of a layer differ in their format, and in the images whose files they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// In the format that other programs apply too; it reads files of image 0 only.
    Standard,
    /// In the own format; it reads files of image 0 only.
    Inflated,
    /// In the own format; it reads files of all images. A node that lacks one of them cannot use it.
    Further,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Standard, Self::Inflated, Self::Further];

    /// How it is encoded.
    pub fn format(self) -> Format {
        match self {
            Self::Standard => Format::TarDiff,
            Self::Inflated | Self::Further => Format::InflatedTarDiff,
        }
    }
}

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
    /// [`Variant::Standard`].
    pub standard: MadeDelta,
    /// [`Variant::Inflated`], if it is smaller by a tenth.
    pub inflated: Option<MadeDelta>,
    /// [`Variant::Further`], if it is smaller by a tenth than both others.
    pub further: Option<MadeDelta>,
}

/// One delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeDelta {
    /// SHA-256 of the delta.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
}
