//! Simulates power loss during pulls: each image is in the store as a whole or not at all, and the next run does the rest
//! (storage-format.md 9.4).

mod block_device;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use block_device::{Loss, Medium};

use crate::compare::{compare, compare_part, inconsistencies_after_kills};
use crate::image::release::{EXCLUDE, Release};
use crate::image::samples::sample_images;
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::registry::log::Access;
use crate::test_node::TestNode;

/// Time between two checks of the files whose replacement triggers a power failure.
const GLANCE: Duration = Duration::from_micros(100);

/// How often the power fails just after a file was replaced.
const STRIKES: f64 = 0.05;

/// Every how many-th power failure podman is asked too.
const PODMAN: usize = 4;

/// What may differ: a directory that podman 4.3.1 removes when it unmounts (containers/storage up to 1.51), and temporary
/// files of big data, which are as harmless as after a kill.
const HARMLESS: [&str; 2] = [" tree ../merged", " data .tmp-"];

/// A blob that takes a while, in bytes.
const LARGE: u64 = 12_000_000;

/// Of it, a second.
const RATE: u64 = 2_000_000;

/// What a power failure may cost of it: a record is made every two seconds, and the disk is slow beside other tests.
const TAIL: u64 = 3 * RATE;

/// Lists the content of the image `$1` as podman mounts it.
const CONTENT: &str = r#"
set -e
mounted=$(podman image mount "$1")
cd "$mounted"
find . -type f -exec sha256sum {} + | sort -k2
find . ! -type f -printf '%y %m %U:%G %p -> %l\n' | sort
podman image unmount "$1" >/dev/null
"#;

/// What is pulled, and what must come of it.
struct Order {
    registry: Registry,
    names: Vec<String>,
    args: Vec<String>,
    /// A node that nothing happened to.
    whole: TestNode,
    took: Duration,
    /// What podman finds in some of the images.
    contents: BTreeMap<String, String>,
}

impl Order {
    fn new() -> Self {
        let registry = Registry::start();
        let release = Release::build(&registry.host(), 150_000);
        registry.push_release(&release);
        registry.push_all(&sample_images(b"no program"));
        let mut args = vec![
            "--platform-image".to_owned(),
            release.by_digest(),
            "--exclude".to_owned(),
            EXCLUDE.to_owned(),
        ];
        for name in ["zoo/links", "zoo/whiteouts", "zoo/compressions"] {
            args.extend(["--image".to_owned(), registry.tagged(name)]);
        }
        let whole = TestNode::trusting(&[registry.host()]);
        let run = whole.run(&words(&args)).exits(0);
        let names: Vec<String> = run.images("pulled").iter().map(|it| (*it).to_owned()).collect();
        let sample = [registry.tagged("zoo/links"), release.component("hyperkube")];
        let contents = sample.map(|name| {
            let content = content(&whole, &name);
            (name, content)
        });
        Self {
            names,
            args,
            took: run.took,
            whole,
            registry,
            contents: contents.into(),
        }
    }

    /// A run on a new disk whose power fails: about `count` times at random instants, and sometimes just after a record
    /// was replaced or a link made. The last failure is the one after its end.
    fn fail(&self, count: u32) -> (Medium, Vec<Loss>, Loss) {
        let medium = Medium::new();
        let world = TestNode::below(medium.path(), &[self.registry.host()]);
        rustix::fs::sync();
        let records = [
            "overlay-layers/layers.json",
            "overlay-images/images.json",
            "overlay/l",
        ];
        let records = records.map(|name| world.graph_root().join(name));
        let mut running = world.start("run", &words(&self.args));
        let begun = Instant::now();
        let (mut losses, mut seen) = (Vec::new(), Vec::new());
        let mut due = self.took.mul_f64(rand::random());
        while !running.has_ended() {
            let now: Vec<(u64, i64)> = records.iter().map(stamp).collect();
            let is_struck = now != seen && rand::random_bool(STRIKES);
            seen = now;
            if begun.elapsed() > due {
                losses.push(medium.lose_power());
                due = begun.elapsed() + self.took.mul_f64(2.0 * rand::random::<f64>() / f64::from(count));
            } else if is_struck {
                losses.push(medium.lose_power());
            }
            std::thread::sleep(GLANCE);
        }
        // "Done" means on the disk.
        let last = medium.lose_power();
        running.wait().exits(0);
        (medium, losses, last)
    }

