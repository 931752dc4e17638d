//! Makes the delta of one layer from the tar of the new layer and the files of old images.
//!
//! ```text
//! tars of old layers ─LayerFiles::read→ OldFiles ─┐
//! tar of the new layer ─LayerFiles::read──────────┴─LayerPlan::new→ which old file each file is made from      plan
//!                                                          │
//!           matches of each pair, in parallel ←─diff_files─┘                                              file_diff
//!                │
//!                └─LayerWriter→ each variant ─verify→ applied to the old files, they make the layer
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
pub use made_delta::{DiffParams, LayerDiff, MadeDelta, Variant};
pub use old_files::OldFiles;
pub use plan::LayerPlan;

use std::fs::File;
use std::thread::{self, ScopedJoinHandle};

use crate::cancel::Cancel;
use file_diff::FileDiff;
use layer_writer::LayerWriter;
use section_pair::Scratch;

/// A variant that fewer nodes can use has at most this share of the others.
const MAX_SHARE_PERCENT: u64 = 90;

/// Makes the delta of a layer in each variant, writes them to these empty files, which are in the order of [`Variant::ALL`],
/// and verifies them by applying them to the old files. The same inputs make the same bytes.
///
/// Blocks the thread. A variant is made only if it can be smaller, and is in the result only if it is smaller by a tenth;
/// otherwise the content of its file has no meaning.
pub fn diff_layer(
    plan: &LayerPlan,
    params: DiffParams,
    outputs: [&File; Variant::ALL.len()],
    cancel: &Cancel,
) -> Result<LayerDiff, DiffError> {
    let directory = plan.old_files().scratch();
    let scratch = plan.old_files().empty_scratch_file();
    let scratch = Scratch::new(
        scratch.map_err(DiffError::host("create a scratch file in", directory))?,
        directory,
    );
    let diffs = file_diff::diff_files(plan, &scratch, params, cancel)?;
    let make = |variant: Variant, output| -> Result<MadeDelta, DiffError> {
        let writer = LayerWriter::new(plan, &scratch, (variant, params.level), output, cancel)?;
        let made = writer.write(&diffs)?;
        verification::verify(plan, variant.format(), output, cancel)?;
        Ok(made)
    };
    let (standard, inflated, further) = thread::scope(|scope| {
        let (make, [standard, inflated, further]) = (&make, outputs);
        let in_thread = |variant, output| scope.spawn(move || make(variant, output));
        let inflated = has_sections(&diffs).then(|| in_thread(Variant::Inflated, inflated));
        let further = reads_further(plan, &diffs).then(|| in_thread(Variant::Further, further));
        let standard = make(Variant::Standard, standard);
        (standard, inflated.map(join), further.map(join))
    });
    let (standard, inflated, further) = (standard?, inflated.transpose()?, further.transpose()?);
    let inflated = inflated.filter(|made| pays(made, &standard));
    let best = inflated.as_ref().unwrap_or(&standard);
    let further = further.filter(|made| pays(made, best));
    Ok(LayerDiff {
        standard,
        inflated,
        further,
    })
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    let joined = thread.join();
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Whether anything is inflated.
fn has_sections(diffs: &[FileDiff]) -> bool {
    diffs.iter().any(|diff| !diff.sections.is_empty())
}

/// Whether anything is read from another image than the predecessor.
fn reads_further(plan: &LayerPlan, diffs: &[FileDiff]) -> bool {
    let mut files = plan.files().iter().zip(diffs);
    files.any(|(file, diff)| {
        let source = file.source.as_ref().filter(|source| source.is_further());
        source.is_some_and(|source| source.is_equal || diff.reads_source())
    })
}

fn pays(made: &MadeDelta, other: &MadeDelta) -> bool {
    made.size <= other.size / 100 * MAX_SHARE_PERCENT
}

#[cfg(test)]
mod tests;
