//! Tests `--from-cluster` and `--recommended` against the fake API: what is pulled, what is nothing to do, and what fails.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::api_faults::Fault;
use super::fake_api::{ApiDouble, JOB_PATH};
use super::{has_asked, run, with_termination_log};
use crate::image::release::Release;
use crate::image::samples::sample_images;
use crate::needs::{corpus, needs};
use crate::registry::Registry;
use crate::test_node::{Run, Running, TestNode};

const VERSION_PATH: &str = "/apis/config.openshift.io/v1/clusterversions/version";
const UPGRADE_PATH: &str = "/apis/upgrade.managed.openshift.io/v1alpha1/namespaces/openshift-managed-upgrade-operator/upgradeconfigs/managed-upgrade-config";

/// What the cluster runs.
const OLD: &str = "quay.io/r@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
/// An update that no test pulls.
const OTHER: &str = "quay.io/r@sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";

const FROM_CLUSTER: [&str; 1] = ["--from-cluster"];
const RECOMMENDED: [&str; 2] = ["--from-cluster", "--recommended"];

/// A cluster at 4.16.3 with an update to a release of its own registry.
struct Site {
    registry: Registry,
    release: Release,
    api: ApiDouble,
    node: TestNode,
}

impl Site {
    fn new() -> Self {
        let registry = Registry::start();
        let release = Release::build(&registry.host(), 5_000);
        registry.push_release(&release);
        registry.push_all(&sample_images(b"no program"));
        let node = TestNode::trusting(&[registry.host()]);
        let site = Self {
            registry,
            release,
            api: ApiDouble::start(),
            node,
        };
        site.requests(Value::Null);
        site
    }

    /// The cluster's `spec.desiredUpdate`. The release is recommended.
    fn requests(&self, desired_update: Value) {
        self.put(desired_update, json!([self.update()]), json!([]));
    }

    fn update(&self) -> Value {
        json!({"version": "4.16.8", "image": self.release.by_digest()})
    }

    fn put(&self, desired_update: Value, available: Value, conditional: Value) {
        let old = json!({"version": "4.16.3", "image": OLD});
        self.api.put(
            VERSION_PATH,
            json!({
                "apiVersion": "config.openshift.io/v1", "kind": "ClusterVersion", "metadata": {"name": "version"},
                "spec": {"channel": "stable-4.16", "desiredUpdate": desired_update},
                "status": {
                    "desired": old,
                    "history": [{"state": "Completed", "version": "4.16.3", "image": OLD}],
                    "availableUpdates": available, "conditionalUpdates": conditional,
                },
            }),
        );
    }

    fn upgrade_config(&self, version: &str, at: &str) {
        let desired = json!({"version": version, "channel": "stable-4.16"});
        self.api.put(
            UPGRADE_PATH,
            json!({
                "apiVersion": "upgrade.managed.openshift.io/v1alpha1", "kind": "UpgradeConfig",
                "metadata": {"name": "managed-upgrade-config"}, "spec": {"desired": desired, "upgradeAt": at},
            }),
        );
    }

    fn start(&self, variables: &[&str], verb: &str, args: &[&str]) -> Running {
        let mut words = self.api.environment();
        words.extend(variables.iter().map(ToString::to_string));
        words.push("SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100".to_owned());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.node.start_under(&words, verb, args)
    }

    fn execute(&self, verb: &str, args: &[&str]) -> Run {
        self.start(&[], verb, args).wait()
    }

    fn run(&self, args: &[&str]) -> Run {
        run(&self.node, &self.api, args)
    }

    /// The requests for this object since the start.
    fn asked(&self, path: &str) -> usize {
        self.api.log().iter().filter(|asked| asked.path == path).count()
    }
}

fn spec_condition(run: &Run) -> (&str, &str, &str) {
    let conditions = run.report["conditions"].as_array().unwrap();
    let spec = conditions.iter().find(|it| it["type"] == "Spec").unwrap();
    let [status, reason, message] =
        ["status", "reason", "message"].map(|field| spec[field].as_str().unwrap());
    (status, reason, message)
}

