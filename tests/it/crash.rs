//! Kills a run at any moment: other programs find a sound store, and the next run completes it (storage-format.md 9.5 and
//! row 13 of 12.2).

use std::io::Write as _;
use std::path::PathBuf;

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
            let checked = world.podman(&["system", "check", "--quick"]);
            assert!(checked.is_ok() && checked.stdout.is_empty(), "{checked}");
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
