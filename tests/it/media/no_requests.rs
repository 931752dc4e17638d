//! Runs with everything on media: no address is connected to, and no name is looked up.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::compare::{compare, inconsistencies};
use crate::image::Images;
use crate::image::release::{COMPONENTS, Release};
use crate::needs::needs;
use crate::registry::Registry;
use crate::release_signature::signing_key::SigningKey;
use crate::test_node::{Run, TestNode};

const IMAGES: &str = "
    image site/app oci
    layer gzip
    dir /etc 0755 0:0
    file /etc/motd 0644 0:0 \"welcome\"
    file /base 0644 0:0 random=300000 seed=1
    layer zstd
    file /zstd 0644 1:2 random=70000 seed=3
    layer none
    whiteout /etc/motd
    image site/tool oci
    layer gzip
    dir /etc 0755 0:0
    file /etc/motd 0644 0:0 \"welcome\"
    file /base 0644 0:0 random=300000 seed=1
    layer gzip
    file /tool 0755 0:0 program=90000 seed=2
";

/// The calls that reach a network; those of Unix sockets are left.
const NETWORK: [&str; 5] = [
    "/usr/bin/strace",
    "-f",
    "-qq",
    "-e",
    "trace=connect,sendto,sendmsg,sendmmsg",
];

/// Runs the program, and fails the test if it sends anything to an address of a network.
#[track_caller]
fn offline(node: &TestNode, verb: &str, args: &[&str]) -> Run {
    let trace = node.out(&format!("network-{verb}"));
    let to = ["-o", utf8(&trace)];
    let run = node.start_under(&[&NETWORK[..], &to].concat(), verb, args).wait();
    let trace = fs::read_to_string(trace).unwrap();
    let sent: Vec<&str> = trace.lines().filter(|line| line.contains("AF_INET")).collect();
    assert!(sent.is_empty(), "{sent:#?}\n{run}");
    run
}

fn utf8(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Copies an image with skopeo.
fn copy(tools: &TestNode, from: &str, to: &str) {
    let from = format!("docker://{from}");
    tools
        .skopeo(&["copy", "--quiet", "--all", "--preserve-digests", &from, to])
        .ok();
}

#[test]
fn a_layout_with_all_images_serves_a_run_a_plan_and_a_repair() {
    needs!(root(), stock(), strace());
    let registry = Registry::start();
    let images = Images::of(IMAGES, &[]);
    registry.push_all(&images);
    let [tools, ours, theirs] = [(); 3].map(|()| TestNode::trusting(&[registry.host()]));
    let layout = tools.out("layout");
    let mut names = Vec::new();
    for image in &images.images {
        let tag = registry.tagged(&image.name);
        copy(&tools, &tag, &format!("oci:{}:{tag}", layout.display()));
        names.push(registry.at(&image.name, &image.digest()));
    }
    for name in &names {
        theirs.podman_pull(name);
    }
    registry.clear_log();
    let images = names.iter().flat_map(|name| ["--image", name]);
    let args: Vec<&str> = ["--blobs-from", utf8(&layout)]
        .into_iter()
        .chain(images)
        .collect();
    let plan = offline(&ours, "plan", &args).exits(0);
    assert!(plan.stdout.contains("to fetch:  0.0 MiB in 0 blobs"), "{plan}");
    assert!(
        plan.stdout.contains(&format!("from `{}`", layout.display())),
        "{plan}"
    );
    let run = offline(&ours, "run", &args).exits(0);
    assert_eq!(run.images("pulled").len(), names.len(), "{run}");
    assert_eq!(
        (run.total("bytesFetched"), run.total("bytesPlanned")),
        (0, 0),
        "{run}"
    );
    assert_eq!(run.report["media"][0]["medium"], utf8(&layout), "{run}");
    assert_eq!(
        run.report["media"][0]["bytes"],
        run.total("bytesFromMedia"),
        "{run}"
    );
    let listed = run.report["images"].as_array().unwrap();
    let of_images = listed
        .iter()
        .map(|image| image["media"][0]["bytes"].as_u64().unwrap_or(0));
    assert_eq!(of_images.sum::<u64>(), run.total("bytesFromMedia"), "{run}");
    let mut wrong = compare(&ours.graph_root(), &theirs.graph_root(), &[]);
    wrong.extend(inconsistencies(&ours.graph_root()));
    assert!(wrong.is_empty(), "{}\n{run}", wrong.join("\n"));

    // A damaged layer is replaced from the medium.
    let damaged = find(&ours.graph_root().join("overlay"), "tool").unwrap();
    fs::write(damaged, "damaged").unwrap();
    let repaired = offline(&ours, "verify", &[&["--repair"], &args[..]].concat()).exits(0);
    assert!(repaired.total("bytesFromMedia") > 0, "{repaired}");
    let wrong = compare(&ours.graph_root(), &theirs.graph_root(), &[]);
    assert!(wrong.is_empty(), "{}\n{repaired}", wrong.join("\n"));
    assert_eq!(registry.log().len(), 0);
}

/// A file of this name below a directory.
fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let is_it = |path: &&PathBuf| path.is_file() && path.file_name().is_some_and(|it| it == name);
    if let Some(found) = paths.iter().find(is_it) {
        return Some(found.clone());
    }
    let mut directories = paths.iter().filter(|path| path.is_dir() && !path.is_symlink());
    directories.find_map(|path| find(path, name))
}