#[test]
fn the_release_that_the_cluster_requests_is_pulled() {
    needs!(root());
    let site = Site::new();
    site.requests(json!({"version": "4.16.8", "image": ""}));
    let plan = site.execute("plan", &FROM_CLUSTER).exits(0);
    assert!(plan.stdout.contains("to pull"), "{plan}");
    let release = site.release.by_digest();
    let note = format!("the release 4.16.8 of ClusterVersion `version` of this cluster is `{release}`");
    let run = site.run(&FROM_CLUSTER).exits(0).says(&note);
    // The plan pulled it, to read what it names.
    assert_eq!(run.images("present"), [release.as_str()], "{run}");
    assert!(run.total("imagesPulled") > 5, "{run}");
    assert_eq!(run.report["warnings"].as_array().map(Vec::len), Some(1), "{run}");
    // Once in each of both, also for the keys of the release's signature.
    assert_eq!((site.asked(VERSION_PATH), site.asked(UPGRADE_PATH)), (2, 2));
    site.execute("verify", &FROM_CLUSTER).exits(0);
    site.api.is_allowed();
}

#[test]
fn nothing_to_do_is_a_success_that_says_so() {
    needs!(root());
    let site = Site::new();
    let log = site.node.out("termination-log");
    let spool = site.node.host().join("var/lib/containers/spoke-precache");
    fs::create_dir(&spool).unwrap();
    let words = [with_termination_log(&log), site.api.environment()].concat();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let run = site
        .node
        .start_under(&words, "run", &FROM_CLUSTER)
        .wait()
        .exits(0);
    let why = "No update is requested, and the cluster runs 4.16.3";
    assert_eq!(spec_condition(&run), ("True", "NothingRequested", why), "{run}");
    let headline = format!("Succeeded: {why}");
    assert!(run.stdout.starts_with(&format!("{headline}\n")), "{run}");
    // On standard error, what is on offer.
    assert!(
        run.stderr.contains("recommended: 4.16.8; with known risks: none"),
        "{run}"
    );
    assert!(fs::read_to_string(&log).unwrap().starts_with(&headline), "{run}");
    let progress = site.api.annotation("spoke-precache.io/progress");
    assert_eq!(progress, format!("{headline} (exit code 0)"));
    assert_eq!(site.api.status()["phase"], "Succeeded");
    let history = fs::read_to_string(spool.join("history.json")).unwrap();
    let history: Value = serde_json::from_str(&history).unwrap();
    assert_eq!(history["history"][0]["phase"], "Completed");
    assert_eq!(
        history["history"][0]["conditions"][0]["reason"],
        "NothingRequested"
    );
    assert_eq!(site.registry.log().len(), 0, "{run}");

    for (verb, args) in [("plan", &FROM_CLUSTER[..]), ("verify", &FROM_CLUSTER)] {
        site.execute(verb, args).exits(0).says(&headline);
    }
    let spec = site.execute("spec", &FROM_CLUSTER).exits(0);
    assert!(spec.stdout.contains("platform.image\n  (nothing)\n"), "{spec}");
    assert!(
        spec.stderr
            .contains("there is nothing to do: no update is requested"),
        "{spec}"
    );
    // Neither is a store opened nor a pin removed.
    let pinning = [&FROM_CLUSTER[..], &["--pin", "api"]].concat();
    site.run(&pinning).exits(0);
    assert!(!site.node.graph_root().exists());
    assert!(
        site.api
            .log()
            .iter()
            .all(|asked| !asked.path.contains("pinnedimagesets"))
    );
    site.api.is_allowed();
}

