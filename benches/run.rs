//! Measures a whole run, from flags to result, on a small release: `cargo bench --bench run`.
//!
//! The registry is in this process, on loopback, so the figures contain its work. Every run starts with an empty store
//! and spool below `TMPDIR`; `warm` starts with everything in the store. Bytes are those of all distinct blobs. Needs root.
#![allow(dead_code, clippy::print_stderr)]

#[path = "../tests/it/image/mod.rs"]
mod image;
#[path = "../tests/it/registry/mod.rs"]
mod registry;
mod synthetic;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use clap::Parser as _;
use divan::Bencher;
use divan::counter::BytesCount;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use image::release::Release;
use registry::Registry;
use spoke_precache::cancel::Cancel;
use spoke_precache::cli::{Cli, Command};
use spoke_precache::exit_code::Ending;
use spoke_precache::job::{self, Mode};
use spoke_precache::report::{Observer, Recorder};
use spoke_precache::settings;

/// Sizes are divided by this; smaller as a test, which is built without optimisation.
const LESS: usize = if cfg!(debug_assertions) { 64 } else { 1 };
/// Bytes in the files of the layer that all images share.
const BASE: usize = (32 << 20) / LESS;
/// The images, and the bytes in the files of the layer that each has of its own.
const OWN: [(&str, usize); 6] = [
    ("cli", (24 << 20) / LESS),
    ("etcd", (12 << 20) / LESS),
    ("hyperkube", (16 << 20) / LESS),
    ("installer", (8 << 20) / LESS),
    ("oauth-server", (2 << 20) / LESS),
    ("pod", (1 << 20) / LESS),
];

static RELEASE: LazyLock<(Registry, Release)> = LazyLock::new(|| {
    let registry = Registry::start();
    let release = synthetic::release(&registry.host(), BASE, &OWN);
    registry.push_release(&release);
    (registry, release)
});

fn main() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: a store needs root");
        return;
    }
    rustix::process::umask(rustix::fs::Mode::empty());
    divan::main();
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn cold(bencher: Bencher<'_, '_>) {
    let runtime = Runtime::new().expect("a runtime");
    bencher
        .counter(BytesCount::new(synthetic::unique_bytes(&RELEASE.1)))
        .with_inputs(node)
        .bench_local_values(|node| {
            run(&runtime, node.path());
            node
        });
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn warm(bencher: Bencher<'_, '_>) {
    let runtime = Runtime::new().expect("a runtime");
    let node = node();
    run(&runtime, node.path());
    bencher.bench_local(|| run(&runtime, node.path()));
}

/// The root of a host without images, which trusts the registry.
fn node() -> TempDir {
    let node = tempfile::tempdir().expect("a temporary directory");
    let conf = node.path().join("etc/containers");
    fs::create_dir_all(&conf).expect("a directory below a new one");
    let trust = format!(
        "[[registry]]\nlocation = \"{}\"\ninsecure = true\n",
        RELEASE.0.host()
    );
    fs::write(conf.join("registries.conf"), trust).expect("a file in a new directory");
    node
}

fn run(runtime: &Runtime, node: &Path) {
    let words: [OsString; 8] = [
        "spoke-precache".into(),
        "run".into(),
        "--host-root".into(),
        node.into(),
        "--platform-image".into(),
        RELEASE.1.by_digest().into(),
        // The machine's disk may be fuller than the threshold of a node.
        "--image-gc-high-threshold".into(),
        "100".into(),
    ];
    let Command::Run(flags) = Cli::parse_from(words).command else {
        unreachable!("the command is `run`")
    };
    let order = settings::job_config(&flags.flags, &spoke_precache::cluster::ClusterInfo::default())
        .expect("sound flags");
    let observer: Arc<dyn Observer> = Arc::new(Recorder::new(jiff::Timestamp::now));
    let cancel = Cancel::default();
    let outcome = runtime.block_on(job::run(&order, Mode::Run, &observer, &cancel));
    let ending = outcome.expect("a run that ends by itself").ending(&cancel);
    assert!(
        matches!(ending, Ending::Complete),
        "the run ended with {ending:?}"
    );
}