    /// Checks the store after a power failure, and that the next run repairs it. Returns how many images were there.
    fn judge(&self, loss: &Loss, when: &str, with_podman: bool) -> usize {
        let dir = tempfile::tempdir().unwrap();
        let mount = loss.mount(dir.path());
        let world = revive(&mount.0, &self.registry);
        let mut wrong = compare_part(&world.graph_root(), &self.whole.graph_root());
        wrong.retain(|line| !HARMLESS.iter().any(|it| line.contains(it)));
        assert!(wrong.is_empty(), "{when}:\n{}", wrong.join("\n"));
        let mut verify = world.verify(&words(&self.args));
        assert!([0, 1].contains(&verify.code), "{when}: {verify}");
        if with_podman {
            self.ask_podman(&world, when);
            verify = world.verify(&words(&self.args));
        }
        let there = verify.images("present").len();
        let run = world.run(&words(&self.args));
        assert_eq!(run.code, 0, "{when}: {run}");
        let mut wrong = inconsistencies_after_kills(&world.graph_root());
        wrong.extend(
            compare(&world.graph_root(), &self.whole.graph_root(), &[])
                .into_iter()
                .filter(|line| !HARMLESS.iter().any(|it| line.contains(it))),
        );
        assert!(
            wrong.is_empty(),
            "{when}, after the next run:\n{}\n{run}",
            wrong.join("\n")
        );
        if with_podman {
            assert_eq!(self.ask_podman(&world, when), self.names.len(), "{when}");
        }
        there
    }

    /// podman lists, inspects and mounts what is there. Returns how many of the images it has.
    fn ask_podman(&self, world: &TestNode, when: &str) -> usize {
        world.podman(&["images", "--all"]).ok();
        if world.has_system_check() {
            let checked = world.podman(&["system", "check", "--quick"]);
            assert!(checked.is_ok() && checked.stdout.is_empty(), "{when}: {checked}");
        }
        let listed = world.podman(&[
            "images",
            "--format",
            "{{.Repository}}@{{.Digest}} {{.Repository}}:{{.Tag}}",
        ]);
        let listed = listed.ok();
        let listed: Vec<&str> = listed.split_whitespace().collect();
        let there = self
            .names
            .iter()
            .map(String::as_str)
            .filter(|name| listed.contains(name));
        let there: Vec<&str> = there.collect();
        if !there.is_empty() {
            world.podman(&[&["image", "inspect"], &there[..]].concat()).ok();
        }
        for (name, expected) in &self.contents {
            if there.contains(&name.as_str()) {
                assert_eq!(content(world, name), *expected, "{when}: {name}");
            }
        }
        there.len()
    }
}

/// The node of the disk, with what is outside of the power failure as it was, in another boot.
fn revive(disk: &Path, registry: &Registry) -> TestNode {
    let lost = fs::read_dir(disk).unwrap().flatten().next().unwrap().path();
    let lost = lost.join("host/var/lib/containers");
    let world = TestNode::below(disk, &[registry.host()]);
    let place = world.host().join("var/lib/containers");
    fs::remove_dir(&place).unwrap();
    fs::rename(lost, &place).unwrap();
    let boot = place.join("spoke-precache/lock");
    if boot.exists() {
        fs::write(boot, "b0075b00-7b00-7b00-7b00-7b007b007b00\n").unwrap();
    }
    world
}

