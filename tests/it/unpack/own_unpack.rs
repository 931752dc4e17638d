//! Unpacks a blob with the program's own code.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{Cursor, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use spoke_precache::cancel::Cancel;
use spoke_precache::store::UnpackedLayer;
use spoke_precache::store::tar_split::assemble;
use spoke_precache::store::unpack::{UnpackError, UnpackLimits, unpack};
use spoke_precache::write_back::WriteQueue;

use crate::compare::tar_split::rebuild;
use crate::compare::tree;

/// An unpacked layer in a temporary directory, beside a sentinel.
pub(super) struct Ours {
    pub(super) dir: tempfile::TempDir,
    pub(super) tar_split: Vec<u8>,
    pub(super) facts: UnpackedLayer,
}

impl Ours {
    pub(super) fn unpack(blob: &[u8]) -> Result<Self, UnpackError> {
        Self::unpack_within(blob, UnpackLimits::for_blob(blob.len() as u64))
    }

    /// Fails the test if anything outside the layer was touched.
    pub(super) fn unpack_within(blob: &[u8], limits: UnpackLimits) -> Result<Self, UnpackError> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("sentinel"), "untouched").unwrap();
        let diff = dir.path().join("diff");
        fs::create_dir(&diff).unwrap();
        // What the store gives a base layer.
        fs::set_permissions(&diff, Permissions::from_mode(0o555)).unwrap();
        let outside = || -> BTreeMap<String, String> {
            let mut lines = tree::below(dir.path());
            lines.retain(|name, _| !name.starts_with("diff"));
            lines
        };
        let before = outside();
        let result = unpack_to(&dir, blob, limits);
        assert_eq!(outside(), before, "something outside the layer was touched");
        let (tar_split, facts) = result?;
        Ok(Self {
            dir,
            tar_split,
            facts,
        })
    }

    pub(super) fn diff(&self) -> PathBuf {
        self.dir.path().join("diff")
    }

    /// The tar, put together again; by a reader that is not ours, too.
    pub(super) fn assemble(&self) -> Vec<u8> {
        let diff = File::open(self.diff()).unwrap();
        let mut out = Vec::new();
        let length = assemble(&self.tar_split[..], diff.as_fd(), &mut out).unwrap();
        assert_eq!(length, out.len() as u64);
        match rebuild(&self.tar_split, &self.diff()) {
            Ok(tar) => assert!(tar == out, "two readers of the tar-split disagree"),
            Err(why) => panic!("{why}"),
        }
        out
    }
}

fn unpack_to(
    dir: &tempfile::TempDir,
    blob: &[u8],
    limits: UnpackLimits,
) -> Result<(Vec<u8>, UnpackedLayer), UnpackError> {
    let mut tar_split = tempfile::tempfile().unwrap();
    let diff = File::open(dir.path().join("diff")).unwrap();
    let facts = unpack(
        Cursor::new(blob),
        diff.as_fd(),
        &tar_split,
        limits,
        &WriteQueue::off(),
        &Cancel::default(),
    )?;
    let mut bytes = Vec::new();
    tar_split.rewind().unwrap();
    tar_split.read_to_end(&mut bytes).unwrap();
    Ok((bytes, facts))
}
