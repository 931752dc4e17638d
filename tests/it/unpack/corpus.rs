//! Unpacks tars and layers of other projects, if the corpus is beside the project.

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::path::PathBuf;

use super::differential::{Same, compare_layer};
use super::own_unpack::Ours;
use super::podman_unpack::Podman;
use crate::image::{Compression, Layer, sha256};
use crate::needs::{self, needs};

/// Files of which podman's tar-split cannot be read back, so that ours is another.
const PODMAN_WRITES_BAD_TAR_SPLIT: &[&str] = &[
    // Sparse files in PAX format.
    "pax-sparse-big.tar",
    "pax-nil-sparse-data.tar",
    "pax-nil-sparse-hole.tar",
];

/// Files that podman unpacks and we do not, on purpose.
const REFUSED: &[&str] = &[
    // Sparse files of terabytes, or more, made of a few bytes.
    "pax-sparse-big.tar",
];

#[test]
fn the_corpus() {
    needs!(root(), stock(), corpus());
    let corpus = needs::corpus().unwrap();
    let podman = Podman::new();
    let mut left: Vec<PathBuf> = vec![corpus.join("tar"), corpus.join("layers")];
    let (mut differences, mut count) = (Vec::new(), 0);
    let mut seen = HashSet::new();
    // Layers that were unpacked, for the tars in them.
    let mut kept = Vec::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let blob = fs::read(&path).unwrap();
        let mut tar = Vec::new();
        let gzip = flate2::read::MultiGzDecoder::new(&blob[..])
            .read_to_end(&mut tar)
            .is_ok();
        let compression = if gzip {
            Compression::Gzip
        } else {
            Compression::None
        };
        let tar = if gzip { &tar } else { &blob };
        // podman re-uses a layer that it knows by its diffID.
        if !seen.insert(tar.clone()) {
            continue;
        }
        count += 1;
        if REFUSED.contains(&&*name) {
            differences.extend(
                Ours::unpack(&blob)
                    .is_ok()
                    .then(|| format!("{name}: not refused")),
            );
            continue;
        }
        let same = if PODMAN_WRITES_BAD_TAR_SPLIT.contains(&&*name) {
            Same::Tree
        } else {
            Same::All
        };
        let layer = Layer::of_blob(blob.clone().into(), sha256(tar), compression);
        differences.extend(compare_layer(&podman, &name, &layer, tar, same));
        // The images that are tars hold layers.
        if path.starts_with(corpus.join("layers"))
            && let Ok(ours) = Ours::unpack(&blob)
        {
            left.push(ours.diff());
            kept.push(ours);
        }
    }
    assert!(count > 60, "only {count} files in the corpus");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
