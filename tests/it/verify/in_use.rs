//! Tests that `verify --repair` changes nothing that is in use or was not requested.

use std::process::Command;

use super::{IMAGES, Scene, layer_ids, snapshot};
use crate::image::Images;
use crate::needs::needs;

#[test]
fn what_is_in_use_or_was_not_asked_for_is_left_alone() {
    needs!(root(), stock());
    let scene = Scene::new();
    let sister = scene.registry.tagged("sister");
    scene.ours.run(&["--image", &sister]).exits(0);
    // Another image's damage.
    let root = scene.ours.graph_root();
    let other = layer_ids(Images::of(IMAGES, &[]).image("sister"));
    std::fs::remove_file(root.join(format!("overlay/{}/diff/other", other[0]))).unwrap();
    let before = snapshot(&root);
    scene.repair().exits(0);
    assert_eq!(snapshot(&root), before);

    let container = scene
        .ours
        .podman(&["create", "--name", "web", &scene.name, "/bin/x"]);
    container.ok();
    for script in ["rm overlay/$BASE/diff/d/a", ": > overlay/$MIDDLE/link"] {
        scene.damage(script);
        let before = snapshot(&root);
        scene.registry.clear_log();
        let refused = scene.repair().exits(7).says("in use by container `web`");
        assert_eq!(refused.images("failed"), [&scene.name]);
        assert_eq!(snapshot(&root), before, "{script}");
        assert!(scene.registry.layer_requests().is_empty(), "{script}");
    }
    // `podman rm` cannot do its work with an empty `link`; records are enough for us.
    for file in ["containers.json", "volatile-containers.json"] {
        let _ = std::fs::write(root.join("overlay-containers").join(file), "[]");
    }
    scene.repair().exits(0);
    scene.verify().exits(0);
}

/// Nothing of what a container has mounted changes by it, and after a power loss there are containers on most layers.
#[test]
fn a_missing_overlay_l_and_a_changed_digest_are_repaired_under_containers() {
    needs!(root(), stock());
    let scene = Scene::new();
    scene
        .ours
        .podman(&["create", "--name", "web", &scene.name, "/bin/x"])
        .ok();
    let digest = r#"jq -c 'map(if .id == env.BASE then ."compressed-diff-digest" = "sha256:" + ("0" * 64) else . end)' \
        overlay-layers/layers.json > x; cat x > overlay-layers/layers.json; rm x"#;
    for script in [
        "rm -r overlay/l",
        "rm overlay/l/$(cat overlay/$MIDDLE/link)",
        digest,
    ] {
        scene.damage(script);
        scene.verify().exits(7);
        let trees = || {
            snapshot(
                &scene
                    .ours
                    .graph_root()
                    .join("overlay")
                    .join(&layer_ids(&scene.rich)[0]),
            )
        };
        let before = trees();
        scene.repair().exits(0);
        scene.verify().exits(0);
        assert_eq!(trees(), before, "{script}");
    }
    scene.ours.podman(&["rm", "web"]).ok();
    let wrong = scene.wrong();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// As that of a container in a container that has our graph root as an additional store.
#[test]
fn what_another_mount_namespace_has_mounted_is_left_alone() {
    needs!(root(), stock());
    let scene = Scene::new();
    let root = scene.ours.graph_root();
    let script = "mkdir y x; mount -t overlay overlay -o lowerdir=overlay/l/$(cat overlay/$TOP/link):overlay/l/$(cat overlay/$BASE/link) x
                  rmdir y; exec sleep 600";
    let mut other = Command::new("unshare")
        .args(["--mount", "bash", "-euc", script])
        .current_dir(&root)
        .envs(["BASE", "MIDDLE", "TOP"].into_iter().zip(layer_ids(&scene.rich)))
        .spawn()
        .unwrap();
    while !root.join("x").exists() || root.join("y").exists() {
        assert!(other.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // Its options name the layers by their short names.
    scene.damage("chmod 0600 overlay/$BASE/diff/d/a; rm -r overlay/l");
    let before = snapshot(&root);
    // Other tests do not show it: they have the same layers, and podman's mounts of those are seen by all.
    let proc = scene.ours.host().join("proc");
    std::os::unix::fs::symlink("/proc", &proc).unwrap();
    let refused = scene.repair();
    let after = snapshot(&root);
    std::fs::remove_file(&proc).unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
    refused.exits(7).says("in use by the mount");
    assert_eq!(after, before);
    std::fs::remove_dir(root.join("x")).unwrap();
    scene.repair().exits(0);
}
