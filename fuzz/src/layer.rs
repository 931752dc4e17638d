//! Unpacks a blob as the store does, beside a sentinel, and holds the result against what must be true of any layer.

use std::fs::{self, File, Permissions};
use std::io::{Cursor, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use spoke_precache::cancel::Cancel;
use spoke_precache::oci::{DiffId, Digest};
use spoke_precache::store::tar_split::assemble;
use spoke_precache::store::unpack::{UnpackLimits, UnpackError, unpack};
use spoke_precache::write_back::WriteQueue;

/// Small enough that a bomb costs milliseconds, large enough for every layer of the corpus but its bombs.
const LIMITS: UnpackLimits<'_> = UnpackLimits {
    bytes: 4 << 20,
    budget: None,
    ceiling: u64::MAX,
    entries: 200,
    record: 64 << 10,
    path: 1000,
    depth: 50,
    directory_names: 10_000,
    is_compressible: true,
};

const SENTINEL: &str = "untouched";

/// Unpacks `blob`. Nothing beside the layer's directory may change; what is refused must be the blob's own fault; what
/// is accepted must be put together again as the very bytes that `blob` is when decompressed.
pub fn check(blob: &[u8]) {
    let dir = tempfile::tempdir().expect("a directory");
    let sentinel = dir.path().join("sentinel");
    fs::write(&sentinel, SENTINEL).expect("room");
    let diff = dir.path().join("diff");
    fs::create_dir(&diff).expect("a directory");
    // What the store gives a base layer.
    fs::set_permissions(&diff, Permissions::from_mode(0o555)).expect("a mode");
    let before = beside(dir.path());
    let root = File::open(&diff).expect("a directory");
    let mut tar_split = tempfile::tempfile().expect("a file");

    let unpacked = unpack(
        Cursor::new(blob),
        root.as_fd(),
        &tar_split,
        LIMITS,
        &WriteQueue::off(),
        &Cancel::default(),
    );
    assert_eq!(
        beside(dir.path()),
        before,
        "something outside the layer was touched"
    );
    assert_eq!(fs::read(&sentinel).expect("the sentinel"), SENTINEL.as_bytes());
    match unpacked {
        Ok(unpacked) => {
            let tar = decompressed(blob);
            assert_eq!(unpacked.diff_size, tar.len() as u64);
            assert_eq!(unpacked.diff_id, DiffId(Digest::of(&tar)));
            tar_split.rewind().expect("a seek");
            let mut again = Vec::new();
            let length =
                assemble(&tar_split, root.as_fd(), &mut again).expect("a tar-split that fits its layer");
            assert_eq!(length, again.len() as u64);
            assert!(again == tar, "another tar was put together");
        }
        // One that is said to be the host's halts a whole run.
        Err(error @ (UnpackError::Host { .. } | UnpackError::Stopped(_))) => {
            panic!("blames the host for a layer: {error}")
        }
        Err(error) => assert!(error.to_string().len() < 2_000, "{error}"),
    }
}

/// Everything that lies beside the layer, and the layer's directory by name.
fn beside(dir: &Path) -> Vec<(std::ffi::OsString, u64, u32, u32, u64, i64, i64)> {
    let mut found: Vec<_> = fs::read_dir(dir)
        .expect("a directory")
        .map(|entry| {
            let entry = entry.expect("an entry");
            let it = entry.metadata().expect("metadata");
            match entry.file_name() {
                name if name == "diff" => (name, 0, 0, 0, 0, 0, 0),
                name => (
                    name,
                    it.ino(),
                    it.mode(),
                    it.uid(),
                    it.nlink(),
                    it.mtime_nsec(),
                    it.ctime_nsec(),
                ),
            }
        })
        .collect();
    let it = fs::metadata(dir).expect("metadata");
    found.push((
        "..".into(),
        it.ino(),
        it.mode(),
        it.uid(),
        it.nlink(),
        it.mtime_nsec(),
        it.ctime_nsec(),
    ));
    found.sort();
    found
}

fn decompressed(blob: &[u8]) -> Vec<u8> {
    let mut tar = Vec::new();
    if blob.starts_with(b"\x1f\x8b\x08") {
        flate2::read::MultiGzDecoder::new(blob)
            .read_to_end(&mut tar)
            .expect("gzip, for it was accepted");
    } else if blob.starts_with(b"\x28\xb5\x2f\xfd") {
        tar = zstd::decode_all(blob).expect("zstd, for it was accepted");
    } else {
        tar.extend_from_slice(blob);
    }
    tar
}
