//! Applies what `delta create` published on a node that has the old release.

use super::releases::{Hub, TinyRelease};
use crate::compare::{compare, inconsistencies};
use crate::image::release::COMPONENTS;
use crate::needs::needs;
use crate::test_node::TestNode;

/// Creates the deltas of the second release, and compares a node that used them with one where podman pulled it. Returns the
/// names of the images with layers from deltas.
fn check(build: fn(&str, u64) -> TinyRelease) -> Vec<&'static str> {
    let hub = Hub::of(2, build);
    hub.create_and_push().exits(0);
    let hosts = [hub.source.host(), hub.deltas.host()];
    let [ours, theirs] = [(), ()].map(|()| TestNode::trusting(&hosts));
    let [old, new] = [0, 1].map(|version| {
        let components = hub.releases[version].components.iter();
        let components = components.map(|(_, image)| hub.source.at(COMPONENTS, &image.digest()));
        components.chain([hub.release(version)]).collect::<Vec<_>>()
    });
    for reference in &old {
        ours.podman_pull(reference);
        theirs.podman_pull(reference);
    }
    hub.source.clear_log();
    ours.spec(&[("platform.image", &hub.release(1))]);
    let run = ours.run(&["--deltas", &hub.repository()]).exits(0);
    let images = run.report["images"].as_array().into_iter().flatten();
    let from_deltas: Vec<&str> = images
        .filter(|image| image["delta"].is_string())
        .inspect(|image| assert!(image["fallbackReason"].is_null(), "{run}"))
        .filter_map(|image| image["name"].as_str())
        .collect();
    let names = hub.releases[1].components.iter();
    let names = names.filter(|(_, image)| from_deltas.iter().any(|it| it.contains(&image.digest())));
    let names = names.map(|(name, _)| *name).collect();

    for reference in &new {
        theirs.podman_pull(reference);
    }
    let mut differences = compare(&ours.graph_root(), &theirs.graph_root(), &[]);
    // Without a signature the manifests are not authenticated, so nothing is recorded about their blobs.
    differences.retain(|line| !line.contains(" record compress"));
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    let wrong = inconsistencies(&ours.graph_root());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    hub.source.clear_log();
    let again = ours.run(&["--deltas", &hub.repository()]).exits(0);
    assert_eq!(hub.source.layer_requests().len(), 0, "{again}");
    assert_eq!(again.total("bytesFetched"), 0, "{again}");
    names
}

#[test]
fn a_new_component_is_made_from_another_image_of_the_old_release() {
    needs!(root(), stock(), docker_registry());
    assert_eq!(check(TinyRelease::build), ["etcd", "cli", "added"]);
}

#[test]
fn a_program_that_moved_is_made_from_both_old_images() {
    needs!(root(), stock(), docker_registry());
    assert_eq!(check(TinyRelease::with_a_moved_program), ["tools"]);
}
