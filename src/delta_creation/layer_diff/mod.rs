//! Makes the delta of one layer from the tar of the new layer and the files of old images.
//!
//! ```text
//! tars of old layers ─LayerFiles::read→ OldFiles ─┐
//! tar of the new layer ─LayerFiles::read──────────┴─LayerPlan::new→ which old file each file is made from      plan
//!                                                          │
//!           matches of each pair, in parallel ←─diff_files─┘                                              file_diff
//!                │
//!                └─LayerWriter→ both formats ─verify→ applied to the old files, they make the layer
//! ```
//!
//! Everything that is not a file with a source is data: headers, padding, new files.
//!
//! # Memory
//!
//! Tars stay on disk. What is in memory at the same time is two files that are compared with their suffix array
//! ([`LayerPlan::memory_needed`]), and afterwards the compressors; throughout, about a hundred bytes for each file and six for
//! each match.

mod comparison;
mod content;
mod content_writer;
mod error;
mod file_diff;
mod layer_files;
mod layer_writer;
mod made_delta;
mod match_list;
mod name_index;
mod old_files;
mod plan;
mod section_pair;
mod shared_blocks;
mod verification;
mod workers;

pub use error::DiffError;
pub use layer_files::LayerFiles;
pub use made_delta::{DiffParams, LayerDiff, MadeDelta};
pub use old_files::OldFiles;
pub use plan::LayerPlan;

use std::fs::File;
use std::thread;

use crate::cancel::Cancel;
use crate::delta::Format;
use file_diff::FileDiff;
use layer_writer::LayerWriter;
use section_pair::Scratch;

/// The delta in the own format has at most this share of the other one.
const MAX_SHARE_PERCENT: u64 = 90;

/// Makes the delta of a layer in both formats, writes them to these empty files, and verifies them by applying them to
/// the old files. The same inputs make the same bytes.
///
/// Blocks the thread. The own format is made only if it can be smaller, and is in the result only if it is smaller by a
/// tenth; otherwise the content of `inflated` has no meaning.
pub fn diff_layer(
    plan: &LayerPlan,
    params: DiffParams,
    tar_diff: &File,
    inflated: &File,
    cancel: &Cancel,
) -> Result<LayerDiff, DiffError> {
    let directory = plan.old_files().scratch();
    let scratch = plan.old_files().empty_scratch_file();
    let scratch = Scratch::new(
        scratch.map_err(DiffError::host("create a scratch file in", directory))?,
        directory,
    );
    let diffs = file_diff::diff_files(plan, &scratch, params, cancel)?;
    let make = |format, output| -> Result<MadeDelta, DiffError> {
        let writer = LayerWriter::new(plan, &scratch, (format, params.level), output, cancel)?;
        let made = writer.write(&diffs)?;
        verification::verify(plan, format, output, cancel)?;
        Ok(made)
    };
    if !needs_own_format(plan, &diffs) {
        let tar_diff = make(Format::TarDiff, tar_diff)?;
        return Ok(LayerDiff {
            tar_diff,
            inflated: None,
        });
    }
    let (inflated, tar_diff) = thread::scope(|scope| {
        let inflated = scope.spawn(|| make(Format::InflatedTarDiff, inflated));
        let tar_diff = make(Format::TarDiff, tar_diff);
        let inflated = inflated
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (inflated, tar_diff)
    });
    let (inflated, tar_diff) = (inflated?, tar_diff?);
    let pays = inflated.size <= tar_diff.size / 100 * MAX_SHARE_PERCENT;
    Ok(LayerDiff {
        tar_diff,
        inflated: pays.then_some(inflated),
    })
}

/// Whether anything is inflated or read from another image than the predecessor.
fn needs_own_format(plan: &LayerPlan, diffs: &[FileDiff]) -> bool {
    let mut pairs = plan.files().iter().zip(diffs);
    pairs.any(|(file, diff)| {
        let is_elsewhere = file.source.as_ref().is_some_and(|source| source.name.image != 0);
        !diff.sections.is_empty() || is_elsewhere
    })
}

#[cfg(test)]
mod tests;
