//! Tests commits that must fail: wrong content, layers without parents, a full disk, a lock that is held.

use std::fs;
use std::io::Write as _;

use rustix::mount::{MountFlags, mount};
use spoke_precache::cancel::{Cancel, StopReason};
use spoke_precache::oci::{DiffId, Digest, Reference};
use spoke_precache::store::{Compression, ImageCommit, LayerCommit, Owners, StoreError, UnpackedLayer};
use spoke_precache::write_back::WriteQueue;

use super::{resolved, stage, store, three_layers};
use crate::compare::inconsistencies;
use crate::needs::needs;
use crate::test_node::TestNode;

/// What the image needs at most, in blocks.
const ENOUGH: usize = 60;
const BLOCK: usize = 4096;

#[test]
fn a_full_disk_leaves_a_sound_store_wherever_it_is_met() {
    needs!(root());
    let (world, image) = (TestNode::trusting(&[]), three_layers());
    let (root, resolved) = (world.graph_root(), resolved(&image, None));
    fs::create_dir(&root).unwrap();
    mount("t", &root, "tmpfs", MountFlags::empty(), c"size=4m,mode=0700").unwrap();
    let store = store(&world);
    for free in 0..ENOUGH {
        let area = store.stage(&WriteQueue::off()).unwrap();
        let pairs = resolved.layers.iter().cloned().zip(&image.layers);
        let staged = pairs.map(|(spec, layer)| stage(&area, spec, layer)).collect();
        let mut fill = fs::File::create(root.join("fill")).unwrap();
        let mut length = 0;
        while fill.write_all(&[1; BLOCK]).is_ok() {
            length += BLOCK as u64;
        }
        fill.set_len(length - (free * BLOCK) as u64).unwrap();
        let cancel = Cancel::default();
        let name: Reference = "localhost/a:1".parse().unwrap();
        let committed = store.commit_layers(staged, &cancel);
        let committed = committed.and_then(|_| store.commit_image(&resolved, &name, &cancel));
        drop(area);
        // A program that another test is just starting may have the file open still, and would keep what it takes up.
        fill.set_len(0).unwrap();
        fs::remove_file(root.join("fill")).unwrap();
        let wrong = inconsistencies(&root);
        assert!(wrong.is_empty(), "with {free} free blocks:\n{}", wrong.join("\n"));
        match committed {
            Ok(ImageCommit::Committed(_)) => return assert!(free > 2, "only {free} failures"),
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(error.is_no_space(), "{error}"),
        }
    }
    panic!("the image does not fit");
}

#[test]
fn what_does_not_fit_is_refused() {
    needs!(root());
    let (world, image) = (TestNode::trusting(&[]), three_layers());
    let (store, resolved) = (store(&world), resolved(&image, None));
    let (area, specs, cancel) = (
        store.stage(&WriteQueue::off()).unwrap(),
        &resolved.layers,
        Cancel::default(),
    );
    // Another content than the config promises.
    let unpacked = UnpackedLayer {
        has_root: false,
        diff_id: DiffId(Digest::of(b"other")),
        diff_size: 1,
        compression: Compression::Gzip,
        owners: Owners::default(),
    };
    let refused = area.layer(specs[0].clone()).unwrap().finish(unpacked);
    assert!(matches!(refused, Err(StoreError::ContentMismatch { .. })));
    // A child whose parent is not there is given back, and can be committed after it.
    let staged = |index: usize| stage(&area, specs[index].clone(), &image.layers[index]);
    let mut outcome = store.commit_layers(vec![staged(1)], &cancel).unwrap();
    let Some((_, LayerCommit::ParentMissing(child))) = outcome.pop() else {
        panic!("{outcome:?}")
    };
    let name = "localhost/a:1".parse().unwrap();
    let missing = store.commit_image(&resolved, &name, &cancel).unwrap();
    assert_eq!(missing, ImageCommit::ChainMissing { layer: specs[0].id() });
    let outcome = store.commit_layers(vec![staged(0), *child], &cancel).unwrap();
    assert!(
        outcome
            .iter()
            .all(|(_, outcome)| matches!(outcome, LayerCommit::Committed)),
        "{outcome:?}"
    );
    // A layer with mapped owners is not ours to build on.
    let records = world.graph_root().join("overlay-layers/layers.json");
    let mut all: Vec<serde_json::Value> = serde_json::from_slice(&fs::read(&records).unwrap()).unwrap();
    all[1]["uidmap"] = serde_json::json!([{"container_id": 0, "host_id": 1, "size": 1}]);
    fs::write(&records, serde_json::to_vec(&all).unwrap()).unwrap();
    let refused = store.commit_layers(vec![staged(1)], &cancel);
    assert!(matches!(refused, Err(StoreError::Conflict { .. })));
    // A program that is stopped does not wait for the lock that podman holds.
    let lock = world.graph_root().join("overlay-layers/layers.lock");
    let held = fs::OpenOptions::new().write(true).open(lock).unwrap();
    rustix::fs::fcntl_lock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    cancel.stop(StopReason::Signal(15));
    let stopped = store.commit_layers(vec![staged(2)], &cancel);
    assert!(matches!(stopped, Err(StoreError::Stopped { .. })));
    drop(held);
    drop(area);
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
}
