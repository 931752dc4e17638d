//! Fills a real file system, ext4 and XFS in a file, at every point of a run.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::compare::inconsistencies;
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

const MIB: u64 = 1 << 20;

/// Size of a disk: mkfs.xfs makes none that is smaller.
const DISK: u64 = 320 * MIB;

/// Of a slow link, in bytes a second.
const SLOW: u64 = 10 * MIB;

/// More of what the plan counts with than of what it cannot foresee.
fn image() -> Image {
    let files: String = (0..1500)
        .map(|n| format!("file /f/{n} 0644 0:0 \"{n}\"\n"))
        .collect();
    let layers = vec![
        Layer::of("file /a random=3000000 seed=1", Compression::None),
        Layer::of(&files, Compression::Gzip),
        Layer::of("file /z zeros=12000000", Compression::Zstd),
    ];
    Image::build("mixed", Format::Oci, node_architecture(), layers, |_, _| {})
}

/// A disk below the world, which unmounts it in the end.
pub(crate) struct Disk(PathBuf);

impl Disk {
    pub(crate) fn mount(world: &TestNode, kind: &str) -> Self {
        let (file, at) = (world.out("disk"), world.host().join("var/lib/containers"));
        fs::File::create(&file).unwrap().set_len(DISK).unwrap();
        let make: &[&str] = match kind {
            "ext4" => &["mkfs.ext4", "-q", "-F", "-m", "0"],
            _ => &["mkfs.xfs", "-q", "-f"],
        };
        command(make, &[&file]);
        command(&["mount", "-o", "loop"], &[&file, &at]);
        Self(at)
    }

    /// Takes all but so many bytes away from others.
    pub(crate) fn leave(&self, bytes: u64) {
        let file = fs::File::create(self.0.join("ballast")).unwrap();
        let (mut step, mut taken) = (64 * MIB, 0);
        // What the file itself needs, and XFS keeps, is not known beforehand.
        while step >= 4096 {
            let take = || rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), taken, step);
            let may_take = bytes == 0 || self.free() >= bytes + step;
            match may_take && take().is_ok() {
                true => taken += step,
                false => step /= 4,
            }
        }
    }

    pub(crate) fn free(&self) -> u64 {
        let disk = rustix::fs::statvfs(&self.0).unwrap();
        disk.f_bavail * disk.f_frsize
    }

    pub(crate) fn free_again(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
        // XFS gives blocks back a little later.
        rustix::fs::syncfs(fs::File::open(&self.0).unwrap()).unwrap();
    }

    pub(crate) fn empty(&self) {
        for name in ["storage", "spoke-precache"] {
            let path = self.0.join(name);
            if path.exists() {
                fs::remove_dir_all(path).unwrap();
            }
        }
        rustix::fs::syncfs(fs::File::open(&self.0).unwrap()).unwrap();
    }
}

fn command(words: &[&str], paths: &[&Path]) {
    let status = Command::new(words[0]).args(&words[1..]).args(paths).status();
    assert!(status.unwrap().success(), "{words:?}");
}

fn stages(world: &TestNode) -> usize {
    let names = fs::read_dir(world.graph_root()).into_iter().flatten().flatten();
    names
        .filter(|name| name.file_name().to_string_lossy().contains("stage"))
        .count()
}

#[test]
fn wherever_the_disk_fills_up_nothing_is_half_there_and_another_run_goes_on() {
    needs!(root());
    let (registry, image) = (Registry::start(), image());
    registry.push("mixed", Some("latest"), &image);
    let args = ["--image", &registry.tagged("mixed")];
    for kind in ["ext4", "xfs"] {
        let world = TestNode::trusting(&[registry.host()]);
        let disk = Disk::mount(&world, kind);
        let before = disk.free();
        world.run(&args).exits(0);
        rustix::fs::syncfs(fs::File::open(&disk.0).unwrap()).unwrap();
        let needed = before - disk.free();
        let steps = if long() { 60 } else { 4 };
        let (mut met, mut foreseen, mut fitted) = (0, 0, 0);
        for step in 0..steps {
            disk.empty();
            // From what the plan is known to need to a little more than what it takes.
            disk.leave(needed * 4 / 10 + needed * 9 / 10 * step / steps);
            let run = world.run(&args);
            let when = format!("{kind} with {} KiB of {} KiB", disk.free() >> 10, needed >> 10);
            match run.code {
                0 => fitted += 1,
                3 if run.stderr.contains("not enough space for precaching") => foreseen += 1,
                3 if run.stderr.contains("the disk is full") => met += 1,
                3 if run.stderr.contains("not enough disk space for this layer") => met += 1,
                _ => panic!("{when}: {run}"),
            }
            assert!(run.code == 0 || run.stderr.contains("hint: "), "{when}: {run}");
            assert_eq!(
                inconsistencies(&world.graph_root()),
                Vec::<String>::new(),
                "{when}: {run}"
            );
            disk.free_again();
            let next = world.run(&args);
            assert_eq!(next.code, 0, "{when}: {next}after: {run}");
            assert_eq!(
                inconsistencies(&world.graph_root()),
                Vec::<String>::new(),
                "{when}: {next}"
            );
            assert_eq!(stages(&world), 0, "{when}: {next}");
        }
        // Not `eprintln!`: the test runner hides what passing tests print.
        let _ = writeln!(
            std::io::stderr(),
            "{kind}: {met} full disks were met, {foreseen} foreseen, {fitted} times it fitted"
        );
        assert!(met > 0);
    }
}

