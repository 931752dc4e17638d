//! Tests what keeps the images in the store after the run: a PinnedImageSet in a file, or a warning about the kubelet's
//! threshold. `cluster` tests pinning through the API.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spoke_precache::preflight::{Space, Threshold};

use crate::compare::compare;
use crate::image::samples::sample_images;
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::TestNode;

/// More than the zoo's images need.
const ROOM: u64 = 64 << 20;

fn registry_with_samples() -> Registry {
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    registry
}

/// Better before hours of work than after them; and nothing is left beside it.
#[test]
fn pins_that_cannot_be_written_are_refused_at_once() {
    needs!(root());
    let (registry, world) = (registry_with_samples(), TestNode::trusting(&[]));
    let image = registry.tagged("zoo/base");
    for path in [world.out("none/pins.yaml"), world.host().to_owned()] {
        world
            .run(&["--image", &image, "--pin", path.to_str().unwrap()])
            .exits(2)
            .says("cannot write the pins `");
    }
    assert!(registry.log().is_empty());
}

/// The set names the list, which exists for every platform, and not the instance of one platform.
#[test]
fn an_image_by_tag_is_pinned_by_its_list() {
    needs!(root());
    let registry = Registry::start();
    let images = sample_images(b"no program");
    registry.push_all(&images);
    let world = TestNode::trusting(&[registry.host()]);
    let (image, file) = (registry.tagged("zoo/multi"), world.out("pins.yaml"));
    let path = file.to_str().unwrap();
    fs::write(&file, "an older one").unwrap();
    world
        .run(&["--image", &image, "--pin", path])
        .exits(0)
        .says("1 image pinned");
    let list = registry.at("zoo/multi", &images.list("zoo/multi").digest());
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(&format!("- name: \"{list}\"")), "{text}");
    let beside = fs::read_dir(file.parent().unwrap()).unwrap();
    let beside = beside.filter(|it| {
        it.as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains("pins")
    });
    assert_eq!(beside.count(), 1, "nothing else is left");
}

/// The names in a document of PinnedImageSets.
fn pinned(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let names = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- name: "));
    names.map(|name| name.trim_matches('"').to_owned()).collect()
}

/// CRI-O compares its `pinned_images` with the names in the records, where a pull by tag leaves the tag alone: 17 of 51
/// images were counted as pinned and pruned.
#[test]
fn what_was_asked_for_by_tag_gets_the_name_by_which_it_is_pinned() {
    needs!(root(), stock());
    let registry = registry_with_samples();
    let [world, peer] = [(); 2].map(|()| TestNode::trusting(&[registry.host()]));
    let tagged = ["zoo/base", "zoo/multi"].map(|name| registry.tagged(name));
    let images = ["--image", &tagged[0], "--image", &tagged[1]];
    // One is there before, by podman; the other comes with the pins.
    world.podman_pull(&tagged[0]);
    let file = world.out("pins.yaml");
    let args = [&images[..], &["--pin", file.to_str().unwrap()]].concat();
    world.run(&args).exits(0).says("2 images pinned");
    tagged.iter().for_each(|image| drop(peer.podman_pull(image)));
    pinned(&file)
        .iter()
        .for_each(|image| drop(peer.podman_pull(image)));
    let differences = compare(&world.graph_root(), &peer.graph_root(), &[]);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    let list = |world: &TestNode| world.podman(&["images", "--digests", "--no-trunc"]).ok();
    assert_eq!(list(&world), list(&peer));
    world.verify(&images).exits(0);
    // Another run has nothing to add.
    let records = || fs::read(world.graph_root().join("overlay-images/images.json")).unwrap();
    let before = records();
    world.run(&args).exits(0).says("2 images pinned");
    assert_eq!(records(), before);
}

/// One image in the lists of two repositories: each of these knows its own list alone.
#[test]
fn an_image_of_several_repositories_is_pinned_by_the_list_of_each() {
    needs!(root());
    let (registry, images) = (registry_with_samples(), sample_images(b"no program"));
    let world = TestNode::trusting(&[registry.host()]);
    let (multi, index) = (registry.tagged("zoo/multi"), registry.tagged("zoo/index"));
    let file = world.out("pins.yaml");
    let args = ["--image", &multi, "--image", &index];
    let args = [&args[..], &["--pin", file.to_str().unwrap()]].concat();
    world.run(&args).exits(0).says("1 image pinned");
    let list = |name| registry.at(name, &images.list(name).digest());
    assert_eq!(pinned(&file), [list("zoo/index"), list("zoo/multi")]);
}

#[test]
fn a_signal_while_the_pins_go_to_a_pipe_without_reader_ends_it_at_once() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let pipe = world.out("pins");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let image = registry.tagged("zoo/base");
    let running = world.start("run", &["--image", &image, "--pin", pipe.to_str().unwrap()]);
    let log = || {
        let files = fs::read_dir(world.out("")).unwrap().map(|it| it.unwrap().path());
        let mut files = files.filter(|path| path.extension().is_some_and(|it| it == "stderr"));
        files
            .next()
            .and_then(|path| fs::read_to_string(path).ok())
            .unwrap_or_default()
    };
    let begin = Instant::now();
    while !log().contains(" Verify: ") {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "it does not end: {}",
            log()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    // It has nothing left to do but to open the pipe.
    std::thread::sleep(Duration::from_millis(300));
    let asked = Instant::now();
    running.signal(Signal::TERM);
    let run = running
        .wait()
        .exits(0)
        .says("the run was stopped before the images were pinned");
    assert!(asked.elapsed() < Duration::from_secs(3), "{run}");
}

#[test]
fn without_pins_it_warns_near_the_kubelet_s_threshold() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let space = Space::of(&world.graph_root()).unwrap();
    let is_near = |threshold: &Threshold| {
        space.threshold_warning(*threshold).is_some() && space.headroom(*threshold) > ROOM
    };
    let mut thresholds = (1..100).filter_map(|percent| Threshold::new(percent).ok());
    let Some(near) = thresholds.find(is_near) else {
        return crate::needs::skip("the disk is too full");
    };
    let image = registry.tagged("zoo/base");
    let percent = near.percent().to_string();
    let args = ["--image", &image, "--image-gc-high-threshold", &percent];
    let run = world.run(&args).exits(0);
    let warnings = run.report["warnings"].to_string();
    assert!(warnings.contains("pin the images with `--pin`"), "{run}");
    let pins = world.out("pins.yaml");
    let pinned = [&args[..], &["--pin", pins.to_str().unwrap()]].concat();
    assert_eq!(
        world.run(&pinned).exits(0).report["warnings"],
        serde_json::json!([])
    );
}
