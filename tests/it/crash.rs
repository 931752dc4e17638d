//! Kills a run at any moment: other programs find a sound store, and the next run completes it (storage-format.md 9.5 and
//! row 13 of 12.2).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::Signal;

use crate::compare::inconsistencies_after_kills;
use crate::image::release::{EXCLUDE, Release};
use crate::image::{Compression, Format, Image, Images, Layer, node_architecture};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::stock::{hello, top as stock_top, tops};
use crate::test_node::TestNode;

/// Calls that change what others see or the next run finds, and every how many-th of each is tried: in a quick test, and
/// with SPOKE_LONG=1. Each thread counts for itself: fetching, unpacking and committing have threads of their own.
const CALLS: [(&str, u64, u64); 20] = [
    // Records, big data, the report.
    ("rename", 11, 1),
    // A blob that is whole; a staged layer and its tar-split.
    ("renameat,renameat2", 5, 1),
    ("symlink,symlinkat", 1, 1),
    // The last-writer tokens, and blobs.
    ("pwrite64", 9, 1),
    // Blobs, stages, temporary files.
    ("unlink,unlinkat,rmdir", 7, 1),
    ("fsync", 7, 1),
    ("fdatasync", 7, 1),
    ("syncfs", 1, 1),
    ("open_tree", 1, 1),
    // Stages and what is unpacked.
    ("mkdir,mkdirat", 11, 1),
    ("link,linkat", 2, 1),
    ("mknod,mknodat", 1, 1),
    ("fchown,fchownat,lchown", 4, 1),
    ("chmod,fchmod,fchmodat", 9, 1),
    ("setxattr,lsetxattr,fsetxattr", 2, 1),
    ("utimensat", 5, 1),
    // Files as they come to be, the tar-split, and what wakes threads up.
    ("openat", 97, 5),
    ("write", 97, 1),
    // Locks.
    ("fcntl", 19, 4),
    ("exit_group", 1, 1),
];

/// The same of a large blob on a slow link, which has a journal; with SPOKE_LONG=1.
const CALLS_OF_A_LARGE_BLOB: [(&str, u64); 5] = [
    ("pwrite64", 150),
    ("fdatasync", 1),
    ("sync_file_range", 1),
    ("fsync", 2),
    ("renameat,renameat2", 2),
];

/// The calls of a commit of several images, and which are tried in a quick test.
const CALLS_OF_A_BATCH: [(&str, &[u64]); 5] = [
    ("renameat,renameat2", &[2, 9, 16, 23]),
    ("symlink,symlinkat", &[2, 8]),
    ("rename", &[1, 2, 3, 4]),
    ("fsync", &[1, 4, 7, 10]),
    ("fdatasync", &[1, 2, 3]),
];

/// Images that get ready while the lock is another's.
const IMAGES_OF_A_BATCH: usize = 6;
const LAYERS_OF_AN_IMAGE: usize = 3;

/// As long as staging some kilobytes may take on a busy machine, and ending that.
const UNPACKING: Duration = Duration::from_secs(4);
const FINISHING: Duration = Duration::from_millis(500);

/// What `podman system check` says of a directory without a record.
const UNACCOUNTED: &str = "not accounted for";

/// Bytes a second of the slow link.
const SLOW: u64 = 1536 << 10;

/// Kills of each kind in a quick test.
const OF_A_KIND: u64 = 1;

/// Fewer kills than this mean that the calls have other names on this platform.
const KILLS: u64 = 12;

/// Two layers with every kind of entry, and a program to be run if there is one.
fn all_kinds() -> Image {
    let text = "image all docker
        layer gzip
        dir  ./ 0755 0:0
        dir  /d 0750 1:1
        file /d/a 0640 2:2 \"a\"
        xattr user.comment=\"a\"
        link /d/hard -> /d/a 0640 2:2
        symlink /d/soft -> a
        char /d/null 1:3 0666 0:0
        file /hello 0755 0:0 bytes=hello
        layer gzip
        whiteout /d/a
        file /b 0644 0:0 \"b\"";
    let program = hello::program().unwrap_or(b"no program");
    Images::of(text, &[("hello", program)]).images.remove(0)
}

