//! Measures how fast one layer is unpacked, from a verified blob in the page cache to files and a tar-split
//! (`cargo bench --bench unpack`).
//!
//! It uses one thread, because a run unpacks each layer on one thread. The files go to `/dev/shm`, to leave out the disk. `tar`
//! counts the uncompressed bytes, `blob` the compressed ones. Needs root.
#![allow(dead_code, clippy::print_stderr)]

#[path = "../tests/it/image/mod.rs"]
mod image;
mod synthetic;

use std::fmt;
use std::fs::File;
use std::io::Cursor;
use std::os::fd::AsFd as _;
use std::sync::LazyLock;

use divan::Bencher;
use divan::counter::BytesCount;
use tempfile::TempDir;

use image::{Compression, Layer};
use spoke_precache::cancel::Cancel;
use spoke_precache::store::UnpackedLayer;
use spoke_precache::store::unpack::{UnpackLimits, unpack};
use spoke_precache::write_back::WriteQueue;

/// Bytes in the layer's files. Smaller as a test, which is built without optimisation.
const CONTENT: usize = if cfg!(debug_assertions) { 1 << 20 } else { 64 << 20 };

/// A file system in memory.
const MEMORY: &str = "/dev/shm";

static TAR: LazyLock<Vec<u8>> = LazyLock::new(|| synthetic::tar("usr", CONTENT, 1));
static GZIP: LazyLock<Layer> = LazyLock::new(|| Layer::of_tar(&TAR, Compression::Gzip));
static ZSTD: LazyLock<Layer> = LazyLock::new(|| Layer::of_tar(&TAR, Compression::Zstd));

fn main() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: unpacking needs root");
        return;
    }
    // As in the program: a umask would turn each mode into two system calls.
    rustix::process::umask(rustix::fs::Mode::empty());
    divan::main();
}

#[derive(Clone, Copy)]
enum Form {
    Gzip,
    Zstd,
}

impl Form {
    fn blob(self) -> &'static Layer {
        match self {
            Self::Gzip => &GZIP,
            Self::Zstd => &ZSTD,
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        })
    }
}

#[divan::bench(args = [Form::Gzip, Form::Zstd], sample_count = 15, sample_size = 1)]
fn tar(bencher: Bencher<'_, '_>, form: Form) {
    measure(bencher.counter(BytesCount::new(TAR.len())), form);
}

#[divan::bench(args = [Form::Gzip, Form::Zstd], sample_count = 15, sample_size = 1)]
fn blob(bencher: Bencher<'_, '_>, form: Form) {
    measure(bencher.counter(BytesCount::new(form.blob().size)), form);
}

fn measure(bencher: Bencher<'_, '_>, form: Form) {
    let layer = form.blob();
    bencher
        .with_inputs(|| {
            let directory = TempDir::new_in(MEMORY).expect("a directory in memory");
            let diff = File::open(directory.path()).expect("a directory just made");
            let tar_split = tempfile::tempfile_in(MEMORY).expect("a file in memory");
            (directory, diff, tar_split)
        })
        // The result is dropped, which removes the files, after the clock has stopped.
        .bench_local_values(|(directory, diff, tar_split)| -> (UnpackedLayer, TempDir) {
            let (blob, limits) = (Cursor::new(&layer.blob), UnpackLimits::for_blob(layer.size));
            let unpacked = unpack(
                blob,
                diff.as_fd(),
                &tar_split,
                limits,
                &WriteQueue::off(),
                &Cancel::default(),
            );
            (unpacked.expect("a sound layer"), directory)
        });
}
