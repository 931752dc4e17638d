//! No tar-split panics, fills memory, opens anything but a regular file of the layer, or gets at what lies outside.
//! Needs root, for there is a device.
//!
//! The bytes are the lines as they are before compression, or a gzip.
#![no_main]

use std::fs::{self, File};
use std::io::{Cursor, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use spoke_precache::store::tar_split::assemble;
use spoke_precache_fuzz::jail;

const SENTINEL: &[u8] = b"nobody may read this";

static LAYER: LazyLock<(tempfile::TempDir, File)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("sentinel"), SENTINEL).expect("room");
    let diff = dir.path().join("diff");
    fs::create_dir_all(diff.join("d")).expect("a directory");
    fs::write(diff.join("f"), "123456789").expect("room");
    fs::write(diff.join("d/g"), "g").expect("room");
    symlink("d", diff.join("l")).expect("a link");
    symlink("../sentinel", diff.join("s")).expect("a link");
    symlink("..", diff.join("u")).expect("a link");
    mknodat(CWD, diff.join("p"), FileType::Fifo, Mode::RWXU, 0).expect("a FIFO");
    mknodat(
        CWD,
        diff.join("z"),
        FileType::CharacterDevice,
        Mode::RWXU,
        makedev(1, 5),
    )
    .expect("a device");
    let root = File::open(diff).expect("a directory");
    (dir, root)
});

fuzz_target!(
    init: jail::enter().expect("root"),
    |bytes: &[u8]| {
        let gzip = if bytes.starts_with(b"\x1f\x8b") {
            bytes.to_vec()
        } else {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
            encoder.write_all(bytes).expect("memory");
            encoder.finish().expect("memory")
        };
        let mut out = Cursor::new(Vec::new());
        let assembled = assemble(&gzip[..], LAYER.1.as_fd(), &mut out);
        let out = out.into_inner();
        match assembled {
            Ok(length) => assert_eq!(length, out.len() as u64),
            Err(error) => assert!(error.to_string().len() < 2_000, "{error}"),
        }
        assert!(!out.windows(SENTINEL.len()).any(|window| window == SENTINEL));
    }
);
