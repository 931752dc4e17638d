//! What our own unpacking makes of a blob.

use std::fs::{self, File, Permissions};
use std::io::{Cursor, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;

use spoke_precache::cancel::Cancel;
use spoke_precache::store::Unpacked;
use spoke_precache::store::tar_split::assemble;
use spoke_precache::store::unpack::{Limits, UnpackError, unpack};

/// An unpacked layer in a temporary directory, beside a sentinel.
pub struct Ours {
    pub dir: tempfile::TempDir,
    pub tar_split: Vec<u8>,
    pub facts: Unpacked,
}

impl Ours {
    pub fn unpack(blob: &[u8]) -> Result<Self, UnpackError> {
        Self::unpack_within(blob, Limits::for_blob(blob.len() as u64))
    }

    /// Fails the test if anything outside the layer was touched.
    pub fn unpack_within(blob: &[u8], limits: Limits) -> Result<Self, UnpackError> {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join("sentinel"), "untouched").expect("write");
        let diff = dir.path().join("diff");
        fs::create_dir(&diff).expect("mkdir");
        // What the store gives a base layer.
        fs::set_permissions(&diff, Permissions::from_mode(0o555)).expect("chmod");
        let outside = crate::tree::list(dir.path());
        let result = unpack_to(&dir, blob, limits);
        let now: Vec<String> = crate::tree::list(dir.path())
            .into_iter()
            .filter(|line| !line.starts_with("`diff"))
            .collect();
        let before: Vec<String> = outside
            .into_iter()
            .filter(|line| !line.starts_with("`diff"))
            .collect();
        assert_eq!(now, before, "something outside the layer was touched");
        let (tar_split, facts) = result?;
        Ok(Self {
            dir,
            tar_split,
            facts,
        })
    }

    pub fn tree(&self) -> Vec<String> {
        crate::tree::list(&self.dir.path().join("diff"))
    }

    /// The tar, put together again.
    pub fn assemble(&self) -> Vec<u8> {
        let diff = File::open(self.dir.path().join("diff")).expect("open");
        let mut out = Vec::new();
        let length = assemble(&self.tar_split[..], diff.as_fd(), &mut out).expect("assemble");
        assert_eq!(length, out.len() as u64);
        out
    }
}

fn unpack_to(
    dir: &tempfile::TempDir,
    blob: &[u8],
    limits: Limits,
) -> Result<(Vec<u8>, Unpacked), UnpackError> {
    let mut tar_split = tempfile::tempfile().expect("temporary file");
    let diff = File::open(dir.path().join("diff")).expect("open");
    let facts = unpack(
        Cursor::new(blob),
        diff.as_fd(),
        &tar_split,
        limits,
        &Cancel::default(),
    )?;
    let mut bytes = Vec::new();
    tar_split.rewind().expect("seek");
    tar_split.read_to_end(&mut bytes).expect("read");
    Ok((bytes, facts))
}