/// What others do in the store before we come back: rows 1 and 7, and a podman that goes on with work of its own.
struct Others {
    tops: Vec<PathBuf>,
    has_check: bool,
    /// Not ours, and without a layer of ours.
    theirs: String,
}

impl Others {
    fn of(world: &TestNode, registry: &Registry) -> Self {
        let text = "image theirs oci\nlayer gzip\nfile /theirs 0644 0:0 \"theirs\"";
        registry.push_all(&Images::of(text, &[]));
        Self {
            tops: tops(),
            has_check: world.has_system_check(),
            theirs: registry.tagged("theirs"),
        }
    }

    /// Everybody may come first, so every second time it is not podman.
    fn come(&self, world: &TestNode, turn: u64) {
        if turn % 2 == 1 {
            return;
        }
        let top = &self.tops[turn as usize / 2 % self.tops.len()];
        world.podman_of(top, &["images", "--all"]).ok();
        if self.has_check && top == &stock_top() {
            let noted = noted(world);
            let checked = world.podman(&["system", "check", "--quick"]);
            // Until the next run, the store may have directories without a record that the killed run noted.
            let is_noted = |line: &str| noted.iter().any(|id| line.contains(id));
            let is_known = |line: &str| match line.trim_start() {
                "" => true,
                line if line.starts_with("Damaged layer ") => is_noted(line),
                line if line.starts_with("* ") => is_noted(line) && line.ends_with(UNACCOUNTED),
                line => line.ends_with("occurred:"),
            };
            let news: Vec<&str> = checked.stdout.lines().filter(|line| !is_known(line)).collect();
            assert!(news.is_empty(), "{checked}");
            assert!(checked.is_ok() || !checked.stdout.is_empty(), "{checked}");
        }
        if turn % 4 == 2 {
            world.podman_of(top, &["pull", "--quiet", &self.theirs]).ok();
            world.podman_of(top, &["image", "inspect", &self.theirs]).ok();
        }
    }

    /// Every podman accepts the image that is complete in the end.
    fn use_it(&self, world: &TestNode, name: &str, image: &Image) {
        for top in &self.tops {
            let listed = world.podman_of(top, &["images", "--quiet", "--no-trunc"]).ok();
            assert!(listed.contains(&format!("sha256:{}", image.id())), "{listed}");
            world.podman_of(top, &["image", "inspect", name]).ok();
        }
        if image.name == "all" && hello::program().is_ok() {
            let said = world.podman_run(name, "0:0", &["/hello", "/b"]).ok();
            assert_eq!(said, "hello from uid 0 gid 0\nb");
        }
    }
}

/// The layers and images that killed runs were about to record.
fn noted(world: &TestNode) -> BTreeSet<String> {
    let stages = fs::read_dir(world.graph_root()).into_iter().flatten().flatten();
    let stages = stages.filter(|entry| entry.file_name().to_string_lossy().contains("-stage-"));
    let names = stages.flat_map(|stage| fs::read_dir(stage.path()).into_iter().flatten().flatten());
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let ids = names.filter_map(|name| {
        Some(
            name.strip_suffix(".layer")
                .or(name.strip_suffix(".image"))?
                .to_owned(),
        )
    });
    ids.collect()
}

/// Everything that is recorded is whole; what is not recorded is noted by the run that was killed. Returns how much is only
/// noted.
fn whole_records(world: &TestNode, when: &str) -> usize {
    let noted = noted(world);
    let mut wrong = inconsistencies_after_kills(&world.graph_root());
    let before = wrong.len();
    wrong.retain(|line| {
        let is_unrecorded =
            line.ends_with("and not among layer records") || line.ends_with("and not among image records");
        !(is_unrecorded && noted.iter().any(|id| line.starts_with(id)))
    });
    let unrecorded = before - wrong.len();
    wrong.retain(|line| !line.contains("-stage-"));
    assert!(wrong.is_empty(), "{when}:\n{}", wrong.join("\n"));
    unrecorded
}

