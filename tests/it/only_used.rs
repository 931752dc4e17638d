//! Tests `--only-used` with containers that podman made, of a release that was pulled before.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::image::release::{COMPONENTS, RELEASE, Release, image_references, release_image_of};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::stock;
use crate::test_node::{Run, TestNode};

const LAYER: usize = 20_000;
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

/// Names of the components of which the node has containers.
const USED: [&str; 4] = ["etcd", "hyperkube", "machine-config-operator", "pod"];

/// A release and the next one, which has the same tags, other images, and one tag more.
pub(crate) struct Update {
    pub(crate) registry: Registry,
    pub(crate) old: Release,
    new: Image,
    /// Tags of the new release, with their images.
    tags: Vec<(&'static str, Image)>,
}

impl Update {
    pub(crate) fn start() -> Self {
        Self::to("4.99.1", "novel")
    }

    /// An update to this version, which has `new_tag` in addition.
    pub(crate) fn to(version: &str, new_tag: &'static str) -> Self {
        let registry = Registry::start();
        let old = Release::build(&registry.host(), LAYER);
        registry.push_release(&old);
        let names = old.components.iter().map(|(name, _)| *name).chain([new_tag]);
        let tags: Vec<(&'static str, Image)> = names
            .zip(100..)
            .map(|(name, seed)| {
                let lines = format!("file /{name} 0644 0:0 random={LAYER} seed={seed}");
                let layers = vec![Layer::of(&lines, Compression::Gzip)];
                (
                    name,
                    Image::build(name, Format::Docker, node_architecture(), layers, |_, _| {}),
                )
            })
            .collect();
        let update = Self {
            new: {
                let specs = tags
                    .iter()
                    .map(|(name, image)| (*name, registry.at(COMPONENTS, &image.digest())));
                let mut references = image_references(specs);
                references["metadata"]["name"] = version.into();
                let base = Layer::of("dir /usr 0755 0:0", Compression::Gzip);
                release_image_of(version, &base, &references.to_string())
            },
            registry,
            old,
            tags,
        };
        for (_, image) in &update.tags {
            update.registry.push(COMPONENTS, None, image);
        }
        update.registry.push(RELEASE, None, &update.new);
        update
    }

    pub(crate) fn new_release(&self) -> String {
        self.registry.at(RELEASE, &self.new.digest())
    }

    /// The image of the new release with this name.
    fn image(&self, name: &str) -> &Image {
        let (_, image) = self.tags.iter().find(|(known, _)| *known == name).unwrap();
        image
    }

    /// The names in the new release of these images of a report or plan.
    pub(crate) fn names(&self, images: &[&str]) -> Vec<&'static str> {
        let named = self
            .tags
            .iter()
            .filter(|(_, image)| images.contains(&self.registry.at(COMPONENTS, &image.digest()).as_str()));
        let mut names: Vec<&'static str> = named.map(|(name, _)| *name).collect();
        names.sort_unstable();
        names
    }

