//! Tests what happens instead of the bugs of TALM's scripts, by their numbers in talm-contract.md, section 8. `catalog::bugs`
//! has those that concern catalogs; of number 18, `network` has the proxies and the tests in `registry` the certificates.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::compare::inconsistencies;
use crate::disk::tmpfs;
use crate::image::operator::{OPERATORS, bundle, channel, index, operand, package, pull_spec};
use crate::image::release::{RELEASE, Release};
use crate::image::{Compression, Layer};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

/// A registry with a release, and operands by these names.
fn registry(operands: &[&str]) -> (Registry, Release) {
    let registry = Registry::start();
    for name in operands {
        registry.push(OPERATORS, None, &operand(name));
    }
    let release = Release::build(&registry.host(), 5_000);
    registry.push_release(&release);
    (registry, release)
}

fn push_index(registry: &Registry, documents: &[Value]) -> String {
    let image = index(documents);
    registry.push("operators/index", None, &image);
    registry.at("operators/index", &image.digest())
}

/// A package with one bundle in its default channel, and what that runs.
fn simple(package_name: &str, image: &str, related: &[String]) -> Vec<Value> {
    vec![
        package(package_name, "stable"),
        channel(package_name, "stable", &["v1"]),
        bundle(package_name, "v1", image, related),
    ]
}

#[test]
fn bug_1_the_last_additional_image_is_not_lost() {
    needs!(root());
    let (registry, _) = registry(&["a", "b"]);
    let images = ["a", "b"].map(|name| pull_spec(&registry.host(), name));
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[("additionalImages", &images.join("\n"))]);
    assert_eq!(world.run(&[]).exits(0).images("pulled").len(), 2);
}

#[test]
fn bug_2_a_blank_line_ends_nothing() {
    needs!(root());
    let (registry, release) = registry(&["a", "b"]);
    let images = ["a", "b"].map(|name| pull_spec(&registry.host(), name));
    // The scripts write a blank line for a catalog that has no image to give.
    let empty = push_index(&registry, &[package("other", "stable")]);
    let full = push_index(&registry, &simple("p", &images[0], &[]));
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[
        ("platform.image", &release.by_digest()),
        ("operators.indexes", &format!("\n{empty}\n\n{full}\n")),
        ("operators.packagesAndChannels", "\np:stable\n\n"),
        ("additionalImages", &format!("\n \n{}\n\t\n", images[1])),
    ]);
    let run = world.run(&[]).exits(0);
    assert_eq!(run.images("pulled").len(), 8 + 2 + 2, "{run}");
}

#[test]
fn bug_3_a_package_that_is_in_no_index_is_no_success() {
    needs!(root());
    let (registry, _) = registry(&["a"]);
    let index = push_index(
        &registry,
        &simple("ptp-operator", &pull_spec(&registry.host(), "a"), &[]),
    );
    let world = TestNode::trusting(&[registry.host()]);
    for line in ["ptp-oprator:stable", "ptp-operator:4.16"] {
        let args = ["--operator-index", &index, "--package", line];
        world
            .run(&args)
            .exits(5)
            .says(line.split(':').next().unwrap_or_default());
    }
}

#[test]
fn bug_7_a_payload_or_pattern_that_cannot_be_read_is_no_empty_release() {
    needs!(root());
    let (registry, release) = registry(&[]);
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[
        ("platform.image", &release.by_digest()),
        ("excludePrecachePatterns", "aws\n[a\n"),
    ]);
    world.run(&[]).exits(5).says("[a");
    let base = Layer::of("file /base 0644 0:0 \"base\"", Compression::Gzip);
    let broken = crate::image::release::release_image(&base, "{\"kind\": \"ImageStream\", ");
    registry.push(RELEASE, Some("broken"), &broken);
    let broken = format!("{}/{RELEASE}:broken", registry.host());
    world.spec(&[("platform.image", &broken)]);
    world.run(&[]).exits(5).says("image-references");
    // No patterns at all exclude nothing.
    world.spec(&[("platform.image", &release.by_digest())]);
    assert_eq!(world.run(&[]).exits(0).images("pulled").len(), 8);
}

#[test]
fn bug_8_what_is_named_twice_is_pulled_once() {
    needs!(root());
    let (registry, release) = registry(&[]);
    let etcd = release.component("etcd");
    let index = push_index(&registry, &simple("p", &etcd, &[etcd.clone(), etcd.clone()]));
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[
        ("platform.image", &release.by_digest()),
        ("operators.indexes", &format!("{index}\n{index}")),
        ("operators.packagesAndChannels", "p:stable\np:\n"),
        (
            "additionalImages",
            &format!("{etcd}\n\"{etcd}\"\n{}\n", release.by_digest()),
        ),
    ]);
    let run = world.run(&[]).exits(0);
    assert_eq!(run.images("pulled").len(), 8 + 1, "{run}");
    let log = registry.log();
    let mut paths: Vec<&str> = log.iter().map(|access| access.path.as_str()).collect();
    paths.retain(|path| path.contains("/blobs/") || path.contains("/manifests/"));
    paths.sort_unstable();
    let asked = paths.len();
    paths.dedup();
    assert_eq!(paths.len(), asked, "{log:#?}");
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
}

