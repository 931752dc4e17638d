//! Tests what `plan` says about a whole real release, and the order of a run during an update, with an independent model of the
//! release's manifests (`../shared/corpus`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::api_faults::Fault;
use super::fake_api::ApiDouble;
use crate::image::layer::tar_of;
use crate::image::release::{COMPONENTS, RELEASE};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::{corpus, needs};
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

const VERSION: &str = "/apis/config.openshift.io/v1/clusterversions/version";
const FEATURE_GATE: &str = "/apis/config.openshift.io/v1/featuregates/cluster";
const OPERATOR: &str =
    "/apis/apps/v1/namespaces/openshift-cluster-version/deployments/cluster-version-operator";
const HIGHLY_AVAILABLE: &str = "self-managed-high-availability";

/// The only manifest of the version operator's own directory that names an image; the corpus does not have the directory.
const OWN_MANIFEST: &str = "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: cluster-version-operator, namespace: \
     openshift-cluster-version, annotations: {include.release.openshift.io/self-managed-high-availability: \"true\"}}\nspec: \
     {template: {spec: {containers: [{image: '{{.ReleaseImage}}'}]}}}\n";

/// Release 4.12.0 with its real manifests and one small image for each tag.
struct RealRelease {
    registry: Registry,
    image: Image,
    /// The tag of each layer.
    tags: BTreeMap<String, String>,
}

impl RealRelease {
    fn start(corpus: &Path) -> Self {
        let registry = Registry::start();
        let root = corpus.join("payload-4.12.0");
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let references = read(&root.join("release-manifests/image-references"));
        let parsed: Value = serde_json::from_str(&references).unwrap();
        let mut names = BTreeMap::new();
        let mut tags = BTreeMap::new();
        for (tag, seed) in parsed["spec"]["tags"].as_array().unwrap().iter().zip(1..) {
            let (name, real) = (
                tag["name"].as_str().unwrap(),
                tag["from"]["name"].as_str().unwrap(),
            );
            let lines = format!("file /{name} 0644 0:0 random=300 seed={seed}");
            let layer = Layer::of(&lines, Compression::Gzip);
            tags.insert(layer.digest.clone(), name.to_owned());
            let image = Image::build(name, Format::Docker, node_architecture(), vec![layer], |_, _| {});
            registry.push(COMPONENTS, None, &image);
            names.insert(real.to_owned(), registry.at(COMPONENTS, &image.digest()));
        }
        // A pullspec ends with 64 hexadecimal digits.
        let with_names = |mut text: String| {
            for (real, name) in &names {
                if text.contains(real) {
                    text = text.replace(real, name);
                }
            }
            text
        };
        let mut files = vec![(
            "manifests/0000_00_cluster-version-operator_03_deployment.yaml".to_owned(),
            OWN_MANIFEST.to_owned(),
        )];
        for entry in fs::read_dir(root.join("release-manifests")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            files.push((format!("release-manifests/{name}"), with_names(read(&path))));
        }
        let mut lines = "dir /manifests 0755 0:0\ndir /release-manifests 0755 0:0\n".to_owned();
        for (path, _) in &files {
            lines += &format!("file /{path} 0644 0:0 bytes={path}\n");
        }
        let contents: Vec<(&str, &[u8])> = files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_bytes()))
            .collect();
        let layer = Layer::of_tar(&tar_of(&lines, &contents), Compression::Gzip);
        let image = Image::build(
            "release",
            Format::Docker,
            node_architecture(),
            vec![layer],
            |_, _| {},
        );
        registry.push(RELEASE, None, &image);
        Self {
            registry,
            image,
            tags,
        }
    }

    fn name(&self) -> String {
        self.registry.at(RELEASE, &self.image.digest())
    }

    /// A ClusterVersion that comes from another release.
    fn cluster_version(&self, capabilities: Option<(&[String], &[String])>, is_updating: bool) -> Value {
        let image = self.name();
        let mut history =
            vec![json!({"state": "Completed", "version": "4.11.0", "image": "quay.io/r/old:1"})];
        if is_updating {
            history.insert(
                0,
                json!({"state": "Partial", "version": "4.12.0", "image": image}),
            );
        }
        let mut version = json!({
            "apiVersion": "config.openshift.io/v1", "kind": "ClusterVersion", "metadata": {"name": "version"},
            "spec": {"desiredUpdate": {"version": "4.12.0", "image": image}},
            "status": {
                "desired": {"version": "4.12.0", "image": image}, "history": history,
                "conditions": [{"type": "Progressing", "status": if is_updating { "True" } else { "False" }}],
            },
        });
        if let Some((known, enabled)) = capabilities {
            version["status"]["capabilities"] =
                json!({"knownCapabilities": known, "enabledCapabilities": enabled});
        }
        version
    }
}

