//! Tests that `--only-used` is refused if few operators of the running release have containers, with the manifests of a real
//! release.

use std::fs;

use serde_json::Value;

use crate::image::release::{COMPONENTS, RELEASE, release_image_with};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::{corpus, needs};
use crate::only_used::{DAY, age, create, up_for};
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

/// Images that the manifests of only one operator name, at run levels 20 to 50.
const OPERATORS: [&str; 16] = [
    "cluster-etcd-operator",
    "cluster-kube-controller-manager-operator",
    "cluster-kube-scheduler-operator",
    "cluster-config-operator",
    "machine-api-operator",
    "cluster-baremetal-operator",
    "cluster-control-plane-machine-set-operator",
    "cloud-credential-operator",
    "cluster-authentication-operator",
    "cluster-autoscaler-operator",
    "cluster-csi-snapshot-controller-operator",
    "cluster-image-registry-operator",
    "cluster-ingress-operator",
    "cluster-machine-approver",
    "cluster-node-tuning-operator",
    "cluster-openshift-apiserver-operator",
];

/// Images that prove no operator of these levels: nearly all operators have the first, the second is of level 70.
const OTHERS: [&str; 2] = ["kube-rbac-proxy", "coredns"];

/// A node that runs release 4.12.0, with the images of [`OPERATORS`] and [`OTHERS`] replaced by small ones.
struct Scene {
    node: TestNode,
    /// Another release.
    next: String,
    pullspecs: Vec<(&'static str, String)>,
    _registry: Registry,
}

impl Scene {
    fn start() -> Self {
        let registry = Registry::start();
        let base = Layer::of("dir /usr 0755 0:0", Compression::Gzip);
        let image = |name: &&'static str| {
            let own = Layer::of(&format!("file /{name} 0644 0:0 \"{name}\""), Compression::Gzip);
            let image = Image::build(name, Format::Docker, node_architecture(), vec![own], |_, _| {});
            registry.push(COMPONENTS, None, &image);
            (*name, registry.at(COMPONENTS, &image.digest()))
        };
        let pullspecs: Vec<(&str, String)> = OPERATORS.iter().chain(&OTHERS).map(image).collect();
        let (references, manifests) = payload(&pullspecs);
        let [running, next] = [("4.12.0", &manifests[..]), ("4.12.1", &[])].map(|(version, manifests)| {
            let references = references.replacen("\"4.12.0\"", &format!("\"{version}\""), 1);
            let image = release_image_with(version, &base, &references, manifests);
            registry.push(RELEASE, None, &image);
            registry.at(RELEASE, &image.digest())
        });
        let node = TestNode::trusting(&[registry.host()]);
        let images = pullspecs.iter().map(|(_, pullspec)| pullspec).chain([&running]);
        let images: Vec<&str> = images.flat_map(|image| ["--image", image]).collect();
        node.run(&images).exits(0);
        create(
            &node,
            "cluster-version-operator",
            "openshift-cluster-version",
            &running,
        );
        Self {
            node,
            next,
            pullspecs,
            _registry: registry,
        }
    }

    fn run_container(&self, name: &str) {
        let (_, pullspec) = self.pullspecs.iter().find(|(known, _)| *known == name).unwrap();
        create(&self.node, name, &format!("openshift-{name}"), pullspec);
    }

    fn plan(&self) -> Run {
        age(&self.node, DAY * 2);
        up_for(&self.node, DAY * 2);
        self.node
            .plan(&["--platform-image", &self.next, "--only-used", "--exclude", "^"])
    }
}

/// The payload of release 4.12.0 with these pullspecs, and its manifests that name images or are ClusterOperators.
fn payload(pullspecs: &[(&str, String)]) -> (String, Vec<(String, String)>) {
    let dir = corpus().unwrap().join("payload-4.12.0/release-manifests");
    let references = fs::read_to_string(dir.join("image-references")).unwrap();
    let document: Value = serde_json::from_str(&references).unwrap();
    let tags = document["spec"]["tags"].as_array().unwrap();
    let replaced: Vec<(&str, &str)> = pullspecs
        .iter()
        .map(|(name, pullspec)| {
            let tag = tags.iter().find(|tag| tag["name"] == *name).unwrap();
            (tag["from"]["name"].as_str().unwrap(), pullspec.as_str())
        })
        .collect();
    let replace = |text: &str| {
        let replaced = replaced.iter();
        replaced.fold(text.to_owned(), |text, (old, new)| text.replace(old, new))
    };
    let mut manifests = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let text = fs::read_to_string(entry.path()).unwrap();
        if name.starts_with("0000_") && (text.contains("@sha256:") || text.contains("kind: ClusterOperator"))
        {
            manifests.push((name, replace(&text)));
        }
    }
    manifests.sort();
    assert!(manifests.len() > 100, "{}", manifests.len());
    (replace(&references), manifests)
}

/// The numbers of `containers of only 3 of the 28 cluster operators`.
fn refused(plan: Run) -> (usize, usize) {
    let plan = plan.exits(2).says("run without `--only-used`");
    let share = plan
        .stderr
        .split_once("containers of only ")
        .map(|(_, share)| share);
    let words: Vec<&str> = share.unwrap_or_else(|| panic!("{plan}")).split(' ').collect();
    match words[..] {
        [seen, "of", "the", expected, "cluster", "operators", ..] => {
            (seen.parse().unwrap(), expected.parse().unwrap())
        }
        _ => panic!("{plan}"),
    }
}

#[test]
fn images_are_left_out_only_if_half_of_the_operators_have_containers() {
    needs!(root(), stock(), corpus());
    let scene = Scene::start();
    for name in OTHERS {
        scene.run_container(name);
    }
    let (seen, expected) = refused(scene.plan());
    assert_eq!(seen, 0, "the other images prove nothing");
    assert!((24..=32).contains(&expected), "{expected}");

    let half = expected.div_ceil(2);
    for name in &OPERATORS[..half - 1] {
        scene.run_container(name);
    }
    assert_eq!(refused(scene.plan()), (half - 1, expected));
    scene.run_container(OPERATORS[half - 1]);
    scene.plan().exits(0);
}
