//! Verifies an unpacked layer as `verify` does.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use spoke_precache::cancel::Cancel;
use spoke_precache::oci::{DiffId, LayerId};
use spoke_precache::store::{ExpectedLayer, LayerState, StorageConf, Store};

use crate::image::sha256;

/// Reads the layer again that was made of `tar` in `diff`, from a store of its own. Nothing is wrong with it, so any
/// damage is a false one.
pub(super) fn flaw(diff: &Path, tar_split: &[u8], tar: &[u8]) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let digest = sha256(tar);
    let id = &digest["sha256:".len()..];
    for name in ["overlay/l", "overlay-layers", "overlay-images"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    symlink(diff.parent().unwrap(), root.join("overlay").join(id)).unwrap();
    fs::write(root.join(format!("overlay-layers/{id}.tar-split.gz")), tar_split).unwrap();
    let record = serde_json::json!([{"id": id, "diff-digest": digest, "diff-size": tar.len()}]);
    fs::write(root.join("overlay-layers/layers.json"), record.to_string()).unwrap();
    let inventory = Store::open(root, &StorageConf::default())
        .unwrap()
        .inventory()
        .unwrap();
    let place = ExpectedLayer {
        location: spoke_precache::store::StoreLocation::GraphRoot,
        id: LayerId::from_hex(id).unwrap(),
        parent: None,
        diff_id: DiffId(digest.parse().unwrap()),
    };
    match inventory
        .check_layer(&place, &Cancel::default(), &AtomicU64::new(0))
        .unwrap()
    {
        LayerState::Intact => None,
        // It does not determine the tree.
        LayerState::Unproven(reason) if reason.contains("replace each other") => None,
        state => Some(format!("{state:?}")),
    }
}