fn texts(value: &Value) -> Vec<String> {
    let items = value.as_array().unwrap().iter();
    items.map(|item| item.as_str().unwrap().to_owned()).collect()
}

/// How many blobs are under way: one download, and four that wait for the only thread that unpacks.
const UNDER_WAY: usize = 5;

/// Compares the JSON of a plan with a case of the model.
#[track_caller]
fn assert_is(plan: &Run, case: &Value) {
    let document: Value = serde_json::from_str(&plan.stdout).unwrap();
    let release = &document["release"];
    // With the version operator's own manifest.
    let manifests = &release["manifests"];
    assert_eq!(
        manifests["count"].as_u64(),
        case["documents"].as_u64().map(|it| it + 1),
        "{plan}"
    );
    assert_eq!(
        manifests["included"].as_u64(),
        case["included"].as_u64().map(|it| it + 1)
    );
    assert_eq!(manifests["excluded"], case["excluded"]);
    assert_eq!(manifests.get("unread"), None);
    let unnamed = release["unnamed"].as_array().unwrap().iter();
    let unnamed: Vec<&Value> = unnamed.map(|image| &image["tag"]).collect();
    assert_eq!(
        unnamed,
        case["unnamed"].as_array().unwrap().iter().collect::<Vec<_>>()
    );
    let operators = release["operators"].as_array().unwrap().iter();
    let operators: Value = operators
        .map(|operator| json!([operator["level"].to_string(), operator["name"]]))
        .collect();
    let expected = case["clusteroperators"].as_array().unwrap().iter();
    let expected: Value = expected.map(|it| json!([it[0], it[1]])).collect();
    assert_eq!(operators, expected);
    let mut levels = BTreeMap::<String, BTreeSet<String>>::new();
    for image in document["images"].as_array().unwrap() {
        for tag in image["tags"].as_array().into_iter().flatten() {
            let mut uses = image["uses"].as_array().into_iter().flatten();
            if let Some(first) = uses.find(|it| it["tag"] == *tag) {
                let tag = tag.as_str().unwrap().to_owned();
                levels.entry(first["level"].to_string()).or_default().insert(tag);
            }
        }
    }
    assert_eq!(
        levels,
        serde_json::from_value(case["first_use_by_level"].clone()).unwrap()
    );
}

fn case(corpus: &Path, number: usize) -> Value {
    let text = fs::read(corpus.join("expected/payload-4.12.0.json")).unwrap();
    serde_json::from_slice::<Value>(&text).unwrap()["cases"][number].clone()
}

