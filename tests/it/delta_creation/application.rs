//! Applies what `delta create` published on a node that has the old release.

use super::releases::{Hub, TinyRelease};
use crate::compare::{compare, inconsistencies};
use crate::image::release::COMPONENTS;
use crate::needs::needs;
use crate::test_node::TestNode;

/// Creates the deltas of the second release, and compares a node that used them with one where podman pulled it. Both have
/// the old release without the image `lacking`. Returns the names of the images with layers from deltas, and the bytes of
/// these deltas.
fn check(build: fn(&str, u64) -> TinyRelease, lacking: &str) -> Vec<(&'static str, u64)> {
    let hub = Hub::of(2, build);
    hub.create_and_push().exits(0);
    let hosts = [hub.source.host(), hub.deltas.host()];
    let [ours, theirs] = [(), ()].map(|()| TestNode::trusting(&hosts));
    let references = |version: usize, lacking: &str| -> Vec<String> {
        let components = hub.releases[version].components.iter();
        let components = components.filter(|(name, _)| *name != lacking);
        let components = components.map(|(_, image)| hub.source.at(COMPONENTS, &image.digest()));
        components.chain([hub.release(version)]).collect()
    };
    for reference in references(0, lacking) {
        ours.podman_pull(&reference);
        theirs.podman_pull(&reference);
    }
    ours.spec(&[("platform.image", &hub.release(1))]);
    let run = ours.run(&["--deltas", &hub.repository()]).exits(0);
    for reference in references(1, "") {
        theirs.podman_pull(&reference);
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

    let images = run.report["images"].as_array().map_or(&[][..], Vec::as_slice);
    let delta_bytes = |digest: String| {
        let named = |name: &str| name.ends_with(&digest);
        let image = images
            .iter()
            .find(|image| image["name"].as_str().is_some_and(named))?;
        assert!(image["fallbackReason"].is_null(), "{run}");
        image["deltaBytes"].as_u64()
    };
    let components = hub.releases[1].components.iter();
    let from_deltas = components.filter_map(|(name, image)| Some((*name, delta_bytes(image.digest())?)));
    from_deltas.collect()
}

#[test]
fn a_new_component_is_made_from_another_image_of_the_old_release() {
    needs!(root(), stock(), docker_registry());
    let made = check(TinyRelease::build, "");
    let names: Vec<&str> = made.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["etcd", "cli", "added"]);
    assert!(made.iter().all(|(_, bytes)| *bytes < 30_000), "{made:?}");
}

#[test]
fn a_program_that_moved_is_made_from_both_old_images() {
    needs!(root(), stock(), docker_registry());
    let made = check(TinyRelease::with_a_moved_program, "");
    assert!(matches!(made[..], [("tools", 0..30_000)]), "{made:?}");
}

#[test]
fn a_node_without_one_of_both_old_images_uses_the_delta_from_the_other() {
    needs!(root(), stock(), docker_registry());
    let made = check(TinyRelease::with_a_moved_program, "cli");
    assert!(matches!(made[..], [("tools", 100_000..)]), "{made:?}");
}
