//! Kills exports at system calls, and runs them again.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::site::{Site, files, path, whole_blobs};
use crate::needs::{needs, note};

/// Calls whose entry kills an export, and which of them, one after the other.
const KILLS: [(&str, u64); 12] = [
    ("mkdir,mkdirat", 2),
    ("pwrite64", 3),
    ("rename,renameat,renameat2", 2),
    ("fsync,fdatasync", 3),
    ("rename,renameat,renameat2", 6),
    ("pwrite64", 9),
    ("unlink,unlinkat,rmdir", 3),
    ("writev,sendto,sendmsg", 9),
    ("rename,renameat,renameat2", 12),
    ("ftruncate", 1),
    ("syncfs,fsync", 12),
    ("unlink,unlinkat,rmdir", 8),
];

/// Digests of the blobs that an output has as a whole.
fn stored(output: &Path) -> BTreeSet<String> {
    if output.is_dir() {
        return whole_blobs(output);
    }
    let listed = Command::new("tar").args(["-tf", path(output)]).output();
    let listed = String::from_utf8(listed.expect("tar can be started").stdout).expect("UTF-8");
    let mut names: Vec<&str> = listed.lines().collect();
    // It may be cut.
    names.pop();
    let blobs = names.iter().filter_map(|name| name.strip_prefix("blobs/sha256/"));
    blobs.map(|hex| format!("sha256:{hex}")).collect()
}

/// Kills an export again and again, and then lets it end. Returns how often it was killed. Nothing that the output has is
/// requested again.
fn kill_and_complete(site: &Site, output: &Path) -> usize {
    let args = site.args(output);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let run = |kill: Option<(&str, u64)>| {
        let before = stored(output);
        site.registry.clear_log();
        let run = match kill {
            Some((calls, nth)) => site.machine.start_to_kill(calls, nth, "export", &args).wait(),
            None => site.export(output, &[]),
        };
        for access in site.registry.log() {
            let digest = access.path.rsplit('/').next().unwrap_or_default();
            assert!(!before.contains(digest), "{access} although it is there: {run}");
        }
        run
    };
    let killed = KILLS.iter().filter(|(calls, nth)| {
        let run = run(Some((calls, *nth)));
        assert!([0, 1009].contains(&run.code), "the {nth}th of {calls}: {run}");
        run.code != 0
    });
    let kills = killed.count();
    run(None).exits(0);
    kills
}

#[test]
fn a_killed_export_continues_and_ends_with_the_same_files() {
    needs!(strace());
    let whole = Site::new();
    let expected = whole.output("export");
    whole.export(&expected, &[]).exits(0);
    for name in ["killed", "killed.tar"] {
        let output = whole.output(name);
        let kills = kill_and_complete(&whole, &output);
        note(&format!("`{name}` was killed {kills} times"));
        assert!(kills > KILLS.len() / 3, "only {kills} kills");
        let found = match output.is_dir() {
            true => files(&output),
            false => {
                let unpacked = whole.output("unpacked");
                std::fs::create_dir(&unpacked).expect("a new directory");
                let tar = Command::new("tar")
                    .args(["-xf", path(&output), "-C", path(&unpacked)])
                    .status();
                assert!(tar.expect("tar can be started").success());
                files(&unpacked)
            }
        };
        assert!(found == files(&expected), "{name}");
    }
}