#[test]
fn a_plan_shows_levels_operators_and_unnamed_images_of_a_real_release() {
    needs!(root(), corpus());
    let corpus = corpus().unwrap();
    let release = RealRelease::start(&corpus);
    let node = TestNode::trusting(&[release.registry.host()]);
    let image = release.name();
    let json = node
        .plan(&["--platform-image", &image, "--output", "json"])
        .exits(0);
    assert_is(&json, &case(&corpus, 0));
    let document: Value = serde_json::from_str(&json.stdout).unwrap();
    let inclusion = &document["release"]["inclusion"];
    for filter in ["profile", "featureSet", "capabilities"] {
        assert_eq!(inclusion[filter]["known"], false, "{filter}");
        assert_eq!(inclusion[filter]["reason"], "the cluster's API is not available");
    }
    let unnamed = document["release"]["unnamed"].as_array().unwrap();
    assert!(unnamed.iter().all(|image| image["mayBeExcluded"] == false));
    let etcd = document["release"]["operators"].as_array().unwrap();
    let etcd = etcd.iter().find(|operator| operator["name"] == "etcd").unwrap();
    assert_eq!(etcd["versions"]["operator"], "4.12.0");

    let table = node.plan(&["--platform-image", &image]).exits(0);
    let (plan, _) = table.stdout.split_once("\nspace ").unwrap();
    assert!(plan.lines().all(|line| line.chars().count() <= 100), "{table}");
    for line in [
        "ACTION  SOURCE                     LEVEL COMPONENT, OR IMAGE            FETCH SHARE REUSE       SIZE\n",
        "pull    etcd                          20 etcd-operator                      1     0     0 ",
        "           level 20, 4 images: etcd, kube-apiserver\n",
        "unnamed:   26 images that no included manifest names: agent-installer-api-server,\n",
    ] {
        assert!(table.stdout.contains(line), "{line}{table}");
    }

    // On a laptop: the capabilities are those of a file.
    let known = texts(&case(&corpus, 1)["known_capabilities"]);
    for number in [1, 2, 3] {
        let case = case(&corpus, number);
        if case["profile"] != HIGHLY_AVAILABLE || case["feature_set"] != "Default" {
            continue;
        }
        let enabled = texts(&case["enabled_capabilities"]);
        let version = release.cluster_version(Some((&known, &enabled)), false);
        let file = node.out("version.json");
        fs::write(&file, version.to_string()).unwrap();
        let plan = node.plan(&["--config", file.to_str().unwrap(), "--output", "json"]);
        let plan = plan.exits(0);
        assert_is(&plan, &case);
        let document: Value = serde_json::from_str(&plan.stdout).unwrap();
        let capabilities = &document["release"]["inclusion"]["capabilities"];
        assert_eq!(capabilities["known"], true);
        assert_eq!(texts(&capabilities["value"]["enabled"]), enabled);
    }
}

fn run(node: &TestNode, api: &ApiDouble, verb: &str, args: &[&str]) -> Run {
    let mut words = api.environment();
    words.push("SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100".to_owned());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    node.start_under(&words, verb, args).wait()
}

fn put_profile(api: &ApiDouble, profile: &str) {
    let env = json!([{"name": "NODE_NAME", "valueFrom": {}}, {"name": "CLUSTER_PROFILE", "value": profile}]);
    let container = json!({"name": "cluster-version-operator", "env": env});
    api.put(
        OPERATOR,
        json!({"spec": {"template": {"spec": {"containers": [container]}}}}),
    );
}

#[test]
fn profile_and_feature_set_are_those_of_the_cluster() {
    needs!(root(), corpus());
    let corpus = corpus().unwrap();
    let release = RealRelease::start(&corpus);
    let node = TestNode::trusting(&[release.registry.host()]);
    let image = release.name();
    let args = ["--platform-image", &image, "--output", "json"];
    let known = texts(&case(&corpus, 0)["known_capabilities"]);
    let api = ApiDouble::start();
    api.put(VERSION, release.cluster_version(Some((&known, &known)), false));
    // Image, operators and unnamed images by a survey of this release.
    for (profile, feature_set, named, operators) in [
        (HIGHLY_AVAILABLE, json!(null), 157, 33),
        (HIGHLY_AVAILABLE, json!("TechPreviewNoUpgrade"), 166, 35),
        ("ibm-cloud-managed", json!(""), 118, 17),
        ("single-node-developer", json!("Default"), 145, 26),
    ] {
        put_profile(&api, profile);
        match &feature_set {
            // A cluster without the object.
            Value::Null => api.fault(Fault::status(FEATURE_GATE, 404)),
            set => {
                api.end_faults();
                api.put(FEATURE_GATE, json!({"spec": {"featureSet": set}, "status": null}));
            }
        }
        let plan = run(&node, &api, "plan", &args).exits(0);
        let document: Value = serde_json::from_str(&plan.stdout).unwrap();
        let found = &document["release"];
        let unnamed = found["unnamed"].as_array().unwrap();
        assert_eq!(unnamed.len(), 183 - named, "{profile} {feature_set}");
        assert_eq!(found["operators"].as_array().unwrap().len(), operators);
        for filter in ["profile", "featureSet", "capabilities"] {
            assert_eq!(found["inclusion"][filter]["known"], true, "{filter} {plan}");
        }
        // All is known, so only two unnamed images have to stay.
        let kept = unnamed.iter().filter(|image| image["mayBeExcluded"] == false);
        let kept: Vec<&str> = kept.map(|image| image["tag"].as_str().unwrap()).collect();
        assert_eq!(kept, ["cluster-version-operator"]);
    }
    // No right is needed: then the defaults are assumed, and no run fails.
    for path in [OPERATOR, FEATURE_GATE, VERSION] {
        api.fault(Fault::status(path, 403));
    }
    let plan = run(&node, &api, "plan", &args).exits(0);
    assert_is(&plan, &case(&corpus, 0));
    let document: Value = serde_json::from_str(&plan.stdout).unwrap();
    let reason = &document["release"]["inclusion"]["profile"]["reason"];
    assert!(
        reason.as_str().unwrap().contains("get deployments.apps"),
        "{reason}"
    );
    api.is_allowed();
}