#[test]
fn a_release_with_its_signatures_on_a_medium_is_verified_and_pulled() {
    needs!(root(), stock(), strace(), gpg());
    let registry = Registry::start();
    let release = Release::build(&registry.host(), 5_000);
    registry.push_release(&release);
    let [tools, node] = [(); 2].map(|()| TestNode::trusting(&[registry.host()]));
    let medium = tools.out("medium");
    // Docker's manifests have no place in an OCI layout.
    let components = release
        .components
        .iter()
        .map(|(_, image)| registry.at(COMPONENTS, &image.digest()));
    let names: Vec<String> = std::iter::once(release.by_digest()).chain(components).collect();
    let mut media = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let directory = medium.join(number.to_string());
        fs::create_dir_all(&directory).unwrap();
        copy(&tools, name, &format!("dir:{}", directory.display()));
        media.push(directory);
    }
    let (key, digest) = (SigningKey::new("release"), release.release.digest());
    let write = |path: &str, content: &[u8]| {
        let path = media[0].join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    let hex = digest.trim_start_matches("sha256:");
    let signature = key.sign_release(&digest, "4.99.0-x86_64");
    write(
        &format!("release-signatures/sha256={hex}/signature-1"),
        &signature,
    );
    // The node's policy requires a signature of every image, which only media have.
    for name in &names {
        let (repository, digest) = name.split_once('@').unwrap();
        let body = json!({
            "critical": {
                "image": {"docker-manifest-digest": digest},
                "type": "atomic container signature",
                "identity": {"docker-reference": format!("{repository}:1")},
            },
            "optional": {},
        });
        let hex = digest.trim_start_matches("sha256:");
        let signature = key.sign(body.to_string().as_bytes());
        write(
            &format!("lookaside/{repository}@sha256={hex}/signature-1"),
            &signature,
        );
    }
    node.write("etc/containers/keys/key.asc", &key.public_text());
    let rule = json!([{"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/etc/containers/keys/key.asc"}]);
    let policy = json!({"default": [{"type": "reject"}], "transports": {"docker": {registry.host(): rule}}});
    node.write("etc/containers/policy.json", &policy.to_string());
    let store = format!(
        "docker:\n  {}:\n    lookaside: http://{0}/lookaside\n    use-sigstore-attachments: true\n",
        registry.host()
    );
    node.write("etc/containers/registries.d/site.yaml", &store);
    registry.clear_log();
    let (by_digest, keys) = (release.by_digest(), key.public().display().to_string());
    let mut args = vec!["--platform-image", &by_digest, "--release-keys", &keys];
    args.push("--require-release-signature");
    args.extend(media.iter().flat_map(|path| ["--blobs-from", utf8(path)]));
    let run = offline(&node, "run", &args).exits(0);
    assert_eq!(run.images("pulled").len(), names.len(), "{run}");
    assert_eq!(run.report["totals"]["bytesFetched"], 0, "{run}");
    let wrong = inconsistencies(&node.graph_root());
    assert!(wrong.is_empty(), "{}\n{run}", wrong.join("\n"));
    // A tag is not resolved from a medium, and the message says what it was.
    let by_tag = registry.tagged("site/elsewhere");
    let unknown = node.run(&[
        "--blobs-from",
        utf8(&media[0]),
        "--image",
        &by_tag,
        "--give-up-after",
        "1s",
    ]);
    assert_ne!(unknown.code, 0, "{unknown}");
    unknown.says("hint: a tag needs a request to its registry");
}