    /// A node that runs the old release, and has been up for two days.
    pub(crate) fn node(&self) -> TestNode {
        let node = TestNode::trusting(&[self.registry.host()]);
        node.run(&["--platform-image", &self.old.by_digest()]).exits(0);
        for name in USED {
            let container = match name {
                "pod" => "POD",
                name => name,
            };
            create(
                &node,
                container,
                &format!("openshift-{name}"),
                &self.old.component(name),
            );
        }
        create(
            &node,
            "cluster-version-operator",
            "openshift-cluster-version",
            &self.old.by_digest(),
        );
        let by_hand = self.old.component("etcd");
        node.podman(&["create", "--name", "by-hand", &by_hand, "/x"]).ok();
        age(&node, DAY * 2);
        up_for(&node, DAY * 2);
        node
    }
}

/// Creates a container of a pod, named as CRI-O does.
pub(crate) fn create(node: &TestNode, container: &str, namespace: &str, image: &str) {
    let uid = &image[image.len() - 8..];
    let name = format!("k8s_{container}_{container}-sno_{namespace}_{uid}_0");
    node.podman(&["create", "--name", &name, image, "/run-nothing"])
        .ok();
}

/// Makes all containers this old.
pub(crate) fn age(node: &TestNode, age: Duration) {
    let created = jiff::Timestamp::now() - jiff::SignedDuration::try_from(age).unwrap();
    for file in ["containers.json", "volatile-containers.json"] {
        let path = node.graph_root().join("overlay-containers").join(file);
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let mut records: Value = serde_json::from_str(&text).unwrap();
        for record in records.as_array_mut().unwrap() {
            record["created"] = created.to_string().into();
        }
        fs::write(path, records.to_string()).unwrap();
    }
}

pub(crate) fn up_for(node: &TestNode, time: Duration) {
    node.write("proc/uptime", &format!("{}.42 100.00\n", time.as_secs()));
}

/// The document of `plan -o json`.
fn plan_document(node: &TestNode, args: &[&str]) -> Value {
    let plan = node.plan(&[args, &["-o", "json"]].concat()).exits(0);
    serde_json::from_str(&plan.stdout).unwrap_or_else(|error| panic!("{error}: {plan}"))
}

/// The reason of each excluded image of a report.
fn reasons(run: &Run) -> Vec<String> {
    let images = run.report["images"].as_array().unwrap();
    let excluded = images.iter().filter(|image| image["state"] == "excluded");
    excluded
        .map(|image| image["reason"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn images_that_no_container_uses_are_left_out_and_listed() {
    needs!(root(), stock());
    let update = Update::start();
    let node = update.node();
    let release = update.new_release();
    let only_used = ["--platform-image", &release, "--only-used"];

    let plan = node.plan(&["--platform-image", &release]).exits(0);
    assert_eq!(
        plan.images("excluded"),
        Vec::<&str>::new(),
        "nothing is left out without the flag: {plan}"
    );
    let line = "unused:    `--only-used` would leave out 2 images and save ";
    assert!(plan.stdout.contains(line), "{plan}");

    let all = plan_document(&node, &["--platform-image", &release]);
    let rest = plan_document(&node, &only_used);
    let left_out = ["aws-ebs-csi-driver", "oauth-server"];
    let mut saved = 0;
    for name in left_out {
        let excluded = rest["excluded"].as_array().unwrap();
        let image = excluded.iter().find(|image| image["tag"] == name).unwrap();
        let bytes: u64 = update.image(name).layers.iter().map(|layer| layer.size).sum();
        assert_eq!(image["bytes"], bytes, "{rest:#}");
        saved += bytes;
    }
    let to_fetch = |document: &Value| document["totals"]["bytesToFetch"].as_u64().unwrap();
    assert_eq!(to_fetch(&all) - to_fetch(&rest), saved);
    for document in [&all, &rest] {
        assert_eq!(document["onlyUsed"]["bytes"], saved, "{document:#}");
        assert_eq!(document["onlyUsed"]["images"], 2, "{document:#}");
    }

    let plan = node.plan(&only_used).exits(0);
    assert_eq!(update.names(&plan.images("excluded")), left_out, "{plan}");
    let line = "unused:    2 images left out by `--only-used`, ";
    assert!(plan.stdout.contains(line), "{plan}");
    for reason in reasons(&plan) {
        assert_eq!(
            reason,
            "`--only-used`: nothing on this node uses this image of 4.99.0"
        );
    }
    let warning = "does not know all pod templates of the cluster, so an image that only a rare Job uses";
    assert!(plan.stderr.contains(warning), "{plan}");

    let run = node.run(&only_used).exits(0);
    let mut pulled = ["cluster-version-operator", "novel"].to_vec();
    pulled.extend(USED);
    pulled.sort_unstable();
    assert_eq!(update.names(&run.images("pulled")), pulled, "{run}");
    assert_eq!(update.names(&run.images("excluded")), left_out, "{run}");
    node.verify(&only_used).exits(0);
    node.verify(&["--platform-image", &release]).exits(1);

    // A container has come: the same set is judged anew.
    create(
        &node,
        "oauth",
        "openshift-authentication",
        &update.old.component("oauth-server"),
    );
    age(&node, DAY * 2);
    node.verify(&only_used).exits(1);
    let run = node.run(&only_used).exits(0);
    assert_eq!(
        update.names(&run.images("excluded")),
        ["aws-ebs-csi-driver"],
        "{run}"
    );
    node.verify(&only_used).exits(0);
}

#[test]
fn patterns_are_applied_before_and_other_requesters_keep_an_image() {
    needs!(root(), stock());
    let update = Update::start();
    let node = update.node();
    let aws = update.image("aws-ebs-csi-driver");
    let plan = node.plan(&[
        "--platform-image",
        &update.new_release(),
        "--only-used",
        "--exclude",
        "etcd",
        "--image",
        &update.registry.at(COMPONENTS, &aws.digest()),
    ]);
    let plan = plan.exits(0);
    assert_eq!(
        update.names(&plan.images("excluded")),
        ["etcd", "oauth-server"],
        "{plan}"
    );
    assert!(reasons(&plan).contains(&"pattern `etcd`".to_owned()), "{plan}");
}

#[test]
fn an_unused_image_that_the_registry_does_not_have_is_no_failure_of_the_plan() {
    needs!(root(), stock());
    let update = Update::start();
    let node = update.node();
    let release = update.new_release();
    let aws = update.image("aws-ebs-csi-driver").digest();
    update.registry.fault(Fault::on(&aws).status(404));
    let only_used = ["--platform-image", &release, "--only-used"];
    let document = plan_document(&node, &only_used);
    let sizes: Vec<(&Value, bool)> = document["excluded"]
        .as_array()
        .unwrap()
        .iter()
        .map(|image| (&image["tag"], image["bytes"].is_u64()))
        .collect();
    let expected = [
        ("oauth-server".into(), true),
        ("aws-ebs-csi-driver".into(), false),
    ];
    assert_eq!(
        sizes,
        expected.each_ref().map(|(tag, known)| (tag, *known)),
        "{document:#}"
    );
    assert_eq!(document["onlyUsed"]["imagesWithoutSize"], 1, "{document:#}");
    let plan = node.plan(&only_used).exits(0);
    assert!(
        plan.stdout.contains(", without 1 image of unknown size"),
        "{plan}"
    );
    assert_eq!(plan.images("failed"), [""; 0], "{plan}");
    assert_eq!(update.names(&plan.images("excluded")).len(), 2, "{plan}");
    node.run(&only_used).exits(0);
}

#[test]
fn thin_evidence_is_refused_before_anything_is_downloaded() {
    needs!(root(), stock());
    let update = Update::start();
    let release = update.new_release();
    let only_used = ["--platform-image", &release, "--only-used"];
    let node = update.node();
    let records = node.graph_root().join("overlay-containers/containers.json");
    let asked = update.registry.log().len();

    let refused = |why: &str| {
        for run in [
            node.run(&only_used),
            node.plan(&only_used),
            node.verify(&only_used),
        ] {
            let run = run.exits(2);
            assert!(run.stderr.contains(why), "no `{why}`: {run}");
            assert!(run.stderr.contains("run without `--only-used`"), "{run}");
        }
    };
    up_for(&node, DAY / 2);
    refused("the node started 12 h 0 min ago");
    up_for(&node, DAY * 2);
    age(&node, DAY / 3);
    refused("the oldest container of a pod is 8 h 0 min old");
    age(&node, DAY * 2);

    let whole = fs::read_to_string(&records).unwrap();
    fs::write(&records, whole.replacen('[', r#"[{"id":"c0ffee","image":7},"#, 1)).unwrap();
    refused("the images of 1 container are unknown");
    let containers: Vec<Value> = serde_json::from_str(&whole).unwrap();
    let is_of_pod = |container: &&Value| container["names"][0].as_str().unwrap().starts_with("k8s_");
    let others: Vec<&Value> = containers.iter().filter(|it| !is_of_pod(it)).collect();
    fs::write(&records, serde_json::to_string(&others).unwrap()).unwrap();
    refused("the store has no container of a pod");
    fs::write(&records, "[]").unwrap();
    refused("the release that runs here is unknown: no container has an image of 4.99.0");
    fs::write(&records, &whole).unwrap();
    assert_eq!(update.registry.log().len(), asked, "nothing was requested");

    // Without the flag, `plan` explains it and all images are planned.
    up_for(&node, DAY / 2);
    let plan = node.plan(&["--platform-image", &release]).exits(0);
    assert!(
        plan.stdout
            .contains("unused:    `--only-used` cannot be used: the node started"),
        "{plan}"
    );
}

#[test]
fn containers_of_two_releases_are_refused() {
    needs!(root(), stock());
    let update = Update::start();
    let node = update.node();
    let release = update.new_release();
    node.run(&["--platform-image", &release]).exits(0);
    create(
        &node,
        "cluster-version-operator",
        "openshift-cluster-version",
        &release,
    );
    age(&node, DAY * 2);
    let run = node.run(&["--platform-image", &release, "--only-used"]).exits(2);
    assert!(
        run.stderr.contains("the cluster is being updated to `4.99.1`"),
        "{run}"
    );
}

/// Every podman writes other metadata.
#[test]
fn the_records_of_every_podman_are_read() {
    needs!(root(), stock());
    let update = Update::start();
    for top in stock::tops() {
        let node = update.node();
        let name = "k8s_oauth_oauth-sno_openshift-authentication_0e1f-22_0";
        let image = update.old.component("oauth-server");
        node.podman_of(&top, &["create", "--name", name, &image, "/x"])
            .ok();
        age(&node, DAY * 2);
        let plan = node
            .plan(&["--platform-image", &update.new_release(), "--only-used"])
            .exits(0);
        assert_eq!(
            update.names(&plan.images("excluded")),
            ["aws-ebs-csi-driver"],
            "{plan}"
        );
    }
}