#[test]
fn an_update_that_the_cluster_has_completed_is_nothing_to_do() {
    needs!(root());
    let site = Site::new();
    site.requests(json!({"version": "4.16.3", "image": OLD}));
    let run = site.run(&FROM_CLUSTER).exits(0);
    let why = "The requested release 4.16.3 is installed";
    assert_eq!(spec_condition(&run), ("True", "NothingRequested", why), "{run}");
    assert_eq!(site.registry.log().len(), 0, "{run}");
    // Its ClusterVersion as a file names a release to pull, as before.
    let object = site.api.object(VERSION_PATH).to_string();
    let file = site.node.out("version.json");
    fs::write(&file, object).unwrap();
    let spec = ["--config", file.to_str().unwrap()];
    site.execute("spec", &spec).exits(0).says(OLD);
    let spec = [&spec[..], &["--recommended"]].concat();
    site.execute("spec", &spec)
        .exits(0)
        .says(&site.release.by_digest());
}

#[test]
fn the_newest_recommended_update_is_pulled_if_none_is_requested() {
    needs!(root());
    let site = Site::new();
    let older = json!({"version": "4.16.5", "image": OTHER});
    site.put(Value::Null, json!([older, site.update()]), json!([]));
    let release = site.release.by_digest();
    let run = site.run(&RECOMMENDED).exits(0);
    let run = run
        .says("no update is requested, and the cluster runs 4.16.3; the newest recommended update is pulled");
    assert!(run.images("pulled").contains(&release.as_str()), "{run}");
    let spec = site.execute("spec", &RECOMMENDED).exits(0);
    assert!(spec.stdout.contains(&release), "{spec}");
    assert!(spec.stderr.contains(": a recommended update"), "{spec}");

    // What somebody requests comes first.
    site.put(
        json!({"version": "4.16.5"}),
        json!([older, site.update()]),
        json!([]),
    );
    site.execute("spec", &RECOMMENDED).exits(0).says(OTHER);
    site.put(Value::Null, json!(null), json!([]));
    let run = site.run(&RECOMMENDED).exits(0);
    let (status, reason, message) = spec_condition(&run);
    assert_eq!((status, reason), ("True", "NothingRequested"), "{run}");
    assert!(
        message.ends_with("; no newer update is recommended in the channel `stable-4.16`"),
        "{run}"
    );
}

#[test]
fn an_update_with_known_risks_is_pulled_with_a_warning() {
    needs!(root());
    let site = Site::new();
    let risky = json!([{
        "release": site.update(), "risks": [{"name": "SlowDisks"}],
        "conditions": [{"type": "Recommended", "status": "False", "reason": "SlowDisks", "message": "It is slow."}],
    }]);
    site.put(json!({"version": "4.16.8"}), json!([]), risky.clone());
    let run = site.run(&FROM_CLUSTER).exits(0);
    let warning = "ClusterVersion `version` of this cluster: the update to 4.16.8 has known risks: SlowDisks; Recommended is False";
    assert!(run.report["warnings"].to_string().contains(warning), "{run}");
    // Such an update is not recommended.
    site.put(Value::Null, json!([]), risky);
    let run = site.run(&RECOMMENDED).exits(0);
    assert_eq!(spec_condition(&run).1, "NothingRequested", "{run}");
}

#[test]
fn an_upgrade_config_of_the_cluster_names_release_and_time() {
    needs!(root());
    let site = Site::new();
    site.upgrade_config("4.16.8", "9000-01-01T00:00:00Z");
    let spec = site.execute("spec", &FROM_CLUSTER).exits(0);
    let spec = spec.says(&site.release.by_digest());
    let note = "the release 4.16.8 of UpgradeConfig `managed-upgrade-config` of this cluster is";
    assert!(spec.stderr.contains(note), "{spec}");
    assert!(
        spec.stderr.contains("the upgrade begins at 9000-01-01T00:00:00Z"),
        "{spec}"
    );
    site.run(&FROM_CLUSTER).exits(0);
    // The object stays after the upgrade.
    site.upgrade_config("4.16.3", "2020-01-01T00:00:00Z");
    let run = site.run(&FROM_CLUSTER).exits(0);
    assert_eq!(spec_condition(&run).1, "NothingRequested", "{run}");
    assert_eq!(run.report["warnings"], json!([]), "{run}");
    site.upgrade_config("4.15.9", "2020-01-01T00:00:00Z");
    site.run(&FROM_CLUSTER)
        .exits(2)
        .says("downgrades are unsupported: the desired version is `4.15.9`");
    site.api.is_allowed();
}

