//! Tests the use of the cluster's API: what the program reads and reports, and that no run depends on it.

mod api_errors;
mod api_faults;
mod fake_api;
mod from_cluster;
mod job_status;
mod payload;
mod pod_templates;
mod pool_pins;
mod random_faults;
mod release;
mod tls_proxy;
mod upgrade;

use std::net::Ipv6Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::image::samples::sample_images;
use crate::needs::needs;
use crate::registry::faults::Fault as RegistryFault;
use crate::registry::{Auth, Registry};
use crate::test_node::{Run, Running, TestNode};
use api_faults::Fault;
use fake_api::{
    ApiDouble, CONFIGZ_PATH, IMAGE_PATH, NAMESPACE, NEXT_TOKEN, NODE, POD, POD_PATH, PROXY_PATH, TOKEN,
};

/// What a run may take longer with an API that is no help: the patience at the start and at the end, and then some.
const PATIENCE: Duration = Duration::from_secs(15);

fn registry_with_samples() -> Registry {
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    registry
}

/// Starts it as in a pod of the double's Job, with variables beside.
fn start(world: &TestNode, api: &ApiDouble, more: &[&str], args: &[&str]) -> Running {
    let mut words = api.environment();
    words.extend(more.iter().map(ToString::to_string));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    world.start_under(&words, "run", args)
}

/// A run that knows its threshold and does not ask the kubelet: the machine's disk may be fuller than a node's may be.
fn run(world: &TestNode, api: &ApiDouble, args: &[&str]) -> Run {
    let threshold = ["SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100"];
    start(world, api, &threshold, args).wait()
}

/// Words to start the product with, so that it has a place for the termination message in a `/dev` of its own.
fn with_termination_log(log: &Path) -> Vec<String> {
    let script = r#": >"$0" && mount -t tmpfs tmpfs /dev && : >/dev/termination-log &&
        mount --bind "$0" /dev/termination-log && exec "$@""#;
    let log = log.to_str().unwrap();
    let unshare = ["/usr/bin/unshare", "--mount", "--propagation=private"];
    let words = [&unshare[..], &["/bin/sh", "-c", script, log]].concat();
    words.into_iter().map(str::to_owned).collect()
}

