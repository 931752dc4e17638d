//! Tests the warnings about how the kubelet and the machine-config operator use the images in an upgrade.

use serde_json::json;

use super::api_faults::Fault;
use super::fake_api::{ApiDouble, CONFIGZ_PATH};
use super::{registry_with_samples, run, start};
use crate::image::release::{COMPONENTS, RELEASE, image_references, release_image_of};
use crate::image::samples::sample_images;
use crate::image::{Compression, Layer};
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::TestNode;

/// The program's message, before and after the version.
pub(super) const DOWNLOADED_AGAIN: &str = "takes the operating system's image `rhel-coreos` (";

/// The pattern that the hint names.
const PATTERN: &str = r#"^"rhel-coreos\$"#;

/// A registry with a release of this version and its reference: an image, and an operating system.
pub(super) fn release(version: &str) -> (Registry, String) {
    let (registry, images) = (Registry::start(), sample_images(b"no program"));
    let tags = [("etcd", "zoo/links"), ("rhel-coreos", "zoo/base")].map(|(tag, name)| {
        registry.push(COMPONENTS, None, images.image(name));
        (tag, registry.at(COMPONENTS, &images.image(name).digest()))
    });
    let mut references = image_references(tags.into_iter());
    references["metadata"]["name"] = version.into();
    let base = Layer::of("dir /base 0755 0:0", Compression::Gzip);
    let image = release_image_of(version, &base, &references.to_string());
    registry.push(RELEASE, None, &image);
    let reference = registry.at(RELEASE, &image.digest());
    (registry, reference)
}

#[test]
fn an_os_image_that_the_update_downloads_again_is_named_with_its_bytes() {
    needs!(root());
    let (registry, release) = release("4.16.8");
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--platform-image", release.as_str()];
    let plan = world.plan(&args).exits(0);
    let said = plan.stdout.lines().find(|line| line.contains(DOWNLOADED_AGAIN));
    let said = said.unwrap_or_else(|| panic!("the plan does not say it: {plan}"));
    assert!(
        said.starts_with("warning:   release 4.16.8 never takes "),
        "{said}"
    );
    let hint = format!("hint: leave it out with `--exclude '{PATTERN}'`");
    assert!(plan.stdout.contains(&hint), "{plan}");
    // The same for an image that this run pulled, and for one that was present.
    for _ in 0..2 {
        let run = world.run(&args).exits(0);
        assert!(run.stdout.contains(said), "{run}");
    }
    // A verification is about the store alone.
    let verified = world.verify(&args).exits(0);
    assert!(!verified.to_string().contains(DOWNLOADED_AGAIN), "{verified}");
    let excluding = [&args[..], &["--exclude", PATTERN]].concat();
    for run in [world.plan(&excluding), world.run(&excluding)] {
        let run = run.exits(0);
        assert!(!run.to_string().contains(DOWNLOADED_AGAIN), "{run}");
        assert!(run.to_string().contains("1 excluded"), "{run}");
    }
}

#[test]
fn a_pinned_os_image_is_not_downloaded_again() {
    needs!(root());
    let (registry, release) = release("4.20.3");
    let api = ApiDouble::start();
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--platform-image", release.as_str()];
    let says = |run: crate::test_node::Run| {
        let run = run.exits(0);
        run.stdout.contains(DOWNLOADED_AGAIN)
    };
    assert!(says(world.plan(&args)));
    let pinned = [&args[..], &["--pin", "api"]].concat();
    assert!(!says(world.plan(&pinned)));
    assert!(says(run(&world, &api, &args)));
    assert!(!says(run(&world, &api, &pinned)));
    api.fault(Fault::status("/pinnedimagesets/", 403));
    assert!(says(run(&world, &api, &pinned)));
}

#[test]
fn a_kubelet_that_would_pull_cached_images_again_is_reported() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    let world = TestNode::trusting(&[registry.host()]);
    let images = ["zoo/base", "zoo/links"].map(|name| registry.tagged(name));
    let args = ["--image", &images[0], "--image", &images[1]];
    let run = |policy: serde_json::Value| {
        let mut kubelet = json!({"imageGCHighThresholdPercent": 100});
        kubelet
            .as_object_mut()
            .unwrap()
            .extend(policy.as_object().unwrap().clone());
        api.put(CONFIGZ_PATH, json!({"kubeletconfig": kubelet}));
        start(&world, &api, &[], &args).wait().exits(0)
    };
    let setting = "imagePullCredentialsVerificationPolicy";
    for harmless in [json!({}), json!({setting: "NeverVerifyPreloadedImages"})] {
        let run = run(harmless);
        assert!(!run.to_string().contains(setting), "{run}");
    }
    run(json!({setting: "AlwaysVerify"}))
        .says("`imagePullCredentialsVerificationPolicy` is `AlwaysVerify`: pods start from 2 of 2 cached images only while");
    let list = json!([images[0].rsplit_once(':').unwrap().0]);
    run(json!({setting: "NeverVerifyAllowlistedImages", "preloadedImagesVerificationAllowlist": list})).says(
        &format!(
            "1 of 2 cached images only while the registry is reachable: `{}`",
            images[1]
        ),
    );
}
