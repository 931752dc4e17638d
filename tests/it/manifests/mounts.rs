//! Compares the mounts of the Job with the files that the program opens.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{container, job, list, text};
use crate::image::Images;
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::TestNode;

/// What is read if it is there, and why the Job does not mount it.
const NOT_MOUNTED: [(&str, &str); 6] = [
    // On OpenShift, root has none; mounting it would make a directory in root's home on every node.
    ("root/.config/containers", "root's own registries.conf"),
    ("etc/ssl/certs/ca-certificates.crt", "Debian's bundle"),
    // A link to /run; the program only checks whether it is one.
    ("var/run", "where the run root would be"),
    (
        "proc",
        "what other processes have mounted; our own mounts propagate",
    ),
    // The directory has keys of the control plane.
    (
        "etc/kubernetes/kubelet.conf",
        "the API has the kubelet's settings",
    ),
    ("etc/openshift/kubelet.conf.d", "the same"),
];

/// Mounted, and read by `verify --repair` alone.
const FOR_REPAIR: &str = "run/containers";

/// Paths below `/host` where the Job mounts something, without the slash before them.
fn mounted() -> Vec<PathBuf> {
    let job = job();
    let paths = list(&container(&job)["volumeMounts"])
        .iter()
        .map(|mount| text(&mount["mountPath"]));
    paths
        .filter_map(|path| path.strip_prefix("/host/"))
        .map(PathBuf::from)
        .collect()
}

/// Paths below the host root that a run names to the kernel.
fn watched(world: &TestNode, args: &[&str]) -> BTreeSet<PathBuf> {
    let trace = world.out("trace");
    let to = trace.to_str().unwrap();
    let strace = [
        "/usr/bin/strace",
        "-f",
        "-qq",
        "-s",
        "4096",
        "-e",
        "trace=%file",
        "-o",
        to,
    ];
    world.start_under(&strace, "run", args).wait();
    let below = format!("{}/", world.host().display());
    let trace = fs::read_to_string(trace).unwrap();
    let named = trace.lines().flat_map(|line| line.split('"'));
    named
        .filter_map(|path| path.strip_prefix(&below).map(PathBuf::from))
        .collect()
}

#[test]
fn every_host_path_that_is_read_is_mounted_and_no_other() {
    needs!(root(), strace());
    let registry = Registry::start();
    registry.push_all(&Images::of(
        "image a docker\nlayer gzip\nfile /a 0644 0:0 \"a\"\n",
        &[],
    ));
    let world = TestNode::trusting(&[registry.host()]);
    // A name without a registry ends a run early, one that must be resolved does not.
    let mut read = watched(&world, &["--image", "short"]);
    read.extend(watched(
        &world,
        &[
            "--image",
            &registry.tagged("a"),
            "--image",
            "no.invalid/x:1",
            "--give-up-after",
            "1s",
        ],
    ));
    let mounted = mounted();
    let is_below = |path: &Path, tops: &[PathBuf]| tops.iter().any(|top| path.starts_with(top));
    let not_mounted = NOT_MOUNTED.map(|(path, _)| PathBuf::from(path));
    // The program opens parents of mounts too.
    let is_above = |path: &Path| mounted.iter().any(|top| top.starts_with(path));
    let missing: Vec<_> = read
        .iter()
        .filter(|path| !is_below(path, &mounted) && !is_below(path, &not_mounted) && !is_above(path))
        .collect();
    assert!(missing.is_empty(), "read and not mounted: {missing:?}");
    let idle: Vec<_> = mounted
        .iter()
        .filter(|top| **top != Path::new(FOR_REPAIR) && !read.iter().any(|path| path.starts_with(top)))
        .collect();
    assert!(idle.is_empty(), "mounted and not read: {idle:?} of {read:#?}");
}

/// Only the store is written; every mount has its volume and every volume its mount.
#[test]
fn mounts_and_volumes_belong_together() {
    let job = job();
    let mounts = list(&container(&job)["volumeMounts"]);
    let volumes = list(&job["spec"]["template"]["spec"]["volumes"]);
    let names = |list: &[serde_json::Value]| -> Vec<String> {
        let mut names: Vec<String> = list.iter().map(|it| text(&it["name"]).to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(mounts), names(volumes));
    for mount in mounts {
        let volume = volumes
            .iter()
            .find(|volume| volume["name"] == mount["name"])
            .unwrap();
        if let Some(path) = volume["hostPath"]["path"].as_str() {
            assert_eq!(text(&mount["mountPath"]), format!("/host{path}"));
            assert!(volume["hostPath"]["type"].is_string(), "{path} may be anything");
        }
        let is_written = mount["mountPath"] == "/host/var/lib/containers";
        assert_eq!(mount["readOnly"] == true, !is_written, "{}", mount["mountPath"]);
    }
}
