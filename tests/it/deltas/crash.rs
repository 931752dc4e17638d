//! Kills a run while it applies a delta: the store is sound, and the next run completes it.

use std::fs;
use std::path::PathBuf;

use super::{Component, Scene, differences};
use crate::compare::inconsistencies_after_kills;
use crate::image::Compression;
use crate::needs::{long, needs, note};
use crate::stock::tops;
use crate::test_node::TestNode;

/// Calls while a delta is applied, and every how many-th of each is tried with SPOKE_LONG=1.
const CALLS: [(&str, u64, u64); 9] = [
    ("rename", 5, 1),
    ("renameat,renameat2", 2, 1),
    ("pwrite64", 5, 1),
    ("unlink,unlinkat,rmdir", 3, 1),
    ("syncfs", 1, 1),
    ("mkdir,mkdirat", 7, 1),
    ("pread64", 3, 1),
    ("openat", 101, 7),
    ("openat2", 5, 1),
];

/// Fewer kills than this mean that the calls have other names on this platform.
const KILLS: usize = 5;

#[test]
fn after_a_kill_while_a_delta_is_applied_the_next_run_completes_the_image() {
    needs!(root(), stock(), strace());
    let component = Component::new(Compression::Gzip);
    let artifact = component.artifact();
    let scene = Scene::new(component, &[artifact]);
    let name = scene.by_digest();
    let theirs = scene.theirs(&name);
    let mut kills = 0;
    for (calls, quick, every) in CALLS {
        let mut nth = if long() { 1 } else { quick };
        loop {
            let node = Scene::node_with_old(&scene.registry);
            let run = node.start_to_kill(calls, nth, "run", &["--image", &name]).wait();
            let when = format!("killed on entering the {nth}th of {calls}");
            let was_killed = run.code != 0;
            if was_killed {
                assert_eq!(run.code, 1009, "{when}: {run}");
                kills += 1;
                let top = &tops()[kills % tops().len()];
                node.podman_of(top, &["images", "--all"]).ok();
            }
            let run = node.run(&["--image", &name]);
            assert_eq!(run.code, 0, "{when}: {run}");
            assert_eq!(spooled(&node), [] as [String; 0], "{when}: {run}");
            let wrong = inconsistencies_after_kills(&node.graph_root());
            assert!(wrong.is_empty(), "{when}:\n{}", wrong.join("\n"));
            let mut differences = differences(&node, &theirs);
            // A file that was to replace another one may be left for an hour.
            differences.retain(|line| !line.contains(" data .tmp-"));
            assert!(differences.is_empty(), "{when}:\n{}", differences.join("\n"));
            if !long() || !was_killed {
                break;
            }
            nth += every;
        }
    }
    note(&format!("killed at {kills} steps"));
    assert!(kills >= KILLS, "only {kills} kills");
}

fn spool_of(node: &TestNode) -> PathBuf {
    node.graph_root().with_file_name("spoke-precache")
}

/// Names of blobs in the spool.
fn spooled(node: &TestNode) -> Vec<String> {
    let names = fs::read_dir(spool_of(node)).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name != "lock" && !name.contains("history.json"))
        .collect()
}

#[test]
fn a_delta_that_a_kill_leaves_is_removed_when_its_layer_is_stored() {
    needs!(root(), stock(), strace());
    let scene = Scene::usual();
    let name = scene.by_digest();
    let mut left = Vec::new();
    for nth in 1.. {
        let node = Scene::node_with_old(&scene.registry);
        // The name in the call, which is relative to the spool's directory.
        let delta = scene.component.artifact().digest();
        let kill = format!("inject=unlinkat:signal=KILL:when={nth}");
        let options = ["-P", &delta, "-e", "trace=unlinkat", "-e", &kill];
        let run = node
            .start_with_faults(&options, "run", &["--image", &name])
            .wait();
        if run.code == 0 {
            break;
        }
        let is_stored = node.verify(&["--image", &name]).code == 0;
        if is_stored && !spooled(&node).is_empty() {
            left = spooled(&node);
            scene.registry.clear_log();
            let run = node.run(&["--image", &name]).exits(0);
            assert_eq!(spooled(&node), [] as [String; 0], "{run}");
            assert!(scene.registry.layer_requests().is_empty(), "{run}");
        }
    }
    assert_eq!(left, [scene.component.artifact().digest()]);
}
