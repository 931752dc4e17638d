//! Tests the annotations and events of the Job: one refused request does not stop the others, nothing old arrives after the
//! end, nothing is too long.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::api_faults::Fault;
use super::fake_api::{ApiDouble, Asked, JOB_PATH, POD};
use super::{PATIENCE, has_begun, reasons, registry_with_samples, run, start, with_termination_log};
use crate::needs::needs;
use crate::registry::faults::Fault as RegistryFault;
use crate::test_node::TestNode;

#[test]
fn a_refused_event_does_not_stop_the_others() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    registry.fault(RegistryFault::on("/manifests/").status(404));
    let world = TestNode::trusting(&[registry.host()]);
    let image = ["--image", &registry.tagged("zoo/base")];
    // The start's.
    api.fault(Fault::status("POST", 422).times(1));
    let failed = run(&world, &api, &image).exits(8);
    assert_eq!(
        reasons(&api).last().map(String::as_str),
        Some("PreCacheFailed"),
        "{failed}"
    );
    assert!(reasons(&api).len() > 1, "the failed step is told too: {failed}");
    registry.end_faults();

    // None is allowed, but annotations are.
    let api = ApiDouble::start();
    api.fault(Fault::status("POST", 403));
    run(&world, &api, &image).exits(0);
    assert_eq!(api.status()["phase"], "Succeeded");
    assert_eq!(api.events(), Vec::<Value>::new());

    // And the other way round.
    let api = ApiDouble::start();
    api.fault(Fault::status("PATCH", 403));
    run(&world, &api, &image).exits(0);
    assert_eq!(reasons(&api), ["PreCacheStarted", "PreCacheSucceeded"]);

    // Who may not ask for the Job speaks of the pod.
    let api = ApiDouble::start();
    api.fault(Fault::status("/pods/", 403));
    run(&world, &api, &image).exits(0);
    assert_eq!(reasons(&api), ["PreCacheStarted", "PreCacheSucceeded"]);
    assert_eq!(api.events()[0]["regarding"]["name"], POD);
}

#[test]
fn a_late_annotation_does_not_replace_the_last_one() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    registry.fault(RegistryFault::on("/manifests/").stall(0));
    api.fault(Fault::late("PATCH", Duration::from_secs(1)).times(1));
    let world = TestNode::trusting(&[registry.host()]);
    let running = start(
        &world,
        &api,
        &["SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100"],
        &["--image", &registry.tagged("zoo/base")],
    );
    has_begun(&api);
    running.signal(Signal::TERM);
    let run = running.wait().exits(143);
    assert_eq!(api.status()["phase"], "Interrupted", "{run}");
    while api.late().is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(api.late(), [409]);
    assert_eq!(
        api.status()["phase"],
        "Interrupted",
        "what was true before came after the end"
    );
}

/// The next one in step comes 25 s after the Job's start.
#[test]
fn the_first_plan_is_annotated_before_the_hub_copies_the_job() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    registry.fault(RegistryFault::on("/blobs/").after(1).stall(100));
    let world = TestNode::trusting(&[registry.host()]);
    let threshold = "SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100";
    let image = registry.tagged("zoo/base");
    let running = start(&world, &api, &[threshold], &["--image", &image]);
    has_begun(&api);
    let first: Value = serde_json::from_str(&api.patches()[0].body).unwrap();
    assert_eq!(
        first["metadata"]["annotations"]["spoke-precache.io/progress"],
        "the number of images is not known yet"
    );
    let begin = Instant::now();
    while api.status()["images"]["wanted"] != 1 {
        assert!(begin.elapsed() < PATIENCE, "{}", running.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
    let told = api.annotation("spoke-precache.io/progress");
    assert!(told.starts_with("images 0/1, "), "{told}");
}

/// The kubelet sends the same signal for all of these.
#[test]
fn an_eviction_is_no_timeout_and_the_deadline_is_one() {
    needs!(root());
    let registry = registry_with_samples();
    registry.fault(RegistryFault::on("/manifests/").stall(0));
    for (signal, code, seconds, phase, reason, why) in [
        (
            Signal::TERM,
            143,
            4 * 3600,
            "Interrupted",
            "PreCacheInterrupted",
            "before its deadline: the pod was deleted or evicted",
        ),
        (
            Signal::TERM,
            143,
            5,
            "Timeout",
            "PreCacheTimeout",
            "stopped by the Job's deadline",
        ),
        (
            Signal::INT,
            130,
            4 * 3600,
            "Interrupted",
            "PreCacheInterrupted",
            "interrupted by signal 2",
        ),
    ] {
        let api = ApiDouble::start();
        let mut job = api.object(JOB_PATH);
        job["status"]["startTime"] = Timestamp::now().to_string().into();
        job["spec"]["activeDeadlineSeconds"] = seconds.into();
        api.put(JOB_PATH, job);
        let world = TestNode::trusting(&[registry.host()]);
        let log = world.out("termination-log");
        let wrapper = [with_termination_log(&log), api.environment()].concat();
        let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
        let image = registry.tagged("zoo/base");
        let running = world.start_under(&wrapper, "run", &["--image", &image]);
        has_begun(&api);
        running.signal(signal);
        let run = running.wait().exits(code).says(why);
        assert_eq!(run.report["phase"], phase, "{run}");
        assert!(run.report["reason"].as_str().unwrap().contains(why), "{run}");
        assert_eq!(api.status()["phase"], phase, "{run}");
        assert!(api.status()["reason"].as_str().unwrap().contains(why), "{run}");
        assert_eq!(reasons(&api).last().unwrap(), reason, "{run}");
        let told = std::fs::read_to_string(&log).unwrap();
        assert!(told.starts_with(phase) && told.contains(why), "{told}");
    }
}

#[test]
fn another_job_of_the_name_is_left_alone() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    let mut job = api.object(JOB_PATH);
    job["metadata"]["uid"] = "another-uid".into();
    api.put(JOB_PATH, job);
    let world = TestNode::trusting(&[registry.host()]);
    run(&world, &api, &["--image", &registry.tagged("zoo/base")])
        .exits(0)
        .says("the Job `pre-cache` was replaced by another Job of this name")
        .says("cannot annotate the Job with the result of this run: the API responds 422");
    assert_eq!(api.annotation("spoke-precache.io/status"), "");
}

