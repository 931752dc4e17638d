//! Tests that blobs leave the page cache after use.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::{needs, note, skip};
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

/// Until a blob has come and is unpacked, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is not written yet when a blob is done with stays, and a disk that is busy with other tests may have written
/// nothing.
const ATTEMPTS: usize = 3;

/// Bytes of a blob that comes.
const SIZE: u64 = 3_000_000;

/// Bytes a second: slow enough for the disk to have most of the blob when its end comes.
const LINK: u64 = 750_000;

/// Bytes of it that may stay, for they are not on the disk yet: of four seconds the last one or two.
const LATE: u64 = SIZE * 3 / 4;

/// Bytes of a file that are in memory.
fn resident(path: &Path) -> Option<u64> {
    let output = Command::new("fincore")
        .args(["--bytes", "--noheadings", "--output", "RES"])
        .arg(path)
        .output()
        .ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// One blob of an image is unpacked and waits in the spool, for the other one does not come.
#[test]
fn a_blob_that_waits_for_others_does_not_wait_in_memory() {
    needs!(root());
    if !Path::new("/usr/bin/fincore").exists() {
        return skip("`fincore` is not installed");
    }
    let layer = |size: u64, seed: u64| {
        let text = format!("file /{seed} 0644 0:0 random={size} seed={seed}");
        Layer::of(&text, Compression::None)
    };
    let (comes, stalls) = (layer(SIZE, 1), layer(200_000, 2));
    let blobs = [comes.digest.clone(), stalls.digest.clone()];
    let image = Image::build(
        "a",
        Format::Oci,
        node_architecture(),
        vec![comes, stalls],
        |_, _| {},
    );
    let registry = Registry::start();
    registry.push("a", Some("latest"), &image);
    registry.fault(Fault::on(&blobs[1]).stall(100));
    registry.fault(Fault::on(&blobs[0]).slow(LINK));
    if rustix::fs::statfs(std::env::temp_dir()).unwrap().f_type == libc::TMPFS_MAGIC {
        return skip("what lies on a tmpfs lies in memory");
    }
    let left: Vec<_> = (0..ATTEMPTS)
        .map_while(|_| match left_in_memory(&registry, &blobs[0]) {
            Some(left) if left < LATE => {
                note(&format!("{left} of {SIZE} bytes stay in memory"));
                None
            }
            left => Some(left),
        })
        .collect();
    assert!(left.len() < ATTEMPTS, "bytes of {SIZE} in memory: {left:?}");
}

/// The fewest bytes of the blob that were seen in memory after it had come.
fn left_in_memory(registry: &Registry, blob: &str) -> Option<u64> {
    let world = TestNode::trusting(&[registry.host()]);
    let spool = world.host().join("var/lib/containers/spoke-precache");
    let run = world.start("run", &["--image", &registry.tagged("a")]);
    let path: PathBuf = spool.join(blob);
    let began = Instant::now();
    let mut left = None;
    while left.is_none_or(|left| left >= LATE) && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
        left = resident(&path).or(left);
    }
    run.signal(Signal::TERM);
    run.wait().exits(143);
    left
}
