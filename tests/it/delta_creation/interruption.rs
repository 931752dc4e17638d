//! Kills `delta create` at system calls that change files, and runs it again.

use super::releases::Hub;
use crate::needs::{long, needs};

#[test]
fn after_a_kill_another_run_publishes_the_same_index() {
    needs!(docker_registry(), strace());
    let whole = Hub::with_versions(2);
    whole.create_and_push().exits(0);
    let hub = Hub::with_versions(2);
    let [old, new] = [0, 1].map(|version| &hub.releases[version].release);
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
    let calls = match long() {
        true => &["rename", "unlink", "openat", "sendto,writev,write"][..],
        false => &["rename", "unlink"],
    };
    let mut killed = 0;
    for call in calls {
        for nth in [1, 2, 3, 5, 8] {
            let run = hub.host.start_to_kill(call, nth, "delta create", &args).wait();
            killed += u32::from(run.code > 1000);
            // Whatever is listed is there.
            if let Some((index, _)) = hub.index(old, new) {
                for artifact in &index.artifacts {
                    for layer in hub.artifact(&artifact.digest.to_string()).layers {
                        assert_eq!(hub.get(&format!("blobs/{}", layer.blob)).0, 200, "{run}");
                    }
                }
            }
        }
    }
    assert!(killed > 0, "no run was killed");
    hub.create_and_push().exits(0);
    let (index, json) = hub.index(old, new).expect("an index");
    assert_eq!(json["subject"]["digest"], new.digest());
    // The releases name their registries, so digests differ; their components do not.
    let [old, new] = [0, 1].map(|version| &whole.releases[version].release);
    let expected = whole.index(old, new).expect("an index").0;
    let digests = |index: &spoke_precache::delta::artifact::DeltaIndex| {
        let artifacts = index.artifacts.iter().map(|artifact| artifact.digest);
        artifacts.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(digests(&index), digests(&expected));
}