/// A registry of one answer.
fn registry_that_says(message: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let body = json!({"errors": [{"code": "MANIFEST_UNKNOWN", "message": message}]}).to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // Whatever it asks, and whether or not it hears the answer.
            let _ = stream.read(&mut [0; 4096]);
            let head = format!(
                "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(body.as_bytes());
        }
    });
    host
}

#[test]
fn annotations_and_events_stay_short_whatever_a_registry_sends() {
    needs!(root());
    let api = ApiDouble::start();
    for text in ["\"\\", "ä", "𝄞\u{1b}[2J", "\u{202e}"] {
        let host = registry_that_says(&text.repeat(10_000 / text.len()));
        let world = TestNode::trusting(std::slice::from_ref(&host));
        let images: Vec<String> = (0..6).map(|number| format!("{host}/a/b{number}:1")).collect();
        let args: Vec<&str> = images.iter().flat_map(|image| ["--image", image]).collect();
        let run = run(&world, &api, &args).exits(8);
        assert_eq!(api.status()["phase"], "UnrecoverableError", "{run}");
    }
    for Asked { body, .. } in api.patches() {
        let patch: Value = serde_json::from_str(&body).unwrap();
        let annotations = patch["metadata"]["annotations"].as_object().unwrap();
        let size: usize = annotations
            .iter()
            .map(|(key, value)| key.len() + value.as_str().unwrap().len())
            .sum();
        assert!(size < 4096, "{size}: {body}");
        assert!(!body.contains("\\u001b") && !body.contains('\u{202e}'), "{body}");
    }
    for event in api.events() {
        assert!(event["note"].as_str().unwrap().len() <= 1024, "{event}");
    }
}

/// Without other writers of the Job, and with a busy API.
#[test]
fn the_job_is_written_every_thirty_seconds_at_most() {
    needs!(root());
    if !crate::needs::long() {
        return crate::needs::leave_out("it takes a minute and a half, SPOKE_LONG=1");
    }
    let registry = registry_with_samples();
    registry.fault(RegistryFault::on("/manifests/").stall(0));
    std::thread::scope(|scope| {
        for fault in [
            None,
            Some(Fault::busy("PATCH", 5)),
            Some(Fault::status("PATCH", 500)),
            Some(Fault::hang("PATCH")),
        ] {
            let registry = &registry;
            scope.spawn(move || {
                let (api, world) = (ApiDouble::start(), TestNode::trusting(&[registry.host()]));
                let case = format!("{fault:?}");
                fault.into_iter().for_each(|fault| api.fault(fault));
                let image = registry.tagged("zoo/base");
                let threshold = "SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100";
                let running = start(&world, &api, &[threshold], &["--image", &image]);
                std::thread::sleep(Duration::from_secs(95));
                let patches = api.patches();
                assert_eq!(patches.len(), 4, "{case}: {patches:?}");
                // The second one precedes the hub's copy, 30 s after the Job's start; so do all later ones.
                for (pair, least) in patches.windows(2).zip([20, 29, 29]) {
                    let between = pair[1].at - pair[0].at;
                    assert!(between > Duration::from_secs(least), "{case}: {between:?}");
                }
                running.signal(Signal::TERM);
                running.wait().exits(143);
            });
        }
    });
}