#[test]
fn other_images_are_pulled_although_no_release_is_requested() {
    needs!(root());
    let site = Site::new();
    let image = site.registry.tagged("zoo/base");
    let pulls_it = |args: &[&str]| {
        let run = site.run(args).exits(0);
        let run = run.says("no release is pulled: no update is requested, and the cluster runs 4.16.3");
        assert_eq!(run.total("imagesWanted"), 1, "{run}");
        assert_eq!(spec_condition(&run).1, "AsExpected", "{run}");
    };
    pulls_it(&["--from-cluster", "--image", &image]);
    let config = site.node.out("config.yaml");
    let text = format!(
        "apiVersion: ran.openshift.io/v1alpha1\nkind: PreCachingConfig\nmetadata: {{name: c}}\nspec: {{additionalImages: ['{image}']}}\n"
    );
    fs::write(&config, text).unwrap();
    pulls_it(&["--from-cluster", "--config", config.to_str().unwrap()]);
    site.node.spec(&[("additionalImages", &image)]);
    pulls_it(&FROM_CLUSTER);

    // Both, from the keys of a mounted ConfigMap and the API.
    site.requests(json!({"version": "4.16.8"}));
    let run = site.run(&FROM_CLUSTER).exits(0);
    assert!(run.total("imagesWanted") > 5, "{run}");
    assert!(run.images("present").contains(&image.as_str()), "{run}");
    let flags = ["--from-cluster", "--platform-image", OTHER];
    let spec = site.execute("spec", &flags).exits(0).says(OTHER);
    assert!(!spec.stdout.contains(&site.release.by_digest()), "{spec}");
    site.node.spec(&[("platform.image", OTHER)]);
    site.run(&FROM_CLUSTER)
        .exits(2)
        .says("the keys in `")
        .says("names a release, and so may the cluster");
    site.execute("spec", &flags).exits(0).says(OTHER);
}

#[test]
fn a_run_that_cannot_know_the_release_fails() {
    needs!(root());
    let site = Site::new();
    for (fault, code, why) in [
        (
            Fault::status(VERSION_PATH, 403),
            2,
            "the service account is not allowed `get clusterversions.config.openshift.io`: ",
        ),
        (
            Fault::status(UPGRADE_PATH, 403),
            2,
            "the service account is not allowed `get upgradeconfigs.upgrade.managed.openshift.io`: ",
        ),
        (
            Fault::status("/", 401),
            1,
            "does not accept the service account's token",
        ),
        (
            Fault::status(VERSION_PATH, 404),
            2,
            "there is no ClusterVersion `version`, so this is not OpenShift",
        ),
        (
            Fault::status(VERSION_PATH, 503),
            1,
            "the API responds 503 to `get clusterversions",
        ),
        (
            Fault::status(UPGRADE_PATH, 503),
            1,
            "the API responds 503 to `get upgradeconfigs",
        ),
        (Fault::hang(VERSION_PATH), 1, "does not respond"),
        (Fault::nonsense(VERSION_PATH), 2, "is not as expected"),
        (Fault::nonsense(UPGRADE_PATH), 2, "is not as expected"),
        (Fault::half(VERSION_PATH), 2, "is not as expected"),
    ] {
        site.api.fault(fault.clone());
        for verb in ["run", "spec"] {
            let run = site.execute(verb, &RECOMMENDED);
            assert_eq!(run.code, code, "{fault:?}: {run}");
            let run = run
                .says("cannot read from the cluster's API which release is requested: ")
                .says(why);
            if verb == "run" {
                let (status, reason, _) = spec_condition(&run);
                assert_eq!((status, reason), ("False", "ClusterUnavailable"), "{run}");
            }
        }
        site.api.end_faults();
    }
    assert_eq!(site.registry.log().len(), 0);
    // A server that recovers in time is no failure.
    site.api.fault(Fault::status(VERSION_PATH, 503).times(1));
    let patient = ["SPOKE_PRECACHE_CLUSTER_PATIENCE=60s"];
    site.start(&patient, "run", &FROM_CLUSTER).wait().exits(0);
    site.api.is_not_trusted();
    site.run(&FROM_CLUSTER)
        .exits(1)
        .says("is not signed by the service account's `ca.crt`");
}

