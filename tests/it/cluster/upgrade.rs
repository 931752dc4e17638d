//! What the node makes of the images in an upgrade: whether the kubelet uses them.

use serde_json::json;

use super::double::{ApiDouble, CONFIGZ_PATH};
use super::{registry_with_zoo, start};
use crate::needs::needs;
use crate::world::World;

#[test]
fn a_kubelet_that_would_pull_cached_images_again_is_told_of() {
    needs!(root());
    let (registry, api) = (registry_with_zoo(), ApiDouble::start());
    let world = World::trusting(&[registry.host()]);
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
            "1 of 2 cached images only while the registry answers: `{}`",
            images[1]
        ),
    );
}