/// Another program fills the disk while a blob is downloaded.
#[test]
fn a_disk_that_another_program_fills_keeps_what_came() {
    needs!(root());
    let registry = Registry::start();
    // Much more than XFS may have set aside for a file that grows.
    let layer = Layer::of("file /a random=40000000 seed=1", Compression::None);
    let image = Image::build("noise", Format::Oci, node_architecture(), vec![layer], |_, _| {});
    registry.push("noise", Some("latest"), &image);
    let args = ["--image", &registry.tagged("noise")];
    for kind in ["ext4", "xfs"] {
        let world = TestNode::trusting(&[registry.host()]);
        let disk = Disk::mount(&world, kind);
        let partial = disk
            .0
            .join(format!("spoke-precache/{}.partial", image.layers[0].digest));
        registry.fault(Fault::on(&image.layers[0].digest).slow(SLOW));
        let run = world.start("run", &args);
        let came = || fs::metadata(&partial).map_or(0, |file| file.len());
        let began = Instant::now();
        while came() < MIB {
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "it does not come so far"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        disk.leave(0);
        let run = run.wait().exits(3).says("hint: ");
        let there = came();
        assert_eq!(
            inconsistencies(&world.graph_root()),
            Vec::<String>::new(),
            "{kind}: {run}"
        );
        disk.free_again();
        registry.end_faults();
        let next = world.run(&args).exits(0);
        assert!(
            there >= MIB && next.total("bytesResumed") >= there,
            "{kind}: {there}: {run}{next}"
        );
    }
}

/// On XFS, a directory with few names has no block. One more name may need one, so a removal must not add names.
#[test]
fn a_staged_layer_is_removed_from_a_disk_without_a_free_block() {
    needs!(root());
    let registry = Registry::start();
    let layers = vec![
        Layer::of("file /d/e/f random=100000 seed=1", Compression::Gzip),
        Layer::of("file /a random=40000000 seed=2", Compression::None),
    ];
    let image = Image::build("two", Format::Oci, node_architecture(), layers, |_, _| {});
    registry.push("two", Some("latest"), &image);
    let args = ["--image", &registry.tagged("two")];
    for kind in ["ext4", "xfs"] {
        let world = TestNode::trusting(&[registry.host()]);
        let disk = Disk::mount(&world, kind);
        registry.fault(Fault::on(&image.layers[1].digest).slow(SLOW / 4));
        let run = world.start("run", &args);
        let began = Instant::now();
        while !has_staged_layer(&world) {
            assert!(began.elapsed() < Duration::from_secs(20), "no layer is staged");
            std::thread::sleep(Duration::from_millis(10));
        }
        disk.leave(0);
        let run = run.wait().exits(3).says("hint: ");
        assert_eq!(stages(&world), 0, "{kind}: {run}");
        registry.end_faults();
    }
}

fn has_staged_layer(world: &TestNode) -> bool {
    let paths = |at: PathBuf| {
        fs::read_dir(at)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    let is_stage = |path: &PathBuf| path.to_string_lossy().contains("stage");
    let mut staged = paths(world.graph_root()).filter(is_stage).flat_map(paths);
    staged.any(|path| {
        let is_split = path.to_string_lossy().ends_with(".tar-split.gz");
        is_split && fs::metadata(path).is_ok_and(|file| file.len() > 0)
    })
}