fn words(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// Distinguishes a file from an earlier one of the same name, and a directory from its earlier state.
fn stamp(path: impl AsRef<Path>) -> (u64, i64) {
    fs::metadata(path).map_or((0, 0), |metadata| (metadata.ino(), metadata.mtime_nsec()))
}

fn content(world: &TestNode, image: &str) -> String {
    let mut command = world.tool_command(&crate::stock::top(), "pull", &["sh", "-c", CONTENT, "sh", image]);
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{image}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_power_failure_at_any_instant_leaves_each_image_whole_or_absent() {
    needs!(root(), stock(), xfs());
    let order = Order::new();
    let (runs, each) = if crate::needs::long() { (30, 15) } else { (1, 4) };
    let mut there = Vec::new();
    for turn in 0..runs {
        let (medium, losses, last) = order.fail(each);
        for (number, loss) in losses.into_iter().enumerate() {
            let when = format!("run {turn}, power failure {number}");
            there.push(order.judge(&loss, &when, number % PODMAN == 1));
        }
        let when = format!("run {turn}, after its end");
        let whole = order.judge(&last, &when, true);
        assert_eq!(whole, order.names.len(), "{when}");
        drop(medium);
    }
    let all = order.names.len();
    // Not `eprintln!`: the test runner hides what passing tests print.
    let _ = writeln!(
        std::io::stderr(),
        "{} power failures, of {all} images there were {there:?}",
        there.len()
    );
}

/// podman syncs its records and nothing else: what it pulled a moment ago is in the page cache.
#[test]
fn what_podman_pulled_survives_a_power_loss_after_a_run_reports_it() {
    needs!(root(), stock(), xfs());
    let order = Order::new();
    let medium = Medium::new();
    let world = TestNode::below(medium.path(), &[order.registry.host()]);
    rustix::fs::sync();
    let mut args = Vec::new();
    for name in order.contents.keys() {
        world.podman_pull(name);
        args.extend(["--image", name]);
    }
    world.run(&args).exits(0);
    let there = order.judge(&medium.lose_power(), "after podman's pull", true);
    // Components have names for `verify` only when the release image is there.
    assert!(there > 0);
}

/// A disk reports its errors when it is synced; the commit that requested the sync is undone.
#[test]
fn a_sync_that_fails_ends_the_run_and_shows_nothing_half_done() {
    needs!(root(), strace());
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    let name = registry.tagged("zoo/links");
    for fault in [
        "syncfs:error=EIO:when=1",
        "fdatasync:error=EIO:when=2",
        "fsync:error=EIO:when=4",
    ] {
        let world = TestNode::trusting(&[registry.host()]);
        world.run(&["--image", &registry.tagged("zoo/base")]).exits(0);
        let inject = format!("inject={fault}");
        let strace = ["/usr/bin/strace", "-f", "-qq", "-o", "/dev/null", "-e", &inject];
        let run = world.start_under(&strace, "run", &["--image", &name]).wait();
        assert_eq!(run.code, 7, "{fault}: {run}");
        let wrong = inconsistencies_after_kills(&world.graph_root());
        assert!(wrong.is_empty(), "{fault}:\n{}\n{run}", wrong.join("\n"));
        assert!(run.says("Input/output error").images("pulled").is_empty());
        world.run(&["--image", &name]).exits(0);
    }
}

/// The tail of a blob that was on its way is lost with the page cache, what has a record is not.
#[test]
fn a_large_blob_goes_on_from_its_last_record_after_a_power_failure() {
    needs!(root(), xfs());
    let registry = Registry::start();
    let text = format!("file /large 0644 0:0 random={LARGE}");
    let layer = Layer::of(&text, Compression::Gzip);
    let image = Image::build("large", Format::Oci, node_architecture(), vec![layer], |_, _| {});
    registry.push("large", Some("latest"), &image);
    registry.fault(Fault::on("/blobs/").slow(RATE));
    let medium = Medium::new();
    let world = TestNode::below(medium.path(), &[registry.host()]);
    rustix::fs::sync();
    let name = registry.tagged("large");
    let args = ["--image", &name];
    let run = world.start("run", &args);
    let came = || registry.layer_requests().iter().map(Access::sent).sum::<u64>();
    while came() < LARGE * 3 / 4 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let loss = medium.lose_power();
    let sent = came();
    drop(run);
    registry.end_faults();
    registry.clear_log();

    let dir = tempfile::tempdir().unwrap();
    let mount = loss.mount(dir.path());
    let run = revive(&mount.0, &registry).run(&args).exits(0);
    let resumed = run.total("bytesResumed");
    assert!(resumed <= sent, "{resumed} of {sent} bytes: {run}");
    assert!(sent - resumed <= TAIL, "{resumed} of {sent} bytes: {run}");
    assert!(
        came() <= image.layers[0].size - resumed + 1,
        "{} more bytes: {run}",
        came()
    );
}