#[test]
fn bug_9_an_additional_image_that_fails_holds_up_no_release() {
    needs!(root());
    let (registry, release) = registry(&["a"]);
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[
        ("platform.image", &release.by_digest()),
        (
            "additionalImages",
            &format!("{}/gone:1\n{}", registry.host(), pull_spec(&registry.host(), "a")),
        ),
    ]);
    let run = world.run(&[]).exits(8);
    assert_eq!(run.images("pulled").len(), 8 + 1, "{run}");
    assert_eq!(run.images("failed").len(), 1, "{run}");
}

#[test]
fn bug_10_every_image_is_tried_again_and_not_at_once() {
    needs!(root());
    let (registry, release) = registry(&["a"]);
    let index = push_index(&registry, &simple("p", &pull_spec(&registry.host(), "a"), &[]));
    for path in [RELEASE, "operators/index", OPERATORS] {
        registry.fault(Fault::on(&format!("{path}/manifests/")).times(2).status(503));
        registry.fault(Fault::on(&format!("{path}/blobs/")).times(2).status(500));
    }
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[
        ("platform.image", &release.by_digest()),
        ("operators.indexes", &index),
        ("operators.packagesAndChannels", "p:stable"),
    ]);
    let run = world.run(&[]).exits(0);
    assert_eq!(run.images("pulled").len(), 8 + 2, "{run}");
    assert!(
        registry.acts().iter().all(|acts| *acts == 2),
        "{:?}",
        registry.acts()
    );
}

/// Ten images are a batch of the scripts', and the next ten wait for the slowest of them.
#[test]
fn bug_11_a_slow_image_does_not_delay_others() {
    needs!(root());
    let names: Vec<String> = (0..25).map(|number| format!("i{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (registry, _) = registry(&names);
    registry.fault(Fault::on(&operand("i0").layers[0].digest).stall(100));
    let images: Vec<String> = names
        .iter()
        .map(|name| pull_spec(&registry.host(), name))
        .collect();
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[("additionalImages", &images.join("\n"))]);
    let run = world
        .run(&["--deadline", "8s", "--max-downloads", "2"])
        .exits(124);
    assert_eq!(run.images("pulled").len(), 24, "{run}");
    assert_eq!(run.images("pending"), [images[0].as_str()], "{run}");
}

#[test]
fn bug_12_what_is_cached_counts_as_space() {
    needs!(root());
    let registry = Registry::start();
    let release = Release::build(&registry.host(), 2_000_000);
    registry.push_release(&release);
    let world = TestNode::trusting(&[registry.host()]);
    tmpfs(&world.host().join("var/lib/containers"), 80);
    let args = [
        "--platform-image",
        &release.by_digest(),
        "--space-required",
        "70MiB",
    ];
    let first = world.run(&args).exits(0);
    // 60 MiB are left, and 20 of the 70 are there.
    let again = world.run(&args).exits(0);
    assert_eq!(
        again.total("imagesPresent"),
        first.total("imagesPulled"),
        "{again}"
    );
}

#[test]
fn bug_13_operators_alone_need_space_too() {
    needs!(root());
    let (registry, _) = registry(&["a"]);
    let index = push_index(&registry, &simple("p", &pull_spec(&registry.host(), "a"), &[]));
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[
        ("operators.indexes", &index),
        ("operators.packagesAndChannels", "p:stable"),
    ]);
    // Nothing is free below such a threshold.
    world
        .run(&["--image-gc-high-threshold", "1"])
        .exits(3)
        .says("not enough space for precaching");
    assert!(registry.layer_requests().is_empty());
}

/// The hub sends 35 if the field is not set, and the scripts check it if a release is requested.
#[test]
fn space_required_is_a_condition_only_where_a_release_is_asked_for() {
    needs!(root());
    let (registry, release) = registry(&["a", "b"]);
    let index = push_index(&registry, &simple("p", &pull_spec(&registry.host(), "a"), &[]));
    let additional = pull_spec(&registry.host(), "b");
    let required = ("spaceRequired", "900000");
    let operators = [
        ("operators.indexes", index.as_str()),
        ("operators.packagesAndChannels", "p:stable"),
    ];
    for keys in [operators.to_vec(), vec![("additionalImages", &additional)]] {
        let world = TestNode::trusting(&[registry.host()]);
        world.spec(&[&keys[..], &[required]].concat());
        let run = world.run(&[]).exits(0);
        let warnings = run.report["warnings"].to_string();
        assert!(warnings.contains("`spaceRequired` is 900000.0 GiB"), "{run}");
        world.plan(&[]).exits(0);
    }
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[("platform.image", &release.by_digest()), required]);
    world.run(&[]).exits(3).says("not enough space for precaching");
}

