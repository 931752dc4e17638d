//! Tests `verify --for-upgrade`: the state of each image until the upgrade, what may cause pulls, and the verdict.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::disk_full::Disk;
use crate::image::Images;
use crate::image::samples::sample_images;
use crate::needs::needs;
use crate::registry::Registry;
use crate::stock;
use crate::test_node::{Run, TestNode};

/// The file that the Machine Config Operator writes.
const PINNED_IMAGES: &str = "etc/crio/crio.conf.d/50-pinned-images";

/// Three images that the node has: two by digest, and one by tag.
struct Scene {
    registry: Registry,
    images: Images,
    names: [String; 3],
    node: TestNode,
}

impl Scene {
    fn start() -> Self {
        let scene = Self::empty();
        scene.node.run(&scene.args(&[])).exits(0);
        scene
    }

    fn empty() -> Self {
        let (registry, images) = (Registry::start(), sample_images(b"no program"));
        registry.push_all(&images);
        let by_digest = |name| registry.at(name, &images.image(name).digest());
        Self {
            names: [
                by_digest("zoo/base"),
                by_digest("zoo/links"),
                registry.tagged("zoo/multi"),
            ],
            node: TestNode::trusting(&[registry.host()]),
            registry,
            images,
        }
    }

    fn args<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let images = self.names.iter().flat_map(|name| ["--image", name.as_str()]);
        images.chain(more.iter().copied()).collect()
    }

    fn pin(&self, patterns: &[&str]) {
        let patterns = serde_json::to_string(patterns).unwrap();
        let text = format!("[crio]\n  [crio.image]\n    pinned_images = {patterns}\n");
        self.node.write(PINNED_IMAGES, &text);
    }

    fn verify(&self, code: i32) -> Run {
        self.registry.clear_log();
        let run = self.node.verify(&self.args(&["--for-upgrade"])).exits(code);
        assert!(self.registry.log().is_empty(), "a registry was asked: {run}");
        run
    }

    /// The verdict and the state of each image in the order of [`Scene::names`].
    fn judge(&self, code: i32) -> (String, [String; 3]) {
        let run = self.verify(code);
        (text(&run.report["upgrade"]["verdict"]), self.states(&run))
    }

    fn states(&self, run: &Run) -> [String; 3] {
        let images = run.report["upgrade"]["images"].as_array().unwrap();
        self.names.each_ref().map(|name| {
            let image = images.iter().find(|image| image["name"] == *name);
            text(&image.unwrap_or_else(|| panic!("no {name}: {run}"))["state"])
        })
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The types of the obstacles.
fn obstacles(run: &Run) -> Vec<String> {
    let obstacles = run.report["upgrade"]["obstacles"].as_array().unwrap();
    obstacles.iter().map(|obstacle| text(&obstacle["type"])).collect()
}

fn verdict(verdict: &str, states: [&str; 3]) -> (String, [String; 3]) {
    (verdict.to_owned(), states.map(str::to_owned))
}

#[test]
fn an_image_is_pinned_or_in_use_or_may_be_removed() {
    needs!(root(), stock());
    let scene = Scene::start();
    let all_collectable = verdict("AtRisk", ["collectable"; 3]);
    assert_eq!(scene.judge(0), all_collectable);

    scene.pin(&[&scene.names[0]]);
    let container = ["create", "--name", "k8s_a_b_c_d_0", &scene.names[1], "/x"];
    scene.node.podman(&container).ok();
    let run = scene.verify(0);
    assert_eq!(scene.states(&run), ["pinned", "inUse", "collectable"]);
    assert_eq!(run.report["upgrade"]["verdict"], "AtRisk");
    let condition = run.report["conditions"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"]),
        (&"UpgradeReady".into(), &"Unknown".into(), &"AtRisk".into())
    );
    for line in [
        "upgrade:   at risk: 3 images in the store, 1 collectable, 0 obstacles",
        "           pinned          1  stay in the store",
        "           in use          1  stay as long as a container has them",
        "           collectable     1  may be removed by the kubelet: no pin, no container",
    ] {
        assert!(run.stdout.lines().any(|it| it == line), "no `{line}`: {run}");
    }
    let long = run.stdout.lines().find(|line| line.chars().count() > 100);
    assert!(long.is_none_or(|line| line.contains("warning")), "{run}");

    // CRI-O compares names, and this image has only the one by tag.
    let digest = scene.images.list("zoo/multi").digest();
    scene.pin(&[&scene.names[0], &scene.registry.at("zoo/multi", &digest)]);
    assert_eq!(scene.judge(0).1, ["pinned", "inUse", "collectable"]);
    scene.pin(&[&scene.names[0], "*ZOO/multi*"]);
    assert_eq!(scene.judge(0), verdict("Ready", ["pinned", "inUse", "pinned"]));
    // `--pin` adds the name.
    scene.pin(&[&scene.names[0], &scene.registry.at("zoo/multi", &digest)]);
    let file = scene.node.out("pins.yaml");
    let args = scene.args(&["--pin", file.to_str().unwrap()]);
    scene.node.run(&args).exits(0);
    assert_eq!(scene.judge(0), verdict("Ready", ["pinned", "inUse", "pinned"]));
    // A later file replaces the list.
    scene
        .node
        .write("etc/crio/crio.conf.d/99-mine", "[crio.image]\npinned_images = []");
    assert_eq!(scene.judge(0).1, ["collectable", "inUse", "collectable"]);
}

#[test]
fn an_upgrade_is_not_ready_if_an_image_is_missing_damaged_or_refused() {
    needs!(root(), stock());
    let scene = Scene::start();
    scene.pin(&["*zoo*"]);
    scene.node.podman(&["rmi", &scene.names[2]]).ok();
    let missing = verdict("NotReady", ["pinned", "pinned", "missing"]);
    assert_eq!(scene.judge(1), missing);
    scene.node.run(&scene.args(&[])).exits(0);
    assert_eq!(scene.judge(0), verdict("Ready", ["pinned"; 3]));

    let policy = r#"{"default": [{"type": "insecureAcceptAnything"}], "transports": {"docker": {"REPO": [{"type": "reject"}]}}}"#;
    let policy = policy.replace("REPO", &format!("{}/zoo/multi", scene.registry.host()));
    scene.node.write("etc/containers/policy.json", &policy);
    let run = scene.verify(6);
    assert_eq!(scene.states(&run), ["pinned", "pinned", "refused"]);
    assert!(
        run.stdout
            .contains("upgrade:   not ready: 1 of 3 images cannot be used"),
        "{run}"
    );
    fs::remove_file(scene.node.host().join("etc/containers/policy.json")).unwrap();

    let script =
        "find \"$0\"/overlay/*/diff -type f -size +0 | while read -r file; do printf x >> \"$file\"; done";
    let mut damage = Command::new("sh");
    damage.args(["-c", script]).arg(scene.node.graph_root());
    assert!(damage.status().unwrap().success());
    let run = scene.verify(7);
    assert!(scene.states(&run).contains(&"damaged".to_owned()), "{run}");
    assert_eq!(run.report["upgrade"]["verdict"], "NotReady");

    let empty = Scene::empty();
    assert_eq!(empty.judge(1), verdict("NotReady", ["missing"; 3]));
}

#[test]
fn a_disk_above_the_threshold_is_an_obstacle() {
    needs!(root());
    let scene = Scene::empty();
    let disk = Disk::mount(&scene.node, "ext4");
    scene.node.run(&scene.args(&[])).exits(0);
    scene.pin(&["*zoo*"]);
    let line = ["--for-upgrade", "--image-gc-high-threshold", "85"];
    let run = scene.node.verify(&scene.args(&line)).exits(0);
    assert_eq!(run.report["upgrade"]["verdict"], "Ready", "{run}");
    assert!(run.report["upgrade"]["disk"]["headroom"].as_u64().unwrap() > 0);
    disk.leave(20 << 20);
    let run = scene.node.verify(&scene.args(&line)).exits(0);
    assert_eq!(run.report["upgrade"]["verdict"], "AtRisk", "{run}");
    assert_eq!(obstacles(&run), ["DiskLine"]);
    assert_eq!(run.report["upgrade"]["disk"]["headroom"], 0);
    assert_eq!(run.report["upgrade"]["disk"]["thresholdPercent"], 85);
    let said = "obstacle:  the disk is 9";
    assert!(run.stdout.contains(said), "{run}");
}

/// A repair pulls, and this verdict is about what is there.
#[test]
fn a_repair_gives_no_verdict() {
    needs!(root());
    let node = TestNode::trusting(&[]);
    node.verify(&["--image", "quay.io/a/b:1", "--for-upgrade", "--repair"])
        .exits(2)
        .says("cannot be used with");
}

/// The machine-config daemon asks podman for the OS image: `podman images --filter reference=NAME@DIGEST`, of which a RepoDigest
/// must be equal (machine-config-operator `podman.go`: `GetPodmanImageInfoByReference`). For CRI-O a tag of the repository is
/// enough; whether it is for podman depends on its version.
#[test]
fn an_image_is_in_the_store_if_podman_finds_it_by_its_name_and_digest() {
    needs!(root(), stock());
    let (registry, images) = (Registry::start(), sample_images(b"no program"));
    let image = images.image("zoo/base");
    for repository in ["ocp/release", "ocp/other"] {
        registry.push(repository, Some("os"), image);
    }
    let name = registry.at("ocp/release", &image.digest());
    for (pulled, is_present, is_found) in [
        (name.clone(), true, Some(true)),
        (format!("{}/ocp/release:os", registry.host()), true, None),
        (registry.at("ocp/other", &image.digest()), false, Some(false)),
    ] {
        let node = TestNode::trusting(&[registry.host()]);
        node.podman_pull(&pulled);
        let args = ["--image", &name, "--for-upgrade"];
        let run = node.verify(&args).exits(if is_present { 0 } else { 1 });
        let state = &run.report["upgrade"]["images"][0]["state"];
        assert_eq!(*state == "missing", !is_present, "{pulled}: {run}");
        for top in stock::tops() {
            let filter = format!("reference={name}");
            let found = node.podman_of(&top, &["images", "--format=json", "--filter", &filter]);
            let found = &found.json()[0]["RepoDigests"];
            let mut digests = found.as_array().into_iter().flatten();
            let is_equal = digests.any(|digest| *digest == *name);
            assert!(is_found.is_none_or(|it| it == is_equal), "{pulled}: {found}");
        }
    }
}

/// On the node itself there is no service account.
#[test]
fn the_kubelets_settings_are_read_from_its_files_without_the_api() {
    needs!(root());
    let scene = Scene::start();
    let conf = "imageGCHighThresholdPercent: 1\nimageMaximumGCAge: 48h0m0s\n";
    scene.node.write("etc/kubernetes/kubelet.conf", conf);
    let without_flag = ["env", "-u", "SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD"];
    let args = scene.args(&["--for-upgrade"]);
    let run = scene
        .node
        .start_under(&without_flag, "verify", &args)
        .wait()
        .exits(0);
    assert_eq!(obstacles(&run), ["DiskLine", "MaximumAge"], "{run}");
    assert_eq!(run.report["upgrade"]["disk"]["thresholdPercent"], 1);
}
