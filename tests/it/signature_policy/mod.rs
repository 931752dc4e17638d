//! Compares the verdicts on signed images, and the stored signatures, with those of podman.
//!
//! skopeo, gpg and openssl sign the images here, with keys that are made for the test. docker-registry serves the attachments,
//! nginx the lookaside signatures. podman and the program get the same policy.json, registries.d and keys.

mod images;
mod keys;
mod policies;
mod present;
mod requests;
mod server;
mod site;
mod verdicts;

use std::collections::BTreeSet;

use crate::compare::record_array;
use crate::needs::leave_out;
use crate::stock::top;
use crate::test_node::{Run, TestNode};

/// Before a tool that uses gpg: its process namespace ends the agents that gpg starts in the background.
const WITHOUT_AGENTS: [&str; 3] = ["unshare", "--pid", "--fork"];

/// podman pulls all images in one command.
const SECONDS: &str = "600";

/// Whether skopeo can sign with sigstore keys. That of Debian 12 is built without them.
fn has_sigstore() -> bool {
    let has = !TestNode::trusting(&[]).podman_version().starts_with("4.");
    if !has {
        leave_out("needs a skopeo with sigstore signatures: SPOKE_STOCK_ROOT=$(.ci/stock-trixie)");
    }
    has
}

/// Names of the images in a store.
fn stored(node: &TestNode) -> BTreeSet<String> {
    let records = record_array(&node.graph_root().join("overlay-images/images.json"));
    let names = records
        .iter()
        .filter_map(|record| record.get("names")?.as_array());
    let names = names.flatten().filter_map(|name| name.as_str());
    names.map(str::to_owned).collect()
}

/// The name by which an image is stored and reported: of a tag and a digest, only the digest stays.
fn recorded(name: &str) -> String {
    match name.split_once('@') {
        Some((tagged, digest)) => {
            let repository = tagged.strip_suffix(":1").unwrap_or(tagged);
            format!("{repository}@{digest}")
        }
        None => name.to_owned(),
    }
}

/// Pulls images with podman; returns its errors.
fn podman_pull(node: &TestNode, names: &[String]) -> Vec<String> {
    let mut command = [&WITHOUT_AGENTS[..], &["podman", "pull", "--quiet"]].concat();
    command.extend(names.iter().map(String::as_str));
    let output = node
        .tool_command_within(SECONDS, &top(), "pull", &command)
        .output();
    let errors = output.expect("`timeout` can be started").stderr;
    let lines = String::from_utf8_lossy(&errors);
    lines
        .lines()
        .map(|line| line.trim_start_matches("Error: ").to_owned())
        .collect()
}

/// Runs the program for these images.
fn run(node: &TestNode, verb: &str, flags: &[&str], names: &[String]) -> Run {
    let images = names.iter().flat_map(|name| ["--image", name]);
    node.start(verb, &flags.iter().copied().chain(images).collect::<Vec<_>>())
        .wait()
}

/// The report's entry for an image.
#[track_caller]
fn entry<'r>(run: &'r Run, name: &str) -> &'r serde_json::Value {
    let images = run.report["images"].as_array().into_iter().flatten();
    let mut entries = images.filter(|image| image["name"] == name);
    entries
        .next()
        .unwrap_or_else(|| panic!("no image `{name}`: {run}"))
}
