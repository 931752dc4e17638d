//! Measures what other methods need for the same layers: file-level deduplication, and `zstd --patch-from`.
//!
//! zstd takes minutes, and its result depends on the two tars alone, so the cache keeps it.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use crate::archives::{cache, output_of};
use crate::image::sha256;
use crate::layers::Made;
use crate::pairs::{LayerPair, Pair};
use crate::tar_entries;

/// Bytes to transfer of each layer of the pair if every file that the old release has anywhere is left out: what remains of
/// the tar, as gzip.
pub(crate) fn without_known_files(pair: &Pair) -> anyhow::Result<Vec<u64>> {
    let mut known = HashSet::new();
    for layer in &pair.old.layers {
        let entries = tar_entries::read(&layer.tar()?)?;
        known.extend(entries.into_iter().map(|entry| sha256(&entry.data)));
    }
    pair.layers().map(|layer| rest(layer.new, &known)).collect()
}

fn rest(layer: &Made, known: &HashSet<String>) -> anyhow::Result<u64> {
    let mut tar = Vec::new();
    for mut entry in tar_entries::read(&layer.tar()?)? {
        if known.contains(&sha256(&entry.data)) {
            entry.data.clear();
        }
        entry.write(&mut tar);
    }
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), &tar)?;
    let gzip = output_of(Command::new("gzip").args(["-6", "-n", "-c"]).arg(file.path()))?;
    Ok(gzip.len() as u64)
}

/// Bytes of `zstd -19 --long=31 --patch-from`, from tar to tar.
pub(crate) fn zstd_patch(layer: &LayerPair<'_>) -> anyhow::Result<u64> {
    let short = |digest: &str| digest["sha256:".len()..][..16].to_owned();
    let (old, new) = (short(&layer.old.diff_id), short(&layer.new.diff_id));
    let (patch, length) = (format!("{old}-{new}.zst"), format!("{old}-{new}.length"));
    let dir = cache()?.join("zstd");
    fs::create_dir_all(&dir)?;
    if !dir.join(&length).exists() {
        let patch = dir.join(patch);
        println!(
            "zstd --patch-from for {}, for this and later times",
            layer.new.name
        );
        create_patch(layer, &patch)?;
        fs::write(dir.join(&length), fs::metadata(&patch)?.len().to_string())?;
        fs::remove_file(patch)?;
    }
    fs::read_to_string(dir.join(length))?
        .parse()
        .context("the length of a patch")
}

fn create_patch(layer: &LayerPair<'_>, patch: &Path) -> anyhow::Result<()> {
    let mut from = std::ffi::OsString::from("--patch-from=");
    from.push(&layer.old.tar);
    let mut zstd = Command::new("zstd");
    zstd.args(["-q", "-f", "-19", "--long=31"]).arg(from);
    // It recommends other options on standard error.
    output_of(zstd.arg(&layer.new.tar).arg("-o").arg(patch))?;
    Ok(())
}