/// The run levels of the images in the order in which their layers were requested.
fn requested_levels(release: &RealRelease, case: &Value) -> Vec<u64> {
    let mut levels = BTreeMap::new();
    for (level, tags) in case["first_use_by_level"].as_object().unwrap() {
        levels.extend(texts(tags).into_iter().map(|tag| (tag, level.parse().unwrap())));
    }
    levels.insert("pod".to_owned(), 0);
    let requests = release.registry.layer_requests();
    let tags = requests.iter().filter_map(|access| {
        let (_, digest) = access.path.rsplit_once('/')?;
        release.tags.get(digest)
    });
    tags.map(|tag| levels.get(tag).copied().unwrap_or(u64::MAX))
        .collect()
}

#[test]
fn a_run_during_the_update_pulls_in_its_order() {
    needs!(root(), corpus());
    let corpus = corpus().unwrap();
    let release = RealRelease::start(&corpus);
    let case = case(&corpus, 0);
    let image = release.name();
    let args = [
        "--platform-image",
        &image,
        "--max-downloads",
        "1",
        "--max-unpacks",
        "1",
    ];
    let message = "the cluster is already updating to 4.12.0: images are pulled in the order of the update";
    for is_updating in [true, false] {
        let node = TestNode::trusting(&[release.registry.host()]);
        let api = ApiDouble::start();
        api.put(VERSION, release.cluster_version(None, is_updating));
        release.registry.clear_log();
        let run = run(&node, &api, "run", &args).exits(0);
        let levels = requested_levels(&release, &case);
        assert_eq!(levels.len(), 183);
        // The blobs that are under way together may change places: their files are opened in parallel.
        let mut later = levels.iter().skip(UNDER_WAY).zip(&levels);
        let is_sorted = later.all(|(later, earlier)| earlier <= later);
        assert_eq!(is_sorted, is_updating, "{levels:?}");
        assert_eq!(
            run.stderr.matches(message).count(),
            usize::from(is_updating),
            "{run}"
        );
        assert!(!api.log().iter().any(|asked| asked.path == OPERATOR));
        api.is_allowed();
    }
}

#[test]
fn a_release_whose_manifests_are_damaged_is_pulled_all_the_same() {
    needs!(root());
    let registry = Registry::start();
    let release = crate::image::release::Release::build(&registry.host(), 2_000);
    registry.push_release(&release);
    let node = TestNode::trusting(&[registry.host()]);
    let api = ApiDouble::start();
    let image = release.by_digest();
    let history =
        json!([{"state": "Partial", "image": image}, {"state": "Completed", "image": "quay.io/r/old:1"}]);
    let conditions = json!([{"type": "Progressing", "status": "True"}]);
    let status = json!({"desired": {"image": image}, "history": history, "conditions": conditions});
    api.put(VERSION, json!({"status": status}));
    let args = ["--platform-image", &image];
    let plan = run(&node, &api, "plan", &args).exits(0);
    assert!(
        plan.stdout.contains("ACTION  SOURCE                     IMAGE "),
        "{plan}"
    );
    run(&node, &api, "run", &args)
        .exits(0)
        .says("is already updating to 4.99.0, but its manifests are unknown");
}
