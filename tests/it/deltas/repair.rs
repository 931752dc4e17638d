//! Repairs layers that were made from deltas, and damages the files from which they are made.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::{APP, Scene, differences};
use crate::compare::inconsistencies;
use crate::needs::needs;
use crate::test_node::TestNode;

/// The program in the stored layer with this diffID.
fn app(node: &TestNode, diff_id: &str) -> PathBuf {
    let records = crate::compare::record_array(&node.graph_root().join("overlay-layers/layers.json"));
    let record = records.iter().find(|record| record["diff-digest"] == diff_id);
    let id = record
        .and_then(|record| record["id"].as_str())
        .expect("the layer is in the store");
    node.graph_root().join("overlay").join(id).join("diff").join(APP)
}

/// Changes a byte as a failing disk does: neither length nor time change.
fn damage(path: &PathBuf) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_at(b"damaged", 1000).unwrap();
    file.set_modified(modified).unwrap();
}

#[test]
fn a_damaged_layer_from_a_delta_is_repaired() {
    needs!(root(), stock());
    let scene = Scene::usual();
    let name = scene.by_digest();
    scene.used_delta(scene.node.run(&["--image", &name]));
    damage(&app(&scene.node, &scene.component.blob().diff_id));
    scene.node.verify(&["--image", &name]).exits(7);
    scene.used_delta(scene.node.verify(&["--repair", "--image", &name]));
    scene.node.verify(&["--image", &name]).exits(0);
    let theirs = scene.theirs(&name);
    let differences = differences(&scene.node, &theirs);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn a_damaged_source_costs_the_delta_and_not_the_layer() {
    needs!(root(), stock());
    let scene = Scene::usual();
    let name = scene.by_digest();
    damage(&app(&scene.node, &scene.component.old.layers[1].diff_id));
    let run = scene.node.run(&["--image", &name]).exits(0);
    let reason = run.report["images"][0]["fallbackReason"]
        .as_str()
        .unwrap_or_default();
    assert!(reason.contains("does not match"), "{run}");
    assert_eq!(scene.requests(&scene.component.blob().digest), 1, "{run}");
    scene.node.verify(&["--image", &name]).exits(0);
    let wrong = inconsistencies(&scene.node.graph_root());
    assert!(
        wrong
            .iter()
            .all(|line| !line.contains(&scene.component.blob().diff_id)),
        "{wrong:?}"
    );
}
