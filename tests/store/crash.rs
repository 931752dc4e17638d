//! Kill it anywhere; whoever comes next finds a sound store, and running again does the rest.
//!
//! The program under test is this one, started again as [`child`] and killed by strace on entering the n-th
//! call of a kind, so that the product needs no hooks.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use spoke_precache::oci::Platform;
use spoke_precache::store::{StorageConf, Store};

use crate::world::{World, bash, image, image_in, layer, run, stock_tools, store_image};

/// What the child is to do: paths of its store and of podman's, and the image's name.
const TASK: &str = "SPOKE_PRECACHE_TEST_TASK";

/// The calls that change what others see, and every how many-th of them is tried.
const CALLS: [(&str, usize); 5] = [
    ("rename", 1),
    ("renameat,renameat2", 1),
    ("symlink,symlinkat", 1),
    ("pwrite64", 1),
    ("fsync", 3),
];

/// The largest number that strace takes.
const NEVER: usize = 65535;

#[test]
#[ignore = "the child of the test below"]
fn child() -> Result<()> {
    let Ok(task) = std::env::var(TASK) else {
        return Ok(());
    };
    let [ours, theirs, name] = task.split('\n').collect::<Vec<_>>()[..] else {
        return Ok(());
    };
    let store = Store::open(Path::new(ours), &StorageConf::default())?;
    store.create_if_missing()?;
    let name = name.parse()?;
    store_image(
        &store,
        Path::new(theirs),
        &image_in(Path::new(theirs), &name)?,
        &name,
    )
}

/// True if the child came to its end.
fn run_child(world: &World, call: &str, nth: usize) -> Result<bool> {
    let (ours, theirs) = (world.path("ours"), world.path("theirs"));
    let task = format!(
        "{}\n{}\n{}",
        ours.display(),
        theirs.display(),
        world.name("r/a:1")
    );
    let status = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")])
        .args(["-e", &format!("inject={call}:signal=KILL:when={nth}")])
        .arg(std::env::current_exe()?)
        .args(["--exact", "crash::child", "--ignored"])
        .env(TASK, task)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    ensure!(
        status.success() || status.signal() == Some(9),
        "the child failed by itself: {status}"
    );
    Ok(status.success())
}

#[test]
fn a_kill_at_any_step_is_healed_by_whoever_comes_next() -> Result<()> {
    if !stock_tools() || run("strace", &["--version"]).is_err() {
        return Ok(());
    }
    let world = World::new()?;
    let ours = image(
        &Platform::of_this_node().architecture,
        &[layer("echo a > a")?, layer("echo b > b")?],
    );
    world.publish("r/a:1", &ours)?;
    let mut kills = 0;
    for (call, every) in CALLS {
        for nth in (1..).step_by(every) {
            let ours = world.path("ours");
            bash(r#"rm -rf "$1" "$1.run""#, &[&ours])?;
            if run_child(&world, call, nth)? {
                break;
            }
            kills += 1;
            // Either podman comes next or we do.
            if nth % 2 == 0 {
                world.podman("ours", &["images"])?;
            }
            ensure!(
                run_child(&world, call, NEVER)?,
                "the second run did not end, after {call} {nth}"
            );
            bash(r#"rm -f "$1"/overlay-{layers,images}/.tmp-*"#, &[&ours])?;
            world.assert_consistent("ours")?;
            let inventory = world.store("ours")?.inventory()?;
            let found = inventory
                .image_by_name(&world.name("r/a:1"))
                .expect("the second run stored it");
            ensure!(
                inventory.find_flaw(found)?.is_none(),
                "after {call} {nth}: {:?}",
                inventory.find_flaw(found)?
            );
            let listed = world.podman("ours", &["images", "-q", "--no-trunc"])?;
            ensure!(
                listed.trim() == format!("sha256:{}", found.id),
                "after {call} {nth}: {listed}"
            );
            ensure!(
                world
                    .podman("ours", &["history", "-q", &world.name("r/a:1")])?
                    .lines()
                    .count()
                    == 2
            );
        }
    }
    eprintln!("{kills} kills");
    ensure!(
        kills > 20,
        "only {kills} kills: the calls have other names on this platform"
    );
    Ok(())
}
