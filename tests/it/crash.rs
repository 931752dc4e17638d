//! Kill it anywhere; whoever comes next finds a sound store, and running again does the rest (storage-format.md 9.5 and
//! row 13 of 12.2).

use std::io::Write as _;

use rustix::process::Signal;

use crate::compare::census_after_kills;
use crate::image::release::{EXCLUDE, Release};
use crate::image::{Image, Images};
use crate::needs::needs;
use crate::registry::Registry;
use crate::world::World;

/// The calls that change what others see, and every how many-th of them is tried.
const CALLS: [(&str, u64); 6] = [
    ("rename", 1),
    ("renameat,renameat2", 1),
    ("symlink,symlinkat", 1),
    // The last-writer tokens.
    ("pwrite64", 1),
    ("unlink,unlinkat,rmdir", 2),
    ("fsync", 3),
];

/// Fewer kills than this mean that the calls have other names on this platform.
const KILLS: u64 = 20;

fn two_layers() -> Image {
    let text = "image two docker
        layer gzip
        file /a 0644 0:0 \"a\"
        layer gzip
        file /b 0644 0:0 \"b\"";
    Images::of(text, &[]).images.remove(0)
}

/// Rows 1 and 7: podman lists what there is, and its check finds nothing. Everybody may come first, so every second time
/// it is not podman.
fn podman_is_content(world: &World, turn: u64) {
    if turn.is_multiple_of(2) {
        world.podman(&["images", "--all"]).ok();
        if world.has_system_check() {
            let checked = world.podman(&["system", "check", "--quick"]);
            assert!(checked.is_ok() && checked.stdout.is_empty(), "{checked}");
        }
    }
}

fn sound(world: &World, when: &str) {
    let wrong = census_after_kills(&world.graph_root());
    assert!(wrong.is_empty(), "{when}:\n{}", wrong.join("\n"));
}

/// strace kills the program on entering the n-th call of a kind, so that it needs no hooks; n counts in each thread, and
/// all that is seen by others is done in one.
#[test]
fn a_kill_at_any_step_is_mended_by_whoever_comes_next() {
    needs!(root(), stock(), strace());
    let (registry, image) = (Registry::start(), two_layers());
    registry.push("two", Some("latest"), &image);
    let name = registry.tagged("two");
    let args = ["--image", &name];
    let mut kills = 0;
    for (calls, every) in CALLS {
        for nth in (1..).step_by(every as usize) {
            let world = World::trusting(&[registry.host()]);
            let (trace, inject) = (
                format!("trace={calls}"),
                format!("inject={calls}:signal=KILL:when={nth}"),
            );
            let strace = [
                "/usr/bin/strace",
                "-f",
                "-qq",
                "-o",
                "/dev/null",
                "-e",
                &trace,
                "-e",
                &inject,
            ];
            let run = world.start_under(&strace, "run", &args).wait();
            if run.code == 0 {
                break;
            }
            let when = format!("killed on entering the {nth}th of {calls}");
            assert_eq!(run.code, 1009, "{when}: {run}");
            kills += 1;
            podman_is_content(&world, nth);
            let run = world.run(&args);
            assert_eq!(run.code, 0, "{when}: {run}");
            sound(&world, &when);
            let listed = world.podman(&["images", "--quiet", "--no-trunc"]).ok();
            assert_eq!(listed, format!("sha256:{}", image.id()), "{when}");
        }
    }
    // Not `eprintln!`: the test runner hides what passing tests print.
    let _ = writeln!(std::io::stderr(), "killed at {kills} steps");
    assert!(kills >= KILLS, "only {kills} kills");
}

#[test]
fn a_kill_at_any_moment_of_a_release_is_mended_by_the_next_run() {
    needs!(root(), stock());
    let registry = Registry::start();
    let release = Release::build(&registry.host(), 20_000);
    registry.push_release(&release);
    let rounds = if crate::needs::long() { 300 } else { 15 };
    let args = ["--platform-image", &release.by_digest(), "--exclude", EXCLUDE];
    let whole = World::trusting(&[registry.host()]).run(&args).exits(0).took;
    let mut world = World::trusting(&[registry.host()]);
    for round in 0..rounds {
        let run = world.start("run", &args);
        std::thread::sleep(whole * round / rounds);
        run.signal(Signal::KILL);
        assert!([0, 1009].contains(&run.wait().code));
        podman_is_content(&world, round.into());
        // The store may be whole already; then the next rounds have nothing to interrupt.
        if round % 5 == 4 {
            world.run(&args).exits(0);
            sound(&world, "after five kills");
            world = World::trusting(&[registry.host()]);
        }
    }
}

/// A run that was killed between its last commit and its end leaves a stage, and nothing for the next one to pull.
#[test]
fn the_stage_of_a_killed_run_goes_also_when_all_images_are_here() {
    needs!(root());
    let registry = Registry::start();
    registry.push("two", Some("latest"), &two_layers());
    let (world, name) = (World::trusting(&[registry.host()]), registry.tagged("two"));
    world.run(&["--image", &name]).exits(0);
    let stage = world.graph_root().join(".spoke-precache-stage-00000000deadbeef");
    std::fs::create_dir_all(stage.join("0/diff")).unwrap();
    world.run(&["--image", &name]).exits(0);
    assert!(!stage.exists());
}
