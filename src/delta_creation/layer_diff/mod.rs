//! Makes the delta of one layer from the tar of the new layer and the files of old images.
//!
//! ```text
//! tars of old layers ─LayerFiles::read→ OldFiles ─┐
//! tar of the new layer ─LayerFiles::read──────────┴─LayerPlan::new→ which source each file has
//!                                                          │
//!                                                      diff_layer ─→ both formats, verified by applying them
//! ```

mod error;
#[expect(dead_code, reason = "sources are not chosen yet")]
mod layer_files;
mod made_delta;
#[expect(dead_code, reason = "sources are not chosen yet")]
mod old_files;
mod plan;

pub use error::DiffError;
pub use layer_files::LayerFiles;
pub use made_delta::{LayerDiff, MadeDelta};
pub use old_files::OldFiles;
pub use plan::LayerPlan;

use std::fs::File;

use crate::cancel::Cancel;

/// What making a delta may use.
#[derive(Clone, Copy, Debug)]
pub struct DiffParams {
    /// Bytes of memory. With less than [`LayerPlan::memory_needed`], large files are compared in windows and the delta
    /// is larger.
    pub memory: u64,
    /// Threads that compare files, besides the one that compresses. The result does not depend on it.
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

/// Makes the delta of a layer in both formats, writes them to these empty files, and verifies them by applying them to
/// the old files. The same inputs make the same bytes.
///
/// Blocks the thread. The own format is made only if it can be smaller, and is in the result only if it is smaller by a
/// tenth; without it, the content of `inflated` has no meaning.
pub fn diff_layer(
    plan: &LayerPlan,
    params: DiffParams,
    tar_diff: &File,
    inflated: &File,
    cancel: &Cancel,
) -> Result<LayerDiff, DiffError> {
    let _ = inflated;
    cancel.check()?;
    let tar_diff = made_delta::data_only(plan, params, tar_diff)?;
    Ok(LayerDiff {
        tar_diff,
        inflated: None,
    })
}
