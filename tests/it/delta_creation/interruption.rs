//! Kills `delta create` at system calls that change files or send something, and runs it again.

use std::collections::BTreeSet;
use std::fs;

use spoke_precache::delta::artifact::DeltaIndex;
use spoke_precache::oci::Digest;

use super::releases::Hub;
use crate::needs::{long, needs, note};

/// Calls whose entry kills a run, and every how many-th of each is tried with SPOKE_LONG=1. Each thread counts for itself.
const CALLS: [(&str, usize); 8] = [
    ("rename,renameat,renameat2", 1),
    ("unlink,unlinkat,rmdir", 1),
    ("mkdir,mkdirat", 1),
    ("ftruncate,fsync,fdatasync", 1),
    ("pwrite64", 3),
    ("write", 5),
    ("writev,sendto,sendmsg", 3),
    ("openat", 11),
];

/// The kills of a quick test, one after the other.
const QUICK: [(&str, u64); 7] = [
    ("rename,renameat,renameat2", 1),
    ("rename,renameat,renameat2", 3),
    ("pwrite64", 5),
    ("unlink,unlinkat,rmdir", 1),
    ("unlink,unlinkat,rmdir", 5),
    ("writev,sendto,sendmsg", 8),
    ("unlink,unlinkat,rmdir", 2),
];

/// Kills a run, and checks that everything it listed is there. Returns whether it was killed.
fn kill_at(hub: &Hub, calls: &str, nth: u64) -> bool {
    let (from, to, repository, work_dir) = (hub.release(0), hub.release(1), hub.repository(), hub.work_dir());
    let work_dir = work_dir.to_str().expect("UTF-8");
    let args = [
        "--work-dir",
        work_dir,
        "--from",
        &from,
        "--to",
        &to,
        "--push",
        &repository,
    ];
    let run = hub.host.start_to_kill(calls, nth, "delta create", &args).wait();
    assert!([0, 1009].contains(&run.code), "the {nth}th of {calls}: {run}");
    let [old, new] = [0, 1].map(|version| &hub.releases[version].release);
    let listed = hub.index(old, new).map(|(index, _)| index.artifacts);
    for artifact in listed.unwrap_or_default() {
        for layer in hub.artifact(&artifact.digest.to_string()).layers {
            let (status, _) = hub.get(&format!("blobs/{}", layer.blob));
            assert_eq!(status, 200, "the {nth}th of {calls}: {run}");
        }
    }
    run.code != 0
}

/// Digests of the listed artifacts. Releases name their registries, so their digests differ; their components' do not.
fn artifacts(index: &DeltaIndex) -> BTreeSet<Digest> {
    index.artifacts.iter().map(|artifact| artifact.digest).collect()
}

/// Runs to the end, and checks that these artifacts are listed and no tar or delta is left.
fn complete(hub: &Hub, expected: &BTreeSet<Digest>, when: &str) {
    let run = hub.create_and_push();
    assert_eq!(run.code, 0, "{when}: {run}");
    let [old, new] = [0, 1].map(|version| &hub.releases[version].release);
    let (index, json) = hub.index(old, new).expect("an index");
    assert_eq!(json["subject"]["digest"], new.digest(), "{when}: {run}");
    assert_eq!(artifacts(&index), *expected, "{when}: {run}");
    for directory in ["deltas", "tars"] {
        let left = fs::read_dir(hub.work_dir().join(directory)).expect("a directory");
        let left: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
        assert!(left.is_empty(), "{when}: {left:?} in `{directory}`: {run}");
    }
}

#[test]
fn after_a_kill_another_run_publishes_the_same_index() {
    needs!(docker_registry(), strace());
    let whole = Hub::with_versions(2);
    whole.create_and_push().exits(0);
    let [old, new] = [0, 1].map(|version| &whole.releases[version].release);
    let expected = artifacts(&whole.index(old, new).expect("an index").0);
    let hub = Hub::with_versions(2);
    let kills = QUICK.iter().filter(|(calls, nth)| kill_at(&hub, calls, *nth));
    let kills = kills.count();
    complete(&hub, &expected, "after several kills");
    assert!(kills > QUICK.len() / 2, "only {kills} kills");
    if !long() {
        return;
    }
    let mut kills = 0;
    for (calls, every) in CALLS {
        for nth in (1..).step_by(every) {
            let hub = Hub::with_versions(2);
            let was_killed = kill_at(&hub, calls, nth);
            complete(&hub, &expected, &format!("killed at the {nth}th of {calls}"));
            if !was_killed {
                break;
            }
            kills += 1;
        }
        note(&format!("killed at {kills} steps, up to the last of {calls}"));
    }
}