fn sound(world: &TestNode, when: &str) {
    let wrong = inconsistencies_after_kills(&world.graph_root());
    assert!(wrong.is_empty(), "{when}:\n{}", wrong.join("\n"));
}

/// Kills the program on entering the n-th of these calls, and lets others come; then it has to do its work. Says whether
/// there were so many calls. strace does it, so that the program needs no hooks.
fn kill_at(registry: &Registry, image: &Image, others: &Others, calls: &str, nth: u64, turn: u64) -> bool {
    let name = registry.tagged(&image.name);
    let args = ["--image", &name];
    let world = TestNode::trusting(&[registry.host()]);
    let run = world.start_to_kill(calls, nth, "run", &args).wait();
    let when = format!("killed on entering the {nth}th of {calls}");
    let was_killed = run.code != 0;
    if was_killed {
        assert_eq!(run.code, 1009, "{when}: {run}");
        others.come(&world, turn);
    }
    let run = world.run(&args);
    assert_eq!(run.code, 0, "{when}: {run}");
    sound(&world, &when);
    if long() {
        let run = world.verify(&args);
        assert_eq!(run.code, 0, "{when}: {run}");
    }
    if turn % 16 == 15 || long() && !was_killed {
        others.use_it(&world, &name, image);
    }
    was_killed
}

/// Kills the program while it commits several images together, which got ready while the lock was another's. Says whether
/// there were so many calls, and how much the killed run left without a record.
fn kill_in_batch(
    registry: &Registry,
    names: &[String],
    others: &Others,
    calls: &str,
    nth: u64,
    turn: u64,
) -> Option<usize> {
    let args: Vec<&str> = names.iter().flat_map(|name| ["--image", name]).collect();
    let world = TestNode::trusting(&[registry.host()]);
    drop(crate::store::store(&world));
    let lock = world.graph_root().join("overlay-layers/layers.lock");
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(lock)
        .unwrap();
    fcntl_lock(&lock, FlockOperation::LockExclusive).unwrap();
    let running = world.start_to_kill(calls, nth, "run", &args);
    let begun = Instant::now();
    let is_staged = || staged_layers(&world) >= names.len() * LAYERS_OF_AN_IMAGE;
    while begun.elapsed() < UNPACKING && !is_staged() {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(FINISHING);
    drop(lock);
    let run = running.wait();
    let when = format!("killed in a batch on entering the {nth}th of {calls}");
    let was_killed = run.code != 0;
    let mut unrecorded = 0;
    if was_killed {
        assert_eq!(run.code, 1009, "{when}: {run}");
        unrecorded = whole_records(&world, &when);
        others.come(&world, turn);
        whole_records(&world, &when);
    }
    // Also a run that has other work removes what the killed one left.
    if turn % 2 == 1 {
        world.run(&["--image", &others.theirs]).exits(0);
        sound(&world, &when);
    }
    let run = world.run(&args);
    assert_eq!(run.code, 0, "{when}: {run}");
    sound(&world, &when);
    if others.has_check {
        let checked = world.podman(&["system", "check", "--quick"]);
        assert!(checked.is_ok() && checked.stdout.is_empty(), "{when}: {checked}");
    }
    was_killed.then_some(unrecorded)
}

/// The layers in the stages of the node.
fn staged_layers(world: &TestNode) -> usize {
    let stages = fs::read_dir(world.graph_root()).into_iter().flatten().flatten();
    let stages = stages.filter(|entry| entry.file_name().to_string_lossy().contains("-stage-"));
    let names = stages.flat_map(|stage| fs::read_dir(stage.path()).into_iter().flatten().flatten());
    names
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(".tar-split.gz"))
        .count()
}

/// Not `eprintln!`: the test runner hides what passing tests print.
fn report(what: &str) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

