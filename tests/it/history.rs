//! Tests the history of runs and the command `status`: a story for each ending of a run, and what is missing afterwards.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::image::release::{EXCLUDE, Release};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::{long, needs, note};
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::{Run, Running, TestNode};

/// Of a slow link, in bytes a second.
const SLOW: u64 = 20_000;

fn image(name: &str, bytes: u64) -> Image {
    let seed: u64 = name.bytes().map(u64::from).sum();
    let line = format!("file /{name} 0644 0:0 random={bytes} seed={seed}");
    let layers = vec![Layer::of(&line, Compression::Gzip)];
    Image::build(name, Format::Docker, node_architecture(), layers, |_, _| {})
}

/// A registry with these images, each of a few kilobytes and tagged `latest`, and a node with a version spec for them.
fn scene(names: &[&str]) -> (Registry, TestNode, Vec<String>) {
    let registry = Registry::start();
    for name in names {
        registry.push(name, Some("latest"), &image(name, 5000));
    }
    let tagged: Vec<String> = names.iter().map(|name| registry.tagged(name)).collect();
    let node = TestNode::trusting(&[registry.host()]);
    node.spec(&[("additionalImages", &tagged.join("\n"))]);
    (registry, node, tagged)
}

fn history_file(node: &TestNode) -> PathBuf {
    node.host().join("var/lib/containers/spoke-precache/history.json")
}

/// The phases of all runs, newest first.
fn phases(node: &TestNode) -> Vec<String> {
    let bytes = fs::read(history_file(node)).unwrap_or_default();
    let document: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let runs = document["history"].as_array().cloned().unwrap_or_default();
    let phases = runs.iter().filter_map(|run| run["phase"].as_str());
    phases.map(str::to_owned).collect()
}

