//! Tests what the node's pools change: whether the update takes the operating system from the store, and which pins CRI-O does not have yet.

use std::fs;

use serde_json::{Value, json};

use super::fake_api::{ApiDouble, CONFIGZ_PATH, NODE};
use super::start;
use super::upgrade::{DOWNLOADED_AGAIN, release};
use crate::image::release::COMPONENTS;
use crate::image::samples::sample_images;
use crate::needs::needs;
use crate::only_used::Update;
use crate::test_node::{Run, TestNode};

const POOLS_PATH: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools";
const SET_PATH: &str = "/apis/machineconfiguration.openshift.io/v1/pinnedimagesets/mine";

/// The node of a single-node cluster.
fn put_node(api: &ApiDouble) {
    let labels = json!({"node-role.kubernetes.io/master": "", "node-role.kubernetes.io/worker": ""});
    let node = json!({"metadata": {"name": NODE, "labels": labels}});
    api.put(&format!("/api/v1/nodes/{NODE}"), node);
}

/// Its pools; `master` has these sets.
fn put_pools(api: &ApiDouble, sets: &[&str]) {
    let pool = |name: &str, sets: Value| {
        let role = format!("node-role.kubernetes.io/{name}");
        let spec = json!({"nodeSelector": {"matchLabels": {role: ""}}, "pinnedImageSets": sets});
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let sets = match sets {
        [] => Value::Null,
        sets => sets.iter().map(|name| json!({"name": name})).collect(),
    };
    let items = [pool("worker", json!([{"name": "other"}])), pool("master", sets)];
    api.put(POOLS_PATH, json!({"items": items}));
}

fn verify(world: &TestNode, api: &ApiDouble, release: &str, code: i32) -> Run {
    let args = ["--platform-image", release, "--for-upgrade"];
    execute(world, api, "verify", &args).exits(code)
}

fn execute(world: &TestNode, api: &ApiDouble, verb: &str, args: &[&str]) -> Run {
    let words = api.environment();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    world.start_under(&words, verb, args).wait()
}

/// Where the operating system comes from, and the types of the obstacles.
fn judgement(run: &Run) -> (Value, Vec<&str>) {
    let upgrade = &run.report["upgrade"];
    let obstacles = upgrade["obstacles"].as_array().unwrap().iter();
    let obstacles = obstacles.map(|obstacle| obstacle["type"].as_str().unwrap());
    (upgrade["osImages"][0]["origin"].clone(), obstacles.collect())
}

#[test]
fn the_os_image_comes_from_the_store_if_the_pool_has_a_set() {
    needs!(root());
    let (registry, release) = release("4.20.3");
    let api = ApiDouble::start();
    let configz = json!({"imageGCHighThresholdPercent": 100, "imageMaximumGCAge": "0s"});
    api.put(CONFIGZ_PATH, json!({"kubeletconfig": configz}));
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--platform-image", release.as_str()];

    let run = start(&world, &api, &[], &args).wait().exits(0);
    assert!(run.stdout.contains(DOWNLOADED_AGAIN), "{run}");
    let run = verify(&world, &api, &release, 0);
    assert_eq!(judgement(&run), (json!("unknown"), vec!["OsImage"]), "{run}");

    put_node(&api);
    put_pools(&api, &[]);
    let run = start(&world, &api, &[], &args).wait().exits(0);
    assert!(run.stdout.contains(DOWNLOADED_AGAIN), "{run}");
    let run = verify(&world, &api, &release, 0);
    assert_eq!(judgement(&run), (json!("registry"), vec!["OsImage"]), "{run}");
    assert!(
        run.stdout.contains("pool `master` has no PinnedImageSet"),
        "{run}"
    );

    // A set of somebody else is enough for the Machine Config Operator.
    put_pools(&api, &["mine"]);
    api.put(SET_PATH, json!({"spec": {"pinnedImages": [{"name": release}]}}));
    let run = start(&world, &api, &[], &args).wait().exits(0);
    assert!(!run.stdout.contains(DOWNLOADED_AGAIN), "{run}");
    let run = verify(&world, &api, &release, 0);
    assert_eq!(judgement(&run), (json!("store"), vec!["PinsNotWritten"]), "{run}");

    // Now it has written the pins.
    let text = format!("[crio.image]\npinned_images = [\"{release}\"]");
    world.write("etc/crio/crio.conf.d/50-pinned-images", &text);
    let run = verify(&world, &api, &release, 0);
    assert_eq!(judgement(&run), (json!("store"), vec![]), "{run}");

    // CRI-O still finds it by its digest, but not every podman does.
    let os = sample_images(b"no program").image("zoo/base").digest();
    let records = world.graph_root().join("overlay-images/images.json");
    let text = fs::read_to_string(&records).unwrap();
    let by_tag = text.replace(&format!("{COMPONENTS}@{os}"), &format!("{COMPONENTS}:os"));
    assert_ne!(text, by_tag);
    fs::write(&records, by_tag).unwrap();
    let run = verify(&world, &api, &release, 0);
    assert_eq!(judgement(&run), (json!("registry"), vec!["OsImage"]), "{run}");
    start(&world, &api, &[], &args).wait().exits(0);
    let run = verify(&world, &api, &release, 0);
    assert_eq!(judgement(&run), (json!("store"), vec![]), "{run}");
    api.is_allowed();
}

#[test]
fn sets_for_another_pool_are_a_warning() {
    needs!(root());
    let (registry, release) = release("4.20.3");
    let api = ApiDouble::start();
    let labels = json!({"node-role.kubernetes.io/worker": ""});
    api.put(
        &format!("/api/v1/nodes/{NODE}"),
        json!({"metadata": {"labels": labels}}),
    );
    put_pools(&api, &[]);
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--platform-image", release.as_str(), "--pin", "api"];
    let run = super::run(&world, &api, &args).exits(0);
    let said = "the PinnedImageSets are for pool `master`, and this node is in pool `worker`";
    assert!(run.stdout.contains(said), "{run}");
    // Of pool `worker`.
    assert!(!run.stdout.contains(DOWNLOADED_AGAIN), "{run}");
}

#[test]
fn the_kubelets_settings_are_obstacles() {
    needs!(root());
    let (registry, release) = release("4.16.8");
    let api = ApiDouble::start();
    let configz = json!({
        "imageGCHighThresholdPercent": 100,
        "imageMaximumGCAge": "336h0m0s",
        "imagePullCredentialsVerificationPolicy": "AlwaysVerify",
    });
    api.put(CONFIGZ_PATH, json!({"kubeletconfig": configz}));
    let world = TestNode::trusting(&[registry.host()]);
    world.run(&["--platform-image", &release]).exits(0);
    let run = verify(&world, &api, &release, 0);
    let expected = vec!["PullVerification", "MaximumAge"];
    assert_eq!(judgement(&run), (json!("registry"), expected), "{run}");
    assert!(run.stdout.contains("used for 336 h 0 min"), "{run}");
    world.write(
        "etc/crio/crio.conf.d/50-pinned-images",
        "[crio.image]\npinned_images = [\"**\"]",
    );
    let run = verify(&world, &api, &release, 0);
    assert_eq!(
        judgement(&run),
        (json!("registry"), vec!["PullVerification"]),
        "{run}"
    );
    api.is_allowed();
}

/// Without `--pin`: somebody else made the set.
#[test]
fn only_used_keeps_the_os_image_if_the_pool_has_a_set() {
    needs!(root(), stock());
    let update = Update::to("4.20.3", "rhel-coreos");
    let node = update.node();
    let release = update.new_release();
    let args = ["--platform-image", release.as_str(), "--only-used"];
    let api = ApiDouble::start();
    let configz = json!({"imageGCHighThresholdPercent": 100});
    api.put(CONFIGZ_PATH, json!({"kubeletconfig": configz}));
    put_node(&api);
    for (sets, is_left_out) in [(&[][..], true), (&["mine"], false)] {
        put_pools(&api, sets);
        for verb in ["plan", "run"] {
            let run = execute(&node, &api, verb, &args).exits(0);
            let left_out = update.names(&run.images("excluded"));
            assert!(left_out.contains(&"aws-ebs-csi-driver"), "{run}");
            assert_eq!(
                left_out.contains(&"rhel-coreos"),
                is_left_out,
                "{verb} {sets:?}: {run}"
            );
        }
    }
}