#[test]
fn after_a_kill_at_any_step_the_next_program_repairs_the_store() {
    needs!(root(), stock(), strace());
    let (registry, image) = (Registry::start(), all_kinds());
    registry.push("all", Some("latest"), &image);
    let others = Others::of(&TestNode::trusting(&[registry.host()]), &registry);
    let mut kills = 0;
    for (calls, quick, every) in CALLS {
        let every = if long() { every } else { quick };
        // The first of a kind is rarely the one that matters.
        let mut nth = every.div_ceil(2);
        let mut left = if long() { u64::MAX } else { OF_A_KIND };
        while left > 0 && kill_at(&registry, &image, &others, calls, nth, kills) {
            kills += 1;
            left -= 1;
            nth += every;
        }
        if long() {
            report(&format!("killed at {kills} steps, up to the last of {calls}"));
        }
    }
    if long() {
        let layer = Layer::of("file /noise 0644 0:0 random=7000000", Compression::None);
        let image = Image::build("noise", Format::Oci, node_architecture(), vec![layer], |_, _| {});
        registry.push("noise", Some("latest"), &image);
        for (calls, every) in CALLS_OF_A_LARGE_BLOB {
            let mut nth = 1;
            loop {
                // Only for the run that is killed.
                registry.end_faults();
                registry.fault(Fault::on(&image.layers[0].digest).slow(SLOW).times(1));
                if !kill_at(&registry, &image, &others, calls, nth, 2 * kills) {
                    break;
                }
                kills += 1;
                nth += every;
            }
            registry.end_faults();
            report(&format!(
                "killed at {kills} steps, up to the last of {calls} of a large blob"
            ));
        }
    }
    report(&format!("killed at {kills} steps"));
    assert!(kills >= KILLS, "only {kills} kills");
}

#[test]
fn after_a_kill_in_the_middle_of_a_batch_every_record_is_whole() {
    needs!(root(), stock(), strace());
    let registry = Registry::start();
    let text: String = (0..IMAGES_OF_A_BATCH)
        .map(|image| {
            format!(
                "image batch{image} oci
                layer gzip
                file /base 0644 0:0 \"base\"
                layer gzip
                file /middle 0644 0:0 \"{image}\"
                layer gzip
                file /top 0644 0:0 \"{image}\"\n"
            )
        })
        .collect();
    let images = Images::of(&text, &[]);
    registry.push_all(&images);
    let names: Vec<String> = images
        .images
        .iter()
        .map(|image| registry.tagged(&image.name))
        .collect();
    let others = Others::of(&TestNode::trusting(&[registry.host()]), &registry);
    let (mut kills, mut in_batches) = (0, 0);
    for (calls, quick) in CALLS_OF_A_BATCH {
        let all: Vec<u64> = (1..=u64::MAX).take(if long() { 200 } else { 0 }).collect();
        for nth in if long() { &all[..] } else { quick } {
            let Some(unrecorded) = kill_in_batch(&registry, &names, &others, calls, *nth, kills) else {
                break;
            };
            kills += 1;
            in_batches += u64::from(unrecorded > 3 * LAYERS_OF_AN_IMAGE);
        }
        if long() {
            report(&format!(
                "killed at {kills} steps of batches, up to the last of {calls}"
            ));
        }
    }
    report(&format!(
        "killed at {kills} steps of batches, {in_batches} after several images"
    ));
    assert!(in_batches > 0, "no batch was killed");
}

#[test]
fn after_a_kill_at_any_moment_the_next_run_completes_the_release() {
    needs!(root(), stock());
    let registry = Registry::start();
    let release = Release::build(&registry.host(), 20_000);
    registry.push_release(&release);
    let others = Others::of(&TestNode::trusting(&[registry.host()]), &registry);
    let rounds = if long() { 300 } else { 10 };
    let args = ["--platform-image", &release.by_digest(), "--exclude", EXCLUDE];
    let whole = TestNode::trusting(&[registry.host()]).run(&args).exits(0).took;
    let mut world = TestNode::trusting(&[registry.host()]);
    for round in 0..rounds {
        let run = world.start("run", &args);
        std::thread::sleep(whole * round / rounds);
        run.signal(Signal::KILL);
        assert!([0, 1009].contains(&run.wait().code));
        others.come(&world, round.into());
        // The store may be whole already; then the next rounds have nothing to interrupt.
        if round % 5 == 4 {
            world.run(&args).exits(0);
            sound(&world, "after five kills");
            world = TestNode::trusting(&[registry.host()]);
        }
    }
}
