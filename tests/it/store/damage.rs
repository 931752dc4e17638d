//! Tests damaged stores.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use spoke_precache::cancel::Cancel;
use spoke_precache::oci::LayerId;
use spoke_precache::store::{LayerCommit, StoreError};
use spoke_precache::write_back::WriteQueue;

use super::{put, resolved, stage, store, three_layers};
use crate::compare::{compare, inconsistencies};
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::TestNode;

/// Runs a shell script in the store of `world`; `$BASE`, `$MIDDLE` and `$TOP` are its layers.
fn damage(world: &TestNode, ids: &[LayerId], script: &str) {
    let status = std::process::Command::new("bash")
        .args(["-euc", script])
        .current_dir(world.graph_root())
        .envs(
            ["BASE", "MIDDLE", "TOP"]
                .into_iter()
                .zip(ids.iter().map(LayerId::to_string)),
        )
        .status();
    assert!(status.unwrap().success(), "{script}");
}

#[test]
fn what_was_lost_of_an_image_is_found_missing_and_put_back() {
    needs!(root(), stock());
    let (registry, image) = (Registry::start(), three_layers());
    registry.push("three", Some("latest"), &image);
    let name = registry.tagged("three");
    let (ours, theirs) = (
        TestNode::trusting(&[registry.host()]),
        TestNode::trusting(&[registry.host()]),
    );
    theirs.podman_pull(&name);
    ours.run(&["--image", &name]).exits(0);
    let ids = resolved(&image, None).layer_ids();
    for script in [
        "rm overlay-images/*/manifest",
        "echo >> $(ls overlay-images/*/=* | head -1)",
        "jq -c 'map(select(.id != env.TOP))' overlay-layers/layers.json > x; chmod 600 x; mv x overlay-layers/layers.json",
    ] {
        damage(&ours, &ids, script);
        let missing = ours.verify(&["--image", &name]);
        assert_ne!(missing.code, 0, "not noticed: {script}: {missing}");
        let run = ours.run(&["--image", &name]);
        assert_eq!(run.code, 0, "{script}: {run}");
        let mut wrong = inconsistencies(&ours.graph_root());
        wrong.extend(compare(&ours.graph_root(), &theirs.graph_root(), &[]));
        assert!(wrong.is_empty(), "{script}:\n{}", wrong.join("\n"));
    }
}

