//! Tests full, read-only and separate disks, and a spool that another or an earlier run has used.

use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount, mount_remount};
use rustix::process::Signal;

use crate::compare::inconsistencies;
use crate::image::layer::random;
use crate::image::samples::sample_images;
use crate::image::{Compression, Format, Image, Layer, node_architecture, sha256};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

const MIB: u64 = 1 << 20;

fn registry_with_samples() -> Registry {
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    registry
}

pub(crate) fn tmpfs(path: &Path, mib: u64) {
    fs::create_dir_all(path).unwrap();
    let options = CString::new(format!("size={mib}m,mode=0755")).unwrap();
    mount("t", path, "tmpfs", MountFlags::empty(), options.as_c_str()).unwrap();
}

fn enlarge(path: &Path, mib: u64) {
    mount_remount(path, MountFlags::empty(), format!("size={mib}m")).unwrap();
}

fn sound(world: &TestNode) {
    let wrong = inconsistencies(&world.graph_root());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// An image whose second layer is zeros, so that no estimate foresees what it takes up.
fn zeros(mib: u64) -> Image {
    let layers = vec![
        Layer::of("file /small 0644 0:0 random=100000", Compression::Gzip),
        Layer::of(
            &format!("file /zeros 0644 0:0 zeros={}", mib * MIB),
            Compression::Zstd,
        ),
    ];
    Image::build("zeros", Format::Oci, node_architecture(), layers, |_, _| {})
}

#[test]
fn a_disk_that_fills_up_in_the_middle_is_left_as_free_as_it_was_and_another_run_goes_on() {
    needs!(root());
    let (registry, image) = (Registry::start(), zeros(60));
    registry.push("zeros", Some("latest"), &image);
    let world = TestNode::trusting(&[registry.host()]);
    let disk = world.host().join("var/lib/containers");
    tmpfs(&disk, 40);
    let args = ["--image", &registry.tagged("zeros")];
    let run = world
        .run(&args)
        .exits(3)
        .says("not enough disk space for this layer")
        .says("hint: ");
    assert_eq!(run.images("failed"), [&registry.tagged("zeros")], "{run}");
    sound(&world);
    let free = rustix::fs::statvfs(&disk).unwrap();
    let used = (free.f_blocks - free.f_bavail) * free.f_frsize;
    assert!(used < 2 * MIB, "{used} bytes are left behind: {run}");
    enlarge(&disk, 200);
    registry.clear_log();
    world.run(&args).exits(0);
    assert!(registry.layer_requests().is_empty(), "{:#?}", registry.log());
    sound(&world);
}

#[test]
fn a_spool_on_another_file_system_needs_space_of_its_own() {
    needs!(root());
    let registry = Registry::start();
    let layer = Layer::of("file /noise 0644 0:0 random=3000000", Compression::None);
    let image = Image::build("noise", Format::Oci, node_architecture(), vec![layer], |_, _| {});
    registry.push("noise", Some("latest"), &image);
    let world = TestNode::trusting(&[registry.host()]);
    let spool = world.out("spool");
    tmpfs(&spool, 2);
    let args = [
        "--image",
        &registry.tagged("noise"),
        "--spool",
        spool.to_str().unwrap(),
    ];
    world
        .run(&args)
        .exits(3)
        .says("move the spool (`--spool`) to a larger");
    enlarge(&spool, 8);
    world.run(&args).exits(0);
    let left: Vec<_> = fs::read_dir(&spool).unwrap().flatten().collect();
    assert_eq!(left.len(), 2, "only the lock and the history: {left:?}");
    sound(&world);
}

/// An image that needs twice so many mebibytes: as a blob and unpacked.
fn large(registry: &Registry, mib: u64) -> (String, Layer) {
    let line = format!("file /data 0644 0:0 random={} seed={mib}", mib * MIB);
    let layer = Layer::of(&line, Compression::None);
    let (name, layers) = (format!("large-{mib}"), vec![layer.clone()]);
    let image = Image::build(&name, Format::Oci, node_architecture(), layers, |_, _| {});
    registry.push(&name, Some("latest"), &image);
    (registry.tagged(&name), layer)
}

/// design.md, 4: removed when nothing in the plan wants them and the disk does.
#[test]
fn blobs_of_earlier_runs_are_removed_if_that_gives_enough_space_and_requested_ones_stay() {
    needs!(root());
    let registry = Registry::start();
    let world = TestNode::trusting(&[registry.host()]);
    let disk = world.host().join("var/lib/containers");
    tmpfs(&disk, 64);
    let spool = disk.join("spoke-precache");
    fs::create_dir(&spool).unwrap();
    // Used in this boot.
    fs::copy("/proc/sys/kernel/random/boot_id", spool.join("lock")).unwrap();
    let stale = spool.join(sha256(b"of another release"));
    let arrange = |layer: &Layer| {
        fs::write(&stale, vec![1; 40 << 20]).unwrap();
        let begun = spool.join(format!("{}.partial", layer.digest));
        fs::write(&begun, &layer.blob[..1000]).unwrap();
        begun
    };
    // It would not help.
    let (image, layer) = large(&registry, 40);
    let begun = arrange(&layer);
    world
        .run(&["--image", &image])
        .exits(3)
        .says("not enough space for precaching")
        .says("highThresholdPercent: ");
    for path in [&stale, &begun] {
        assert!(path.exists(), "`{}` is missing", path.display());
    }
    fs::remove_file(begun).unwrap();
    // It does.
    let (image, layer) = large(&registry, 20);
    arrange(&layer);
    let done = world
        .run(&["--image", &image])
        .exits(0)
        .says("removed 1 blobs of earlier runs");
    assert!(!stale.exists());
    assert_eq!(done.total("bytesResumed"), 1000, "{done}");
    // There is no need.
    fs::remove_dir_all(world.graph_root()).unwrap();
    let (image, layer) = large(&registry, 1);
    arrange(&layer);
    world.run(&["--image", &image]).exits(0);
    assert!(stale.exists());
}

/// Killed while it unpacked, a run leaves as much behind as it was about to store.
#[test]
fn what_a_killed_run_had_unpacked_does_not_count_against_the_next() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    tmpfs(&world.host().join("var/lib/containers"), 64);
    world.run(&["--image", &registry.tagged("zoo/base")]).exits(0);
    let stage = world.graph_root().join(".spoke-precache-stage-0123456789abcdef");
    fs::create_dir_all(stage.join("0-aa/diff")).unwrap();
    fs::write(stage.join("0-aa/diff/large"), vec![1; 40 << 20]).unwrap();
    let (image, _) = large(&registry, 20);
    world.run(&["--image", &image]).exits(0);
    assert!(!stage.exists());
}

