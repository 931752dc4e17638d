//! Tests which images of pod templates are read from the API, and `--only-used` with and without them.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use spoke_precache::cluster::{Api, ClusterInfo, ClusterNeeds, PodTemplates, ReleaseNeeds};

use super::api_faults::Fault;
use super::fake_api::ApiDouble;
use crate::needs::needs;
use crate::only_used::Update;
use crate::test_node::{Run, TestNode};

const CRON_JOBS: &str = "/apis/batch/v1/cronjobs";
const JOBS: &str = "/apis/batch/v1/jobs";
const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
const DAEMON_SETS: &str = "/apis/apps/v1/daemonsets";
const STATEFUL_SETS: &str = "/apis/apps/v1/statefulsets";
const ALL: [&str; 5] = [CRON_JOBS, JOBS, DEPLOYMENTS, DAEMON_SETS, STATEFUL_SETS];
const VERSION: &str = "/apis/config.openshift.io/v1/clusterversions/version";

fn pod(image: &str) -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": image, "env": [{"name": "X"}]}]}})
}

fn object(name: &str, spec: Value) -> Value {
    json!({"metadata": {"namespace": "ns", "name": name, "managedFields": [{"manager": "m"}]}, "spec": spec})
}

fn list(items: Vec<Value>) -> Value {
    json!({"kind": "List", "metadata": {"resourceVersion": "7"}, "items": items})
}

/// Answers every list, with no object.
fn empty(api: &ApiDouble) {
    ALL.into_iter().for_each(|path| api.put(path, list(Vec::new())));
}

fn query(api: &ApiDouble) -> PodTemplates {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = Api::new(api.service_account()).unwrap();
    let needs = ClusterNeeds {
        kubelet: false,
        release: ReleaseNeeds::default(),
        used_images: true,
        manifest_filters: false,
        upgrade: false,
    };
    let info = runtime.block_on(ClusterInfo::query(&client, needs, Duration::from_secs(60)));
    api.is_allowed();
    info.pod_templates
}

#[test]
fn every_page_of_every_kind_is_read() {
    let api = ApiDouble::start();
    empty(&api);
    let cron_jobs = (0..120).map(|n| {
        let template = json!({"spec": {"template": pod(&format!("quay.io/a/cron:{n}"))}});
        object(
            &format!("cron-{n}"),
            json!({"schedule": "@yearly", "jobTemplate": template}),
        )
    });
    api.put(CRON_JOBS, list(cron_jobs.collect()));
    let mut with_init = pod("quay.io/a/main:1");
    with_init["spec"]["initContainers"] =
        json!([{"image": "quay.io/a/init:1"}, {"name": "none"}, {"image": "Not An Image"}]);
    api.put(
        DEPLOYMENTS,
        list(vec![object("d", json!({"replicas": 0, "template": with_init}))]),
    );
    api.put(
        JOBS,
        list(vec![object(
            "twice",
            json!({"template": pod("quay.io/a/main:1")}),
        )]),
    );
    api.put(STATEFUL_SETS, json!({"metadata": {}, "items": null}));
    let found = query(&api);
    assert_eq!(found.unknown, Vec::<String>::new());
    let images: BTreeSet<String> = found.images.iter().map(|it| it.image.to_string()).collect();
    let expected = (0..120).map(|n| format!("quay.io/a/cron:{n}"));
    let expected = expected.chain(["quay.io/a/init:1", "quay.io/a/main:1"].map(str::to_owned));
    assert_eq!(images, expected.collect());
    let cron = found
        .images
        .iter()
        .find(|it| it.image.to_string().ends_with("cron:7"))
        .unwrap();
    assert_eq!(
        (cron.kind, cron.namespace.as_str(), cron.name.as_str()),
        ("CronJob", "ns", "cron-7")
    );
    let asked = api.log().into_iter().filter(|it| it.path == CRON_JOBS);
    assert_eq!(
        asked.map(|it| it.query).collect::<Vec<_>>(),
        ["limit=50", "limit=50&continue=50", "limit=50&continue=100"]
    );
}

#[test]
fn what_is_not_answered_is_named_and_the_rest_counts() {
    let api = ApiDouble::start();
    empty(&api);
    api.fault(Fault::status(CRON_JOBS, 403));
    api.fault(Fault::nonsense(JOBS));
    api.put(
        DAEMON_SETS,
        json!({"metadata": {"continue": "../../secrets?x"}, "items": []}),
    );
    api.put(
        DEPLOYMENTS,
        list(vec![object("d", json!({"template": pod("quay.io/a/main:1")}))]),
    );
    let found = query(&api);
    assert_eq!(found.images.len(), 1);
    let [cron_jobs, jobs, daemon_sets] = found.unknown.as_slice() else {
        panic!("three kinds: {:?}", found.unknown);
    };
    assert!(cron_jobs.starts_with("CronJobs: the service account is not allowed `list cronjobs.batch`"));
    assert!(jobs.starts_with("Jobs: "), "{jobs}");
    assert!(daemon_sets.contains("`continue` token"), "{daemon_sets}");
}

fn run(node: &TestNode, api: &ApiDouble, verb: &str, args: &[&str]) -> Run {
    let mut words = api.environment();
    words.push("SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100".to_owned());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    node.start_under(&words, verb, args).wait()
}

#[test]
fn an_image_of_a_pod_template_is_not_left_out() {
    needs!(root(), stock());
    let update = Update::start();
    let node = update.node();
    let release = update.new_release();
    let args = ["--platform-image", &release, "--only-used"];
    let api = ApiDouble::start();
    empty(&api);
    let oauth = update.old.component("oauth-server");
    let template = json!({"spec": {"template": pod(&oauth)}});
    api.put(
        CRON_JOBS,
        list(vec![object("yearly", json!({"jobTemplate": template}))]),
    );
    let version = |history: Value| api.put(VERSION, json!({"status": {"history": history}}));
    let old = json!({"state": "Completed", "image": update.old.by_digest()});
    version(json!([old]));

    let plan = run(&node, &api, "plan", &args).exits(0);
    assert_eq!(
        update.names(&plan.images("excluded")),
        ["aws-ebs-csi-driver"],
        "{plan}"
    );
    assert!(!plan.stderr.contains("pod templates"), "{plan}");
    let pulled = run(&node, &api, "run", &args).exits(0);
    assert_eq!(
        update.names(&pulled.images("excluded")),
        ["aws-ebs-csi-driver"],
        "{pulled}"
    );
    run(&node, &api, "verify", &args).exits(0);

    api.fault(Fault::status(CRON_JOBS, 403));
    let plan = run(&node, &api, "plan", &args).exits(0);
    assert_eq!(
        update.names(&plan.images("excluded")),
        ["aws-ebs-csi-driver", "oauth-server"],
        "{plan}"
    );
    assert!(
        plan.stderr
            .contains("CronJobs: the service account is not allowed"),
        "{plan}"
    );
    api.end_faults();

    version(json!([{"state": "Partial", "image": release}, old]));
    let refused = run(&node, &api, "plan", &args).exits(2);
    assert!(
        refused.stderr.contains("the cluster is being updated to"),
        "{refused}"
    );
    version(json!([{"state": "Completed", "image": "quay.io/gone/release:1"}]));
    let refused = run(&node, &api, "plan", &args).exits(2);
    assert!(
        refused
            .stderr
            .contains("its release image `quay.io/gone/release:1` is not in the store"),
        "{refused}"
    );
}
