//! Applies a new delta and compares the result with the layer: a delta that fails must not be published.

use std::fs::File;
use std::io::{Read, Seek};

use super::error::DiffError;
use super::plan::LayerPlan;
use crate::cancel::Cancel;
use crate::delta::{Format, PatchedTar};
use crate::oci::{DiffId, Hasher};

const BUFFER: usize = 256 << 10;

/// Applies the delta in `file` to the old files.
pub(super) fn verify(
    plan: &LayerPlan,
    format: Format,
    mut file: &File,
    cancel: &Cancel,
) -> Result<(), DiffError> {
    let layer = plan.new_layer();
    let wrong = |reason: String| DiffError::Wrong {
        path: layer.tar().to_owned(),
        reason,
    };
    file.rewind()
        .map_err(DiffError::host("read the delta of", layer.tar()))?;
    let sources = Box::new(plan.old_files().clone());
    let mut tar =
        PatchedTar::open(file, format, sources, cancel).map_err(|error| wrong(error.to_string()))?;
    let mut hasher = Hasher::default();
    let mut buffer = vec![0; BUFFER];
    loop {
        cancel.check()?;
        match tar.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => hasher.update(&buffer[..length]),
            Err(error) => {
                cancel.check()?;
                return Err(wrong(error.to_string()));
            }
        }
    }
    let made = DiffId(hasher.finish());
    if made == layer.diff_id() {
        Ok(())
    } else {
        Err(wrong(format!("it makes a tar with the digest {}", made.0)))
    }
}
