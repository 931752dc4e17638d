//! Runs with some blobs on a medium: the registry sends the others, and each byte comes once.

use std::collections::BTreeSet;
use std::fs;

use crate::compare::{compare, inconsistencies};
use crate::image::{Images, sha256};
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::TestNode;

const IMAGES: &str = "
    image site/first docker
    layer gzip
    dir /d 0755 0:0
    file /d/base 0644 0:0 random=400000 seed=1
    layer gzip
    file /first 0644 0:0 random=300000 seed=2
    image site/second docker
    layer gzip
    dir /d 0755 0:0
    file /d/base 0644 0:0 random=400000 seed=1
    layer gzip
    file /second 0644 0:0 random=500000 seed=3
";

#[test]
fn the_registry_sends_only_what_the_medium_lacks_and_the_plan_says_so() {
    needs!(root(), stock());
    let registry = Registry::start();
    let images = Images::of(IMAGES, &[]);
    registry.push_all(&images);
    let [tools, ours, theirs] = [(); 3].map(|()| TestNode::trusting(&[registry.host()]));
    let names: Vec<String> = images
        .images
        .iter()
        .map(|image| registry.at(&image.name, &image.digest()))
        .collect();
    for name in &names {
        theirs.podman_pull(name);
    }
    // The medium has the first image, of which the second one shares a layer; and half of one blob of the second is in the spool.
    let medium = tools.out("medium");
    fs::create_dir_all(&medium).unwrap();
    let (from, to) = (
        format!("docker://{}", names[0]),
        format!("dir:{}", medium.display()),
    );
    tools
        .skopeo(&["copy", "--quiet", "--preserve-digests", &from, &to])
        .ok();
    registry.clear_log();
    let medium = medium.display().to_string();
    let images_flags = names.iter().flat_map(|name| ["--image", name]);
    let args: Vec<&str> = ["--blobs-from", &medium]
        .into_iter()
        .chain(images_flags)
        .collect();
    let size = |image: usize, layer: usize| images.images[image].layers[layer].blob.len() as u64;
    let (on_medium, missing) = (size(0, 0) + size(0, 1), size(1, 1));

    let plan = ours.plan(&[&args[..], &["--output", "json"]].concat()).exits(0);
    let document: serde_json::Value = serde_json::from_str(&plan.stdout).unwrap();
    let totals = &document["totals"];
    assert_eq!(
        (totals["bytesToFetch"].as_u64(), totals["blobsToFetch"].as_u64()),
        (Some(missing), Some(1)),
        "{plan}"
    );
    assert_eq!(
        (
            totals["bytesFromMedia"].as_u64(),
            totals["blobsFromMedia"].as_u64()
        ),
        (Some(on_medium), Some(2)),
        "{plan}"
    );
    assert_eq!(
        document["images"][0]["layers"][0]["medium"],
        medium.as_str(),
        "{plan}"
    );

    registry.clear_log();
    let run = ours.run(&args).exits(0);
    assert_eq!(run.total("bytesFetched"), missing, "{run}");
    assert_eq!(run.total("bytesPlanned"), missing, "{run}");
    assert_eq!(run.total("bytesFromMedia"), on_medium, "{run}");
    let requested: BTreeSet<String> = registry
        .layer_requests()
        .iter()
        .filter_map(|access| Some(access.path.rsplit_once('/')?.1.to_owned()))
        .collect();
    let lacking = sha256(&images.images[1].layers[1].blob);
    assert_eq!(requested, BTreeSet::from([lacking]), "{run}");
    let first = images.images[0].digest();
    assert_eq!(registry.requests_of(&first), 0, "its manifest is on the medium");
    let mut wrong = compare(&ours.graph_root(), &theirs.graph_root(), &[]);
    wrong.extend(inconsistencies(&ours.graph_root()));
    assert!(wrong.is_empty(), "{}\n{run}", wrong.join("\n"));
}