/// Waits until the run has asked for something.
fn has_asked(api: &ApiDouble) {
    let begin = Instant::now();
    while api.log().is_empty() {
        assert!(begin.elapsed() < PATIENCE, "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the run has reported its start.
fn has_begun(api: &ApiDouble) {
    let begin = Instant::now();
    while reasons(api).is_empty() || api.patches().is_empty() {
        assert!(begin.elapsed() < PATIENCE, "it does not begin");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn reasons(api: &ApiDouble) -> Vec<String> {
    let events = api.events();
    events
        .iter()
        .filter_map(|event| event["reason"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn settings_of_the_cluster_are_used_and_the_job_is_annotated() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    api.put(
        CONFIGZ_PATH,
        json!({"kubeletconfig": {"imageGCHighThresholdPercent": 100}}),
    );
    let status = json!({"httpsProxy": "http://user:planted-proxy-password@proxy.test:3128", "noProxy": ".svc,10.0.0.0/8"});
    api.put(
        PROXY_PATH,
        json!({"spec": {"trustedCA": {"name": "user-ca-bundle"}}, "status": status}),
    );
    api.put(
        IMAGE_PATH,
        json!({"spec": {"additionalTrustedCA": {"name": "registries"}}}),
    );
    let config_map = |name: &str| format!("/api/v1/namespaces/openshift-config/configmaps/{name}");
    api.put(
        &config_map("user-ca-bundle"),
        json!({"data": {"ca-bundle.crt": "no certificate"}}),
    );
    api.put(
        &config_map("registries"),
        json!({"data": {"registry.test..5000": "-----BEGIN CERTIFICATE-----\nnone"}}),
    );
    let world = TestNode::trusting(&[registry.host()]);
    registry.fault(RegistryFault::on("/manifests/").status(503));
    let running = start(&world, &api, &[], &["--image", &registry.tagged("zoo/base")]);
    has_begun(&api);
    registry.end_faults();
    let run = running
        .wait()
        .exits(0)
        .says("the kubelet removes images when the disk is 100 % full")
        .says("HTTPS requests use the proxy `http://proxy.test:3128` of the cluster's Proxy, except for `NO_PROXY`: .svc,10.0.0.0/8")
        .says("Kubernetes kills the Job at");
    assert!(!run.to_string().contains("planted"), "{run}");

    let status = api.status();
    assert_eq!(status["phase"], "Succeeded", "{status}");
    assert_eq!((&status["exitCode"], &status["node"]), (&json!(0), &json!(NODE)));
    assert_eq!(status["images"], json!({"wanted": 1, "here": 1, "failed": 0}));
    assert_eq!(
        api.annotation("spoke-precache.io/progress"),
        "Succeeded: the image is in the store (exit code 0)"
    );
    assert_eq!(api.annotation("other"), "kept");
    // The template for the hub finds both annotations, and the phase by its place.
    let template = include_str!("../../../manifests/hub-progress.gotemplate");
    for name in ["spoke-precache.io/progress", "spoke-precache.io/status"] {
        assert!(template.contains(&format!("index . \"{name}\"")), "{name}");
        assert_ne!(api.annotation(name), "", "{name}");
    }
    let text = api.annotation("spoke-precache.io/status");
    assert!(text.starts_with(r#"{"phase":"S"#), "{text}");
    // One at the start, one at the end, and perhaps one with the plan.
    let patches = api.patches();
    assert!((2..=3).contains(&patches.len()), "{patches:?}");
    let first: Value = serde_json::from_str(&patches[0].body).unwrap();
    let first = first["metadata"]["annotations"]["spoke-precache.io/status"]
        .as_str()
        .unwrap();
    assert!(first.contains(r#""phase":"Running""#), "{first}");

    assert_eq!(reasons(&api), ["PreCacheStarted", "PreCacheSucceeded"]);
    let event = &api.events()[1];
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "namespace": NAMESPACE, "name": "pre-cache", "uid": "job-uid"});
    assert_eq!((&event["regarding"], &event["type"]), (&job, &json!("Normal")));
    assert_eq!(event["reportingInstance"], POD);
    let time = event["eventTime"].as_str().unwrap();
    assert_eq!(time.len(), "2026-01-02T03:04:05.000006Z".len(), "{time}");
    api.is_allowed();
}

#[test]
fn a_failure_is_reported_with_its_reason_and_without_secrets() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    registry.require(Auth::basic("me", "right"));
    let world = TestNode::trusting(&[registry.host()]);
    world.pull_secret(&registry.host(), "me:planted-password");
    // Servers that repeat what they were sent.
    api.fault(Fault::status("/proxies/", 403));
    api.fault(Fault::echo("/images/"));
    let log = world.out("termination-log");
    let (threshold, level) = (
        "SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100".to_owned(),
        "SPOKE_PRECACHE_LOG_LEVEL=trace".to_owned(),
    );
    let words = [
        with_termination_log(&log),
        api.environment(),
        vec![threshold, level],
    ]
    .concat();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let image = ["--image", &registry.tagged("zoo/base")];
    let run = world.start_under(&words, "run", &image).wait().exits(4);
    let message = std::fs::read_to_string(&log).unwrap();
    assert!(!message.is_empty(), "{run}");
    let status = api.status();
    assert_eq!(
        (&status["phase"], &status["exitCode"]),
        (&json!("UnrecoverableError"), &json!(4)),
        "{run}"
    );
    let reason = status["reason"].as_str().unwrap();
    assert!(reason.starts_with("Resolve: CredentialsRefused"), "{status}");
    let events = api.events();
    assert_eq!(
        reasons(&api),
        [
            "PreCacheStarted",
            "CredentialsRefused",
            "CredentialsRefused",
            "PreCacheFailed"
        ],
        "{events:?}"
    );
    let written: String = api.log().iter().map(|asked| asked.body.as_str()).collect();
    for secret in ["planted", TOKEN, NEXT_TOKEN, "bWU6"] {
        assert!(!written.contains(secret), "{written}");
        assert!(!run.to_string().contains(secret), "{run}");
        assert!(!message.contains(secret), "{message}");
    }
    let size: usize = status.to_string().len() + api.annotation("spoke-precache.io/progress").len();
    assert!(size < 4096, "{size}");
}

/// As on a single-stack site; its own proxy is not the API's.
#[test]
fn the_api_may_have_an_address_of_ipv6() {
    needs!(root(), ipv6());
    let registry = registry_with_samples();
    let api = ApiDouble::on(Ipv6Addr::LOCALHOST.into());
    let world = TestNode::trusting(&[registry.host()]);
    let variables = [
        "SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100",
        "HTTPS_PROXY=http://127.0.0.1:1",
    ];
    let image = ["--image", &registry.tagged("zoo/base")];
    let run = start(&world, &api, &variables, &image).wait().exits(0);
    assert_eq!(api.status()["phase"], "Succeeded", "{run}");
}

/// For the hub any end before that is an error, and in the last moments another image may become complete.
#[test]
fn the_jobs_own_end_is_no_end_of_the_run() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    registry.fault(RegistryFault::on("/blobs/").status(503));
    let start_time = Timestamp::from_second(Timestamp::now().as_second() - 58).unwrap();
    api.put_job(&start_time.to_string(), Some(60));
    let world = TestNode::trusting(&[registry.host()]);
    let threshold = ["SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100"];
    let image = ["--image", &registry.tagged("zoo/base")];
    let mut running = start(&world, &api, &threshold, &image);
    has_begun(&api);
    std::thread::sleep(Duration::from_secs(3));
    assert!(!running.has_ended());
    registry.end_faults();
    let end = start_time + Duration::from_secs(60);
    let run = running.wait().exits(0);
    let run = run.says(&format!("Kubernetes kills the Job at {end}"));
    assert_eq!(api.status()["deadline"], end.to_string(), "{run}");
}

#[test]
fn the_pods_of_an_indexed_job_annotate_it_side_by_side() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    registry.fault(RegistryFault::on("/manifests/").status(503));
    let pods: Vec<_> = (0..4)
        .map(|index| {
            let world = TestNode::trusting(&[registry.host()]);
            let index = format!("JOB_COMPLETION_INDEX={index}");
            let more = ["SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100", &index];
            let running = start(&world, &api, &more, &["--image", &registry.tagged("zoo/base")]);
            (world, running)
        })
        .collect();
    let says = |index: usize, phase: &str| {
        let status = api.annotation(&format!("spoke-precache.io/status.{index}"));
        status.contains(&format!(r#""phase":"{phase}""#))
    };
    let begin = Instant::now();
    while !(0..4).all(|index| says(index, "Running")) {
        assert!(begin.elapsed() < PATIENCE, "{:?}", api.patches());
        std::thread::sleep(Duration::from_millis(10));
    }
    registry.end_faults();
    for (index, (_world, running)) in pods.into_iter().enumerate() {
        let run = running.wait().exits(0);
        assert!(says(index, "Succeeded"), "{index}: {run}");
    }
}

#[test]
fn a_pod_of_an_indexed_job_has_annotations_of_its_own_and_one_of_no_job_none() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    let world = TestNode::trusting(&[registry.host()]);
    let more = [
        "SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100",
        "HOSTNAME=pre-cache-2",
        &format!("POD_NAME={POD}"),
        "JOB_COMPLETION_INDEX=2",
    ];
    let image = ["--image", &registry.tagged("zoo/base")];
    start(&world, &api, &more, &image).wait().exits(0);
    assert!(api.annotation("spoke-precache.io/status.2").contains("Succeeded"));
    assert_eq!(api.annotation("spoke-precache.io/status"), "");

    let api = ApiDouble::start();
    api.put(POD_PATH, json!({"metadata": {"name": POD}}));
    run(&world, &api, &image).exits(0);
    assert!(api.patches().is_empty());
    let events = api.events();
    assert_eq!(events.len(), 2);
    assert_eq!(
        (&events[0]["regarding"]["kind"], &events[0]["regarding"]["name"]),
        (&json!("Pod"), &json!(POD))
    );
}

#[test]
fn what_was_cached_is_pinned_by_digest() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    let world = TestNode::trusting(&[registry.host()]);
    let image = registry.tagged("zoo/base");
    let file = world.out("pins.yaml");
    run(
        &world,
        &api,
        &["--image", &image, "--pin", file.to_str().unwrap()],
    )
    .exits(0)
    .says("1 image pinned");
    let text = std::fs::read_to_string(&file).unwrap();
    let repository = image.strip_suffix(":latest").unwrap();
    assert!(
        text.contains(&format!("  - name: \"{repository}@sha256:")),
        "{text}"
    );

    run(&world, &api, &["--image", &image, "--pin", "api"])
        .exits(0)
        .says("1 image pinned");
    let pins = api.object(&pin_path("spoke-precache"));
    let name = pins["spec"]["pinnedImages"][0]["name"].as_str().unwrap();
    assert!(text.contains(name), "{text}: {pins}");
    api.is_allowed();

    // The images are there, whatever becomes of the pins.
    api.fault(Fault::status("/pinnedimagesets/", 404).times(1));
    run(&world, &api, &["--image", &image, "--pin", "api"])
        .exits(0)
        .says("the images are not pinned: the cluster has no PinnedImageSets");
    api.fault(Fault::status("/pinnedimagesets/", 403));
    run(&world, &api, &["--image", &image, "--pin", "api"])
        .exits(0)
        .says("the images are not pinned: the service account is not allowed `patch pinnedimagesets.machineconfiguration.openshift.io`");
}

fn pin_path(name: &str) -> String {
    format!("/apis/machineconfiguration.openshift.io/v1/pinnedimagesets/{name}")
}

/// What an earlier run pinned in more sets does not stay for ever.
#[test]
fn sets_that_an_earlier_run_needed_are_removed_and_no_others() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    let world = TestNode::trusting(&[registry.host()]);
    // A run that was killed between two of them left the last.
    for name in [
        "spoke-precache",
        "spoke-precache-2",
        "spoke-precache-8",
        "spoke-precache-x",
        "other",
    ] {
        api.put(&pin_path(name), json!({"metadata": {"name": name}}));
    }
    let args = ["--image", &registry.tagged("zoo/base"), "--pin", "api"];
    // Images are pinned before others are no longer.
    api.fault(Fault::status("DELETE", 403).times(1));
    run(&world, &api, &args)
        .exits(0)
        .says("1 image pinned")
        .says("images of an earlier run may stay pinned: the service account is not allowed `delete pinnedimagesets");
    assert_eq!(
        api.object(&pin_path("spoke-precache-8"))["metadata"]["name"],
        "spoke-precache-8"
    );
    let run = run(&world, &api, &args).exits(0);
    assert_eq!(run.report["warnings"], json!([]), "{run}");
    for (name, stays) in [
        ("spoke-precache", true),
        ("spoke-precache-2", false),
        ("spoke-precache-8", false),
        ("spoke-precache-x", true),
        ("other", true),
    ] {
        assert_eq!(!api.object(&pin_path(name)).is_null(), stays, "{name}: {run}");
    }
    api.is_allowed();
}