#[test]
fn bug_14_a_tag_is_resolved_by_the_registry_in_every_run() {
    needs!(root(), stock());
    let (registry, _) = registry(&[]);
    let world = TestNode::trusting(&[registry.host()]);
    let tag = format!("{}/{OPERATORS}:latest", registry.host());
    for name in ["old", "new"] {
        registry.push(OPERATORS, Some("latest"), &operand(name));
        let run = world.run(&["--image", &tag]).exits(0);
        assert_eq!(run.images("pulled"), [tag.as_str()], "{run}");
        let id = world
            .podman(&["image", "inspect", "--format", "{{.Id}}", &tag])
            .ok();
        assert_eq!(id.trim(), operand(name).id());
    }
}

/// The scripts copy each catalog out of its image, render it into a file and parse that; here not a byte of it is written.
#[test]
fn bug_15_a_catalog_is_read_in_place() {
    needs!(root());
    let (registry, _) = registry(&["a"]);
    let image = pull_spec(&registry.host(), "a");
    let mut documents = simple("p", &image, &[]);
    documents.extend((0..20_000).map(|number| {
        bundle(
            "other",
            &format!("other.v{number}"),
            &image,
            std::slice::from_ref(&image),
        )
    }));
    let length: usize = documents.iter().map(|document| document.to_string().len()).sum();
    let index = push_index(&registry, &documents);
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--operator-index", &index, "--package", "p"];
    world.run(&args).exits(0);
    let again = world.run(&args).exits(0);
    assert!(length > 4_000_000, "{length}");
    assert!(
        again.written < length as u64 / 20,
        "{} bytes were written: {again}",
        again.written
    );
}

#[test]
fn bug_16_nothing_out_of_an_image_is_run() {
    needs!(root(), strace());
    let (registry, release) = registry(&["a"]);
    let index = push_index(&registry, &simple("p", &pull_spec(&registry.host(), "a"), &[]));
    let world = TestNode::trusting(&[registry.host()]);
    let trace = world.out("execve");
    let strace = [
        "/usr/bin/strace",
        "-f",
        "-qq",
        "-e",
        "trace=execve,execveat",
        "-o",
    ];
    let path = trace.to_string_lossy().into_owned();
    let mut wrapper = strace.to_vec();
    wrapper.push(&path);
    let release = release.by_digest();
    let args = [
        "--platform-image",
        &release,
        "--operator-index",
        &index,
        "--package",
        "p",
    ];
    world.start_under(&wrapper, "run", &args).wait().exits(0);
    let calls = fs::read_to_string(&trace).unwrap();
    let calls: Vec<&str> = calls.lines().filter(|line| line.contains("execve")).collect();
    assert_eq!(calls.len(), 1, "{calls:#?}");
}

#[test]
fn bug_17_nothing_is_mounted() {
    needs!(root());
    let (registry, _) = registry(&[]);
    let index = push_index(&registry, &[json!({"schema": "olm.bundle"})]);
    let world = TestNode::trusting(&[registry.host()]);
    let mounts = || {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let host = world.host().to_string_lossy().into_owned();
        table.lines().filter(|line| line.contains(&host)).count()
    };
    let before = mounts();
    world
        .run(&["--operator-index", &index, "--package", "p"])
        .exits(5);
    assert_eq!(mounts(), before);
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
}

#[test]
fn bug_19_a_killed_run_leaves_nothing_for_ever() {
    needs!(root());
    let (registry, _) = registry(&["a", "b"]);
    let images = ["a", "b"].map(|name| pull_spec(&registry.host(), name));
    registry.fault(Fault::on(&operand("b").layers[0].digest).times(1).stall(5_000));
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[("additionalImages", &images.join("\n"))]);
    let running = world.start("run", &[]);
    // With the other image in the store: what a kill leaves of a record is kept for an hour, for another writer's sake.
    let images_json = world.graph_root().join("overlay-images/images.json");
    let has_first = || fs::read_to_string(&images_json).is_ok_and(|text| text.contains(&images[0]));
    while registry.acts() != [1] || !has_first() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    running.signal(Signal::KILL);
    running.wait().exits(1009);
    world.run(&[]).exits(0);
    let below = |path: &str| names_below(&world.host().join(path));
    assert_eq!(
        below("var/lib/containers/spoke-precache"),
        ["history.json", "lock"],
        "blobs are removed when they are unpacked"
    );
    assert_eq!(below("var/lib/containers"), ["spoke-precache", "storage"]);
    for outside in ["var/tmp", "tmp"] {
        assert!(below(outside).is_empty(), "{outside}");
    }
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
}

fn names_below(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
