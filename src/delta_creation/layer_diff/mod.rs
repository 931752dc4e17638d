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

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::thread;

use crate::cancel::Cancel;
use crate::delta::Format;
use file_diff::FileDiff;
use layer_writer::LayerWriter;
use section_pair::Scratch;

/// The delta in the own format has at most this share of the other one, and one that reads a further image at most this
/// share of one that does not.
const MAX_SHARE_PERCENT: u64 = 90;

/// The level of zstd for deciding whether to read a further image.
const ESTIMATE_LEVEL: i32 = 3;

/// The image whose files both formats read.
const PREDECESSOR: usize = 0;

/// Makes the delta of a layer in both formats, writes them to these empty files, and verifies them by applying them to
/// the old files. The same inputs make the same bytes.
///
/// Blocks the thread. The own format is made only if it can be smaller, and is in the result only if it is smaller by a
/// tenth; otherwise the content of `inflated` has no meaning. It reads another image than image 0 only if that makes it
/// smaller by a tenth, because a node without that image cannot use it.
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
    let predecessor = BTreeSet::from([PREDECESSOR]);
    let images = worthwhile_images(plan, &scratch, &diffs, cancel)?;
    let make = |format, images, output| -> Result<MadeDelta, DiffError> {
        let encoding = (format, params.level);
        let writer = LayerWriter::new(plan, &scratch, encoding, images, output, cancel)?;
        let made = writer.write(&diffs)?;
        verification::verify(plan, format, output, cancel)?;
        Ok(made)
    };
    let make_tar_diff = || make(Format::TarDiff, &predecessor, tar_diff);
    let has_sections = diffs.iter().any(|diff| !diff.sections.is_empty());
    if !has_sections && images.is_subset(&predecessor) {
        let (tar_diff, inflated) = (make_tar_diff()?, None);
        return Ok(LayerDiff { tar_diff, inflated });
    }
    let (inflated, tar_diff) = thread::scope(|scope| {
        let inflated = scope.spawn(|| make(Format::InflatedTarDiff, &images, inflated));
        let tar_diff = make_tar_diff();
        let inflated = inflated
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (inflated, tar_diff)
    });
    let (inflated, tar_diff) = (inflated?, tar_diff?);
    let pays = is_smaller_by_a_tenth(inflated.size, tar_diff.size);
    Ok(LayerDiff {
        tar_diff,
        inflated: pays.then_some(inflated),
    })
}

/// The old images that the delta in the own format reads: image 0, and each further one without which it would be larger by
/// more than a tenth.
fn worthwhile_images(
    plan: &LayerPlan,
    scratch: &Scratch<'_>,
    diffs: &[FileDiff],
    cancel: &Cancel,
) -> Result<BTreeSet<usize>, DiffError> {
    let size = |images: &BTreeSet<usize>| -> Result<u64, DiffError> {
        let encoding = (Format::InflatedTarDiff, ESTIMATE_LEVEL);
        let writer = LayerWriter::new(plan, scratch, encoding, images, io::sink(), cancel)?;
        Ok(writer.write(diffs)?.size)
    };
    let mut images = plan.images();
    images.insert(PREDECESSOR);
    for image in plan.images().into_iter().filter(|image| *image != PREDECESSOR) {
        let mut others = images.clone();
        others.remove(&image);
        if !is_smaller_by_a_tenth(size(&images)?, size(&others)?) {
            images = others;
        }
    }
    Ok(images)
}

fn is_smaller_by_a_tenth(size: u64, other: u64) -> bool {
    size <= other / 100 * MAX_SHARE_PERCENT
}

#[cfg(test)]
mod tests;