#[test]
fn a_read_only_disk_can_be_verified_and_not_written() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let disk = world.host().join("var/lib/containers");
    tmpfs(&disk, 64);
    let (here, other) = (registry.tagged("zoo/base"), registry.tagged("zoo/links"));
    world.run(&["--image", &here]).exits(0);
    mount_remount(&disk, MountFlags::RDONLY, c"").unwrap();
    world.verify(&["--image", &here]).exits(0);
    world
        .verify(&["--image", &here, "--image", &other])
        .exits(1)
        .says("it is not in the store");
    world.plan(&["--image", &other]).exits(0);
    world
        .run(&["--image", &other])
        .exits(7)
        .says("Read-only file system");
}

#[test]
fn plan_and_verify_create_nothing() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let disk = world.host().join("var/lib/containers");
    world.verify(&["--image", &registry.tagged("zoo/base")]).exits(1);
    world.plan(&["--image", &registry.tagged("zoo/base")]).exits(0);
    assert_eq!(fs::read_dir(disk).unwrap().count(), 0);
}

#[test]
fn a_second_run_fails_at_once_and_plan_and_verify_disturb_none() {
    needs!(root());
    let registry = registry_with_samples();
    registry.fault(Fault::on("/blobs/").slow(20_000));
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--image", &registry.tagged("zoo/compressions")];
    let mut first = world.start("run", &args);
    let lock = world.host().join("var/lib/containers/spoke-precache/lock");
    let begun = Instant::now();
    while !lock.exists() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
    registry.clear_log();
    let second = world
        .run(&args)
        .exits(7)
        .says("another spoke-precache is running");
    assert!(second.took < Duration::from_secs(5), "{second}");
    world.plan(&args).exits(0);
    world.verify(&args).exits(1);
    assert!(!first.has_ended());
    first.signal(Signal::TERM);
    first.wait().exits(143);
    registry.end_faults();
    world.run(&args).exits(0);
}

/// `plan` shows what does not fit, so it pulls the release image for its payload whatever `spaceRequired` is.
#[test]
fn a_plan_that_does_not_fit_is_shown_and_ends_with_3() {
    needs!(root());
    let registry = Registry::start();
    let release = crate::image::release::Release::build(&registry.host(), 10_000);
    registry.push_release(&release);
    let world = TestNode::trusting(&[registry.host()]);
    let args = [
        "--platform-image",
        &release.by_digest(),
        "--space-required",
        "10000000",
    ];
    let plan = world.plan(&args).exits(3);
    assert!(plan.stdout.contains("ACTION"), "{plan}");
    assert!(plan.stdout.contains("not enough space for precaching"), "{plan}");
    world.run(&args).exits(3);
}

#[test]
fn a_manifest_that_contradicts_itself_is_unexpected_content() {
    needs!(root());
    let registry = Registry::start();
    let layer = Layer::of_blob(random(100, 1).into(), sha256(b"a"), Compression::Gzip);
    let image = Image::build(
        "liar",
        Format::Oci,
        node_architecture(),
        vec![layer.clone(), layer],
        |_, manifest| manifest["layers"][1]["size"] = 7.into(),
    );
    registry.push("liar", Some("latest"), &image);
    let world = TestNode::trusting(&[registry.host()]);
    for flag in ["--image", "--platform-image"] {
        let run = world.run(&[flag, &registry.tagged("liar")]).exits(5);
        run.says("contradictory manifest");
    }
}
