//! Kills a run while it applies a delta: the store is sound, and the next run completes it.

use super::{Component, Scene, differences};
use crate::compare::inconsistencies_after_kills;
use crate::image::Compression;
use crate::needs::{long, needs};
use crate::stock::tops;

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
    assert!(kills >= KILLS, "only {kills} kills");
}