/// The document of `status`, and the names that it lists as missing.
#[track_caller]
fn status(node: &TestNode, code: i32) -> (Value, Vec<String>) {
    let run = node.status(&["-o", "json"]).exits(code);
    let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    let missing = document["request"]["missing"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let names = missing.iter().filter_map(|image| image["name"].as_str());
    let names = names.map(str::to_owned).collect();
    (document, names)
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Path, inode, size and times of everything below a directory.
fn tree(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
        found.push(format!(
            "{} {} {} {seconds}.{nanoseconds}",
            path.display(),
            metadata.ino(),
            metadata.len()
        ));
        if metadata.is_dir() {
            found.extend(tree(&path));
        }
    }
    found.sort();
    found
}

#[test]
fn a_complete_run_is_in_the_history_and_another_run_changes_nothing() {
    needs!(root());
    let registry = Registry::start();
    let release = Release::build(&registry.host(), 20_000);
    registry.push_release(&release);
    registry.push("tool", Some("latest"), &image("tool", 5000));
    let node = TestNode::trusting(&[registry.host()]);
    node.spec(&[
        ("platform.image", &release.by_digest()),
        ("excludePrecachePatterns", EXCLUDE),
        ("additionalImages", &registry.tagged("tool")),
    ]);
    node.status(&[]).exits(1).says("no run is recorded in `");
    let first = node.run(&[]).exits(0);
    let (document, missing) = status(&node, 0);
    assert!(missing.is_empty(), "{document:#}");
    let wanted = first.total("imagesWanted");
    assert_eq!(document["request"]["wanted"], wanted, "{document:#}");
    let run = &document["history"][0];
    assert_eq!(
        (&run["phase"], &run["exitCode"], &run["image"]),
        (&"Completed".into(), &0.into(), &release.by_digest().into()),
        "{run:#}"
    );
    assert_eq!(run["version"], first.report["version"], "{run:#}");
    assert!(run["version"].is_string(), "{run:#}");
    assert_eq!(run["bytesFetched"], first.total("bytesFetched"), "{run:#}");
    for time in ["startTime", "completeTime"] {
        assert_eq!(run[time], first.report[time], "{run:#}");
    }
    let spec = node.start("spec", &["-o", "json"]).wait().exits(0);
    assert_eq!(run["spec"], serde_json::from_str::<Value>(&spec.stdout).unwrap());
    let times: Vec<&str> = run["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|condition| condition["lastTransitionTime"].as_str())
        .collect();
    assert!(times.len() == 9 && times.is_sorted_by(|a, b| a >= b), "{run:#}");

    let (before, requests) = (tree(&node.graph_root()), registry.layer_requests().len());
    let again = node.run(&[]).exits(0).says("NothingToPull");
    assert_eq!(tree(&node.graph_root()), before, "{again}");
    assert_eq!(registry.layer_requests().len(), requests, "{again}");
    assert_eq!(
        (again.total("imagesPresent"), again.total("bytesFetched")),
        (wanted, 0),
        "{again}"
    );
    let text = node.status(&[]).exits(0).stdout;
    let end = format!("All {wanted} images of the last version spec are in the store.\n");
    assert!(text.ends_with(&end), "{text}");
    assert_eq!(text.matches(" Completed ").count(), 2, "{text}");
    assert_eq!(tree(&node.graph_root()), before, "`status` changes nothing");
}

#[test]
fn an_image_that_the_registry_does_not_have_is_listed_as_missing() {
    needs!(root());
    let (registry, node, mut tagged) = scene(&["one"]);
    tagged.push(registry.tagged("absent"));
    node.spec(&[("additionalImages", &tagged.join("\n"))]);
    node.run(&[]).exits(8);
    let (document, missing) = status(&node, 1);
    assert_eq!(missing, tagged[1..], "{document:#}");
    let run = &document["history"][0];
    assert_eq!((&run["phase"], &run["exitCode"]), (&"Failed".into(), &8.into()));
    assert!(
        run["reason"]
            .as_str()
            .is_some_and(|why| why.contains("1 unavailable")),
        "{run:#}"
    );
    node.status(&[]).exits(1).says(&tagged[1]).says("1 of 2 images");
}

/// The name of an image that arrives slowly.
fn slow_image(registry: &Registry) -> String {
    let large = image("large", 2_000_000);
    registry.push("large", Some("latest"), &large);
    registry.fault(Fault::on(&large.layers[0].digest).slow(SLOW));
    registry.tagged("large")
}

/// Starts a run that cannot end soon, and waits until it is recorded.
fn slow_run(registry: &Registry, node: &TestNode) -> Running {
    let before = phases(node).len();
    let run = node.start("run", &["--image", &slow_image(registry)]);
    wait_until("the run is recorded", || {
        let phases = phases(node);
        phases.first().is_some_and(|phase| phase == "Pulling") && phases.len() > before
    });
    run
}

#[test]
fn a_run_that_is_stopped_or_killed_is_recorded_and_the_next_run_corrects_it() {
    needs!(root());
    let (registry, node, tagged) = scene(&["one"]);
    let run = slow_run(&registry, &node);
    let (document, _) = status(&node, 1);
    assert_eq!(document["history"][0]["phase"], "Pulling", "{document:#}");
    assert!(document["history"][0]["completeTime"].is_null());
    run.signal(Signal::TERM);
    let stopped: Run = run.wait().exits(143);
    let (document, missing) = status(&node, 1);
    let entry = &document["history"][0];
    assert_eq!(
        (&entry["phase"], &entry["exitCode"]),
        (&"Stopped".into(), &143.into()),
        "{stopped}"
    );
    assert!(missing.contains(&registry.tagged("large")), "{document:#}");

    let run = slow_run(&registry, &node);
    run.signal(Signal::KILL);
    run.wait().exits(1009);
    assert_eq!(phases(&node), ["Pulling", "Stopped"]);
    node.status(&[]).exits(1).says("at work, or killed since");

    registry.end_faults();
    let name = registry.tagged("large");
    node.run(&["--image", &name]).exits(0);
    assert_eq!(phases(&node), ["Completed", "Unknown", "Stopped"]);
    let (document, _) = status(&node, 0);
    assert_eq!(document["request"]["wanted"], tagged.len() + 1);
}

#[test]
fn a_run_that_its_deadline_ends_is_stopped_and_not_failed() {
    needs!(root());
    let (registry, node, _) = scene(&["one"]);
    let name = slow_image(&registry);
    node.run(&["--image", &name, "--deadline", "4s"]).exits(124);
    let (document, missing) = status(&node, 1);
    let run = &document["history"][0];
    assert_eq!(
        (&run["phase"], &run["exitCode"]),
        (&"Stopped".into(), &124.into())
    );
    assert!(missing.contains(&name), "{document:#}");
    node.status(&[]).exits(1).says("stopped by the deadline");
}

#[test]
fn a_run_beside_another_is_recorded_and_leaves_the_others_entry() {
    needs!(root());
    let (registry, node, _) = scene(&["one"]);
    let first = slow_run(&registry, &node);
    node.run(&[]).exits(7);
    assert_eq!(phases(&node), ["Failed", "Pulling"]);
    first.signal(Signal::INT);
    first.wait().exits(130);
    assert_eq!(phases(&node), ["Failed", "Stopped"]);
}

#[test]
fn a_run_without_a_usable_spec_is_recorded_and_the_last_list_stays() {
    needs!(root());
    let (_registry, node, tagged) = scene(&["one", "two"]);
    node.run(&[]).exits(0);
    node.spec(&[("spaceRequired", "much")]);
    node.run(&[]).exits(2);
    assert_eq!(phases(&node), ["Failed", "Completed"]);
    let (document, _) = status(&node, 0);
    assert_eq!(document["request"]["present"], tagged.len());
    assert!(document["history"][0]["spec"].is_null(), "{document:#}");
}

#[test]
fn what_podman_removes_or_tags_anew_is_missing() {
    needs!(root(), stock());
    let (_registry, node, tagged) = scene(&["one", "two", "three"]);
    node.run(&[]).exits(0);
    status(&node, 0);
    node.podman(&["rmi", &tagged[0]]).ok();
    node.podman(&["tag", &tagged[1], &tagged[2]]).ok();
    let (document, missing) = status(&node, 1);
    assert_eq!(missing, [tagged[0].clone(), tagged[2].clone()], "{document:#}");
    node.status(&[]).exits(1).says("another image under this tag");
    node.run(&[]).exits(0);
    status(&node, 0);
}

#[test]
fn a_damaged_history_is_a_warning_and_is_replaced() {
    needs!(root());
    let (_registry, node, _) = scene(&["one"]);
    node.run(&[]).exits(0);
    for damage in [
        "",
        "{",
        "[]",
        "{\"apiVersion\": \"spoke-precache/v2\", \"kind\": \"History\", \"history\": []}",
    ] {
        fs::write(history_file(&node), damage).unwrap();
        node.status(&[]).exits(1).says("is damaged");
        let run = node.run(&[]).exits(0).says("a new history of runs is started");
        assert_eq!(phases(&node), ["Completed"], "{run}");
        status(&node, 0);
    }
    // A directory cannot be replaced.
    fs::remove_file(history_file(&node)).unwrap();
    fs::create_dir(history_file(&node)).unwrap();
    node.run(&[]).exits(0).says("this run is not recorded");
}

#[test]
fn the_history_has_the_last_twenty_runs() {
    needs!(root());
    let (_registry, node, _) = scene(&["one"]);
    for _ in 0..22 {
        node.run(&[]).exits(0);
    }
    assert_eq!(phases(&node), ["Completed"; 20]);
    status(&node, 0);
}

#[test]
fn the_status_of_two_hundred_images_needs_no_registry() {
    needs!(root());
    let number = if long() { 200 } else { 20 };
    let names: Vec<String> = (0..number).map(|n| format!("image-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (registry, node, _) = scene(&names);
    node.run(&[]).exits(0);
    registry.clear_log();
    let run = node.status(&[]).exits(0);
    assert!(registry.log().is_empty(), "{:#?}", registry.log());
    note(&format!(
        "status of {number} images: {:?}, {} KiB",
        run.took,
        run.memory >> 10
    ));
}

/// At calls about the file, its directory and its temporary file: of the threads that write the first entries, then of the main
/// thread, which writes the last one.
#[test]
fn a_run_that_is_killed_at_any_call_about_the_history_leaves_a_whole_one() {
    needs!(root(), strace());
    let (_registry, node, _) = scene(&["one"]);
    node.run(&[]).exits(0);
    let file = history_file(&node);
    let watched = [
        file.clone(),
        file.with_file_name(".history.json.tmp"),
        file.with_file_name(""),
    ];
    let watched = watched.map(|path| path.to_str().unwrap().trim_end_matches('/').to_owned());
    let only: Vec<&str> = watched.iter().flat_map(|path| ["-P", path]).collect();
    let calls = "openat,flock,read,unlinkat,write,renameat,renameat2,fsync";
    for threads in [&["-f"][..], &[]] {
        let mut kills = 0;
        for nth in 1.. {
            let before = phases(&node).len();
            let (trace, inject) = (
                format!("trace={calls}"),
                format!("inject={calls}:signal=KILL:when={nth}"),
            );
            let strace = ["/usr/bin/strace", "-qq", "-o", "/dev/null"];
            let options = [&strace, threads, &only, &["-e", &trace, "-e", &inject]].concat();
            let run = node.start_under(&options, "run", &[]).wait();
            let now = phases(&node).len();
            assert!(
                now > 0 && now >= before,
                "{nth}: {before} runs, then {now}: {run}"
            );
            let status = node.status(&[]);
            assert!(!status.stderr.contains("damaged"), "{nth}: {status}");
            if run.code == 0 {
                break;
            }
            run.exits(1009);
            kills += 1;
        }
        note(&format!("{kills} kills"));
        assert!(kills >= 6, "{threads:?}: {kills}");
    }
    node.run(&[]).exits(0);
    assert_eq!(phases(&node)[0], "Completed");
    assert!(
        !phases(&node).contains(&"Pulling".to_owned()),
        "{:?}",
        phases(&node)
    );
}

#[test]
fn a_full_disk_keeps_the_last_history_and_does_not_fail_the_run() {
    needs!(root(), strace());
    let (_registry, node, _) = scene(&["one"]);
    node.run(&[]).exits(0);
    let before = fs::read(history_file(&node)).unwrap();
    let temporary = history_file(&node).with_file_name(".history.json.tmp");
    let full = [
        "-P",
        temporary.to_str().unwrap(),
        "-e",
        "inject=write:error=ENOSPC",
    ];
    let run = node.start_with_faults(&full, "run", &[]).wait();
    run.exits(0).says("this run is not recorded");
    assert_eq!(fs::read(history_file(&node)).unwrap(), before);
    assert!(!temporary.exists());
    status(&node, 0);
}