/// Putting a damaged layer back may hurt who uses it; that is for `podman system check` or a person.
#[test]
fn a_damaged_layer_is_noticed_and_refused_by_name_and_left_alone() {
    needs!(root());
    let (registry, image) = (Registry::start(), three_layers());
    registry.push("three", Some("latest"), &image);
    let name = registry.tagged("three");
    let ids = resolved(&image, None).layer_ids();
    let set = |filter: &str| {
        format!(
            "jq -c 'map(if .id == env.MIDDLE then {filter} else . end)' overlay-layers/layers.json > x
            cat x > overlay-layers/layers.json; rm x"
        )
    };
    let half_made = set(r#"del(."diff-digest")"#) + "; rm -r overlay/$MIDDLE/diff/*";
    let other = set(&format!(r#"."diff-digest" = "sha256:{}""#, "0".repeat(64)));
    for (script, layer, reason) in [
        ("rm -rf overlay/$TOP/diff", 2_usize, "`diff` is missing"),
        ("rm -rf overlay/$MIDDLE", 1, "`diff` is missing"),
        ("rm overlay/$MIDDLE/link", 1, "`link` is missing"),
        (": > overlay/$MIDDLE/link", 1, "`link` is missing"),
        (
            "ln -sfn ../x/diff overlay/l/$(cat overlay/$BASE/link)",
            0,
            "`../l/<link>` is missing or wrong",
        ),
        ("rm overlay/$TOP/lower", 2, "`lower` is missing"),
        ("rmdir overlay/$TOP/work", 2, "`work` is missing"),
        ("rmdir overlay/$BASE/empty", 0, "`empty` is missing"),
        (&half_made, 1, "has no digest of its content"),
        (&other, 1, "do not match its id"),
    ] {
        let world = TestNode::trusting(&[registry.host()]);
        world.run(&["--image", &name]).exits(0);
        damage(&world, &ids, script);
        let root = world.graph_root();
        let records = || fs::read(root.join("overlay-layers/layers.json")).unwrap();
        let before = records();
        let missing = world.verify(&["--image", &name]);
        assert_ne!(missing.code, 0, "not noticed: {script}: {missing}");
        let run = world.run(&["--image", &name]);
        assert_eq!(run.code, 7, "{script}: {run}");
        let said = format!("{run}");
        assert!(
            said.contains(reason) && said.contains(&ids[layer].to_string()),
            "{script}: {run}"
        );
        assert_eq!(records(), before, "{script}");
    }
}

/// Otherwise each image on it would seem to have lost the layer just now, and be retried for ever.
#[test]
fn a_layer_is_not_put_on_a_damaged_one() {
    needs!(root());
    let (world, image) = (TestNode::trusting(&[]), three_layers());
    let (store, resolved) = (store(&world), resolved(&image, None));
    let area = store.stage(&WriteQueue::off()).unwrap();
    let staged = resolved.layers.iter().cloned().zip(&image.layers).take(2);
    let mut staged: Vec<_> = staged.map(|(spec, layer)| stage(&area, spec, layer)).collect();
    let child = staged.split_off(1);
    let cancel = Cancel::default();
    store.commit_layers(staged, &cancel).unwrap();
    damage(&world, &resolved.layer_ids(), ": > overlay/$BASE/link");
    let refused = store.commit_layers(child, &cancel);
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
}

#[test]
fn what_containers_storage_makes_again_is_no_damage() {
    needs!(root(), stock());
    let (registry, image) = (Registry::start(), three_layers());
    registry.push("three", Some("latest"), &image);
    let name = registry.tagged("three");
    let world = TestNode::trusting(&[registry.host()]);
    world.run(&["--image", &name]).exits(0);
    let ids = resolved(&image, None).layer_ids();
    for script in [
        // podman removes `merged` after a mount, up to containers/storage 1.51.
        "rm -rf overlay/$BASE/merged overlay/$MIDDLE/merged overlay/$TOP/merged",
        "rm overlay/l/$(cat overlay/$BASE/link)",
    ] {
        damage(&world, &ids, script);
        world.run(&["--image", &name]).exits(0).says("NothingToPull");
    }
}

#[test]
fn the_rests_of_dead_writers_are_replaced() {
    needs!(root());
    let (world, image) = (TestNode::trusting(&[]), three_layers());
    let (store, resolved) = (store(&world), resolved(&image, None));
    let ids = resolved.layer_ids();
    let root = world.graph_root();
    // Two incomplete layers, one of them of our image; a directory without a record; stages.
    let dead = "d".repeat(64);
    let links = [
        "ABCDEFGHIJKLMNOPQRSTUVWXYA",
        "BBCDEFGHIJKLMNOPQRSTUVWXYA",
        "CBCDEFGHIJKLMNOPQRSTUVWXYA",
    ];
    for (id, link) in [&dead, &ids[0].to_string(), &ids[1].to_string()]
        .into_iter()
        .zip(links)
    {
        let layer = root.join("overlay").join(id);
        fs::create_dir_all(layer.join("diff/junk")).unwrap();
        fs::write(layer.join("link"), link).unwrap();
        symlink(format!("../{id}/diff"), root.join("overlay/l").join(link)).unwrap();
        fs::write(root.join(format!("overlay-layers/{id}.tar-split.gz")), "").unwrap();
    }
    fs::create_dir(root.join("overlay-layers").join(&dead)).unwrap();
    let records = serde_json::json!([
        {"id": dead, "created": "2024-01-01T00:00:00Z", "flags": {"incomplete": true}},
        {"id": ids[0].to_string(), "flags": {"incomplete": true}},
    ]);
    fs::write(root.join("overlay-layers/layers.json"), records.to_string()).unwrap();
    fs::create_dir_all(root.join(".spoke-precache-stage-dead/x/y/z")).unwrap();
    fs::create_dir(root.join(".spoke-precache-stage-dead2")).unwrap();

    let living = store.stage(&WriteQueue::off()).unwrap();
    let spec = resolved.layers[0].clone();
    let staged = stage(&living, spec.clone(), &image.layers[0]);
    put(&store, &image, None, "localhost/a:1");
    // The stage of the running process stays; its layer arrived too late.
    let outcome = store.commit_layers(vec![staged], &Cancel::default()).unwrap();
    assert!(matches!(outcome[..], [(id, LayerCommit::AlreadyThere)] if id == spec.id()));
    drop(living);
    assert_eq!(inconsistencies(&root), Vec::<String>::new());
    assert!(!root.join("overlay-layers").join(&dead).exists());
    // As in containers/storage, whatever the layer's own root entry is.
    let diff = root.join(format!("overlay/{}/diff", ids[1]));
    assert_eq!(fs::metadata(diff).unwrap().permissions().mode() & 0o7777, 0o555);
}
