//! Measures one layer: `SPEED_LAYER=layer.tar.gz cargo test --release --test it speed -- --ignored --nocapture`.
//!
//! It is unpacked below `TMPDIR`; an ext4 that has just lost many files creates new ones at a tenth of the speed.

use std::fs::{self, File};
use std::io::BufReader;
use std::os::fd::AsFd;
use std::time::Instant;

use spoke_precache::cancel::Cancel;
use spoke_precache::store::unpack::{UnpackLimits, unpack};
use spoke_precache::write_back::WriteQueue;

#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stderr)]
fn speed() {
    let blob = std::env::var("SPEED_LAYER").expect("SPEED_LAYER names a layer");
    for _ in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let diff = File::open(dir.path()).unwrap();
        let split = tempfile::tempfile().unwrap();
        let limits = UnpackLimits::for_blob(fs::metadata(&blob).unwrap().len());
        let start = Instant::now();
        let blob = BufReader::new(File::open(&blob).unwrap());
        let facts = unpack(
            blob,
            diff.as_fd(),
            &split,
            limits,
            &WriteQueue::off(),
            &Cancel::default(),
        )
        .unwrap();
        let seconds = start.elapsed().as_secs_f64();
        eprintln!(
            "{:.0} MB in {seconds:.2} s: {:.0} MB/s; tar-split {:.1} MB",
            facts.diff_size as f64 / 1e6,
            facts.diff_size as f64 / 1e6 / seconds,
            split.metadata().unwrap().len() as f64 / 1e6,
        );
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    eprintln!(
        "{}",
        status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap_or_default()
    );
}