#[test]
fn an_api_that_does_not_exist_is_named() {
    needs!(root());
    let mut site = Site::new();
    for verb in ["run", "plan", "verify", "spec"] {
        site.node
            .start(verb, &FROM_CLUSTER)
            .wait()
            .exits(2)
            .says("`--from-cluster` needs the API of the cluster, and no service account is mounted");
    }
    let both = site.execute("run", &["--from-cluster", "--no-cluster"]).exits(2);
    assert!(both.stderr.contains("cannot be used with"), "{both}");
    site.api.close();
    let run = site.run(&FROM_CLUSTER).exits(1).says("does not respond");
    assert_eq!(spec_condition(&run).1, "ClusterUnavailable", "{run}");
}

#[test]
fn a_signal_ends_the_wait_for_the_release() {
    needs!(root());
    for verb in ["run", "spec"] {
        let site = Site::new();
        site.api.fault(Fault::hang("/clusterversions/"));
        let running = site.start(&["SPOKE_PRECACHE_CLUSTER_PATIENCE=10m"], verb, &FROM_CLUSTER);
        has_asked(&site.api);
        let begin = Instant::now();
        running.signal(Signal::TERM);
        let run = running.wait().exits(143);
        assert!(begin.elapsed() < Duration::from_secs(30), "{run}");
        if verb == "run" {
            assert_eq!(run.report["phase"], "Interrupted", "{run}");
        }
    }
}

/// The choice is that of a file, except that a completed update is nothing to do.
#[test]
fn real_cluster_versions_have_the_same_answers_as_in_files() {
    needs!(root(), corpus());
    let site = Site::new();
    let corpus = corpus().unwrap();
    let answers = fs::read_to_string(corpus.join("expected/clusterversion.json")).unwrap();
    let answers: Value = serde_json::from_str(&answers).unwrap();
    let mut cases = 0;
    for case in answers["cases"].as_array().unwrap() {
        let text = fs::read_to_string(corpus.join(case["file"].as_str().unwrap())).unwrap();
        let mut object: Value = serde_saphyr::from_str(&text).unwrap();
        if object["kind"] == "List" {
            object = object["items"][0].take();
        }
        let newest = object["status"]["history"][0].clone();
        let wanted = case["choose_by_version"].as_object().unwrap().iter();
        let wanted = wanted.map(|(version, answer)| (Some(version), answer));
        for (version, answer) in wanted.chain([(None, &case["choose"])]) {
            let mut object = object.clone();
            if let Some(version) = version {
                object["spec"]["desiredUpdate"] = json!({"version": version});
            }
            site.api.put(VERSION_PATH, object);
            let run = site.execute("spec", &["--from-cluster", "-o", "json"]);
            let (word, image) = (answer[0].as_str().unwrap(), answer[1].as_str());
            let is_installed = newest["state"] == "Completed" && newest["image"].as_str() == image;
            let expected = match (word, image) {
                ("error", _) => {
                    run.exits(2);
                    continue;
                }
                (_, Some(image)) if !is_installed => image,
                _ => "",
            };
            let printed: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{run}"));
            assert_eq!(printed["data"]["platform.image"], expected, "{case}: {run}");
            assert_eq!(
                run.stderr.contains("has known risks"),
                word.starts_with("conditional"),
                "{run}"
            );
            cases += 1;
        }
    }
    assert!(cases > 15, "{cases}");
    assert_eq!(
        site.api.object(JOB_PATH)["metadata"]["annotations"],
        json!({"other": "kept"})
    );
}
