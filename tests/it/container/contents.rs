//! Tests the files of the image, its size, and that it starts by each of its names.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use super::image_build::{Built, is_static, script, tools};
use crate::image::sha256;
use crate::manifests;
use crate::needs::{note, skip};
use crate::test_node::TestNode;

/// What an image may weigh that has to cross the same slow link (issue 5).
const LIMIT: u64 = 15 << 20;

const SCRIPT: &str = "/opt/precache/precache.sh";

/// `PATH MODE OWNER:GROUP [-> TARGET]`, sorted.
fn listing(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let inside = path.strip_prefix(root).unwrap().display();
            let (mode, uid, gid) = (metadata.mode() & 0o7777, metadata.uid(), metadata.gid());
            let mut line = format!("{inside} {mode:o} {uid}:{gid}");
            if metadata.is_symlink() {
                line += &format!(" -> {}", fs::read_link(&path).unwrap().display());
            }
            lines.push(line);
            if metadata.is_dir() {
                directories.push(path);
            }
        }
    }
    lines.sort();
    lines
}

#[test]
fn the_same_binary_makes_the_same_image_of_one_file_and_its_names() {
    if let Err(why) = tools() {
        return skip(&why);
    }
    let (built, again, dir) = (Built::new(), Built::new(), tempfile::tempdir().unwrap());
    let digest = |built: &Built| sha256(&fs::read(built.archive()).unwrap());
    assert_eq!(built.said, again.said);
    assert!(built.said.contains(" bytes compressed, "), "{}", built.said);
    assert_eq!(digest(&built), digest(&again));
    let root = dir.path().join("root");
    built.unpack(&root);
    assert_eq!(
        listing(&root),
        [
            "bin 755 0:0",
            "bin/bash 777 0:0 -> ../usr/bin/spoke-precache",
            "licenses 755 0:0",
            "licenses/LICENSE 644 0:0",
            "licenses/RUST-STANDARD-LIBRARY.html 644 0:0",
            "licenses/THIRD-PARTY.txt 644 0:0",
            "opt 755 0:0",
            "opt/precache 755 0:0",
            "opt/precache/precache.sh 777 0:0 -> ../../usr/bin/spoke-precache",
            "tmp 1777 0:0",
            "usr 755 0:0",
            "usr/bin 755 0:0",
            "usr/bin/spoke-precache 755 0:0",
        ]
    );
    let root = dir.path().join("able-to-start");
    built.unpack_to_start(&root);
    starts_by_each_of_its_names(&root);
    let config = built.config();
    let of_run = &config["config"];
    assert_eq!(
        of_run["Entrypoint"],
        serde_json::json!(["/usr/bin/spoke-precache"])
    );
    assert_eq!(of_run["Cmd"], serde_json::json!(["run"]));
    assert_eq!(of_run["User"], "0");
    assert_eq!(config["created"], "2023-11-14T22:13:20Z");
    let labels = &of_run["Labels"];
    for label in [
        "name",
        "vendor",
        "maintainer",
        "release",
        "summary",
        "description",
        "io.k8s.display-name",
        "io.k8s.description",
        "io.openshift.tags",
    ] {
        assert!(
            labels[label].as_str().is_some_and(|text| !text.is_empty()),
            "{label}"
        );
    }
    let job = manifests::job();
    let requested = &manifests::container(&job)["resources"]["requests"]["memory"];
    assert_eq!(&labels["io.openshift.min-memory"], requested);
    assert_eq!(labels["io.openshift.non-scalable"], "true");
    for label in ["version", "org.opencontainers.image.version"] {
        assert_eq!(labels[label], env!("CARGO_PKG_VERSION"));
    }
    if !is_static("the size is that of what is shipped") {
        return;
    }
    note(built.said.trim_end());
    assert!(built.compressed() < LIMIT, "{}", built.said);
}

/// It would build, and then start nowhere.
#[test]
fn a_binary_that_needs_libraries_is_refused() {
    if let Err(why) = tools() {
        return skip(&why);
    }
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("image.tar");
    let output = Command::new(script())
        .args([Path::new("/usr/bin/buildah"), &archive])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("needs shared libraries"), "{said}");
    assert!(!archive.exists());
}

fn starts_by_each_of_its_names(root: &Path) {
    // Outside of a container there is no version spec: that ends with 2, with a log in the form of the name.
    for (command, code, says) in [
        (&["/bin/bash", "-c", SCRIPT][..], 2, "upgrades.pre-cache "),
        (&[SCRIPT], 2, "upgrades.pre-cache "),
        (&["/usr/bin/spoke-precache", "run"], 2, "/etc/config"),
        (&["/bin/bash", "-c", "id"], 127, "no shell"),
    ] {
        let output = Command::new("chroot")
            .arg(root)
            .args(command)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
        assert!(said.contains(says), "{command:?}: {said}");
    }
}

#[test]
fn podman_runs_it() {
    if let Err(why) = tools().and_then(|()| crate::needs::stock()) {
        return skip(&why);
    }
    if !is_static("a container has no libraries") {
        return;
    }
    let (built, world) = (Built::new(), TestNode::trusting(&[]));
    let archive = world.out("image.tar");
    fs::copy(built.archive(), &archive).unwrap();
    world
        .podman(&["load", "--quiet", "--input", archive.to_str().unwrap()])
        .ok();
    let id = world.podman(&["images", "--quiet"]).ok();
    let answer = world.podman_run(&id, "1000:1000", &["--version"]);
    let version = format!("spoke-precache {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(answer.ok(), version);
    // Its own command, `run`; there is no version spec.
    let answer = world.podman_run(&id, "0:0", &[]);
    assert!(answer.stderr.contains("/etc/config"), "{answer}");
}
