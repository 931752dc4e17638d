//! Tests an API that is busy, unreachable, forbidding, wrong or hostile: only the messages of the run may differ.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::api_faults::Fault;
use super::fake_api::{ApiDouble, IMAGE_PATH, PROXY_PATH};
use super::tls_proxy::front;
use super::{PATIENCE, has_asked, has_begun, reasons, registry_with_samples, run, start};
use crate::needs::needs;
use crate::network::certificates::Authority;
use crate::registry::faults::Fault as RegistryFault;
use crate::test_node::TestNode;

/// Longer than any of these runs may take: who waits for the API, waits for so long.
const FOR_EVER: &str = "SPOKE_PRECACHE_CLUSTER_PATIENCE=60s";

const ALL: &str = "SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100";

#[test]
fn an_api_that_refuses_is_not_waited_for() {
    needs!(root());
    let registry = registry_with_samples();
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let redirect = |on| Fault::redirect(on, elsewhere.local_addr().unwrap());
    let cases = [
        (
            vec![Fault::status("/", 401)],
            "the API does not accept the service account's token",
        ),
        (vec![Fault::status("/", 403)], "is not allowed `get pods`"),
        (
            vec![Fault::status("PATCH", 403)],
            "is not allowed `patch jobs.batch`",
        ),
        (
            vec![Fault::status("POST", 403)],
            "is not allowed `create events.events.k8s.io`",
        ),
        (
            vec![Fault::status("PATCH", 409)],
            "the API responds 409 to `patch jobs.batch`",
        ),
        (
            vec![Fault::status("PATCH", 422)],
            "the API responds 422 to `patch jobs.batch`",
        ),
        (
            vec![Fault::status("/pods/", 404)],
            "there is no pod `pre-cache-7xk2p`",
        ),
        (
            vec![redirect("/")],
            "the API responds 307 to `get pods`: elsewhere",
        ),
        (vec![Fault::echo("/")], "a field has another type"),
        (vec![Fault::nonsense("/")], "is not as expected"),
        (vec![Fault::half("/")], "it is truncated at line 1"),
        (
            vec![Fault::long("/", 100 << 20)],
            "it is longer than 4194304 bytes",
        ),
        (
            vec![Fault::hang("PATCH"), Fault::hang("POST")],
            "the Job with the result of this run",
        ),
    ];
    let registry = &registry;
    std::thread::scope(|scope| {
        for (faults, says) in cases {
            scope.spawn(move || {
                let (api, world) = (ApiDouble::start(), TestNode::trusting(&[registry.host()]));
                let case = format!("{faults:?}");
                faults.into_iter().for_each(|fault| api.fault(fault));
                let image = registry.tagged("zoo/base");
                let run = start(&world, &api, &[FOR_EVER, ALL], &["--image", &image]).wait();
                let run = run.exits(0).says(says);
                assert!(run.took < PATIENCE, "{case}: {run}");
                assert!(run.memory < 200 << 20, "{case}: {run}");
                assert!(!run.to_string().contains("planted"), "{case}: {run}");
                api.is_allowed();
            });
        }
    });
    elsewhere.set_nonblocking(true).unwrap();
    assert!(elsewhere.accept().is_err(), "the token went elsewhere");
}

#[test]
fn a_run_continues_without_an_api_that_keeps_failing() {
    needs!(root());
    let registry = registry_with_samples();
    let cases = [
        (Fault::busy("/", 60), "the API responds 429 to `get pods`"),
        (Fault::busy("/", 0), "the API responds 429 to `get pods`"),
        (Fault::status("/", 500), "the API responds 500 to `get pods`"),
        (Fault::status("/", 503), "the API responds 503 to `get pods`"),
        (Fault::hang("/"), "does not respond: no answer in time"),
        (Fault::reset("/"), "does not respond: "),
    ];
    let registry = &registry;
    std::thread::scope(|scope| {
        for (fault, says) in cases {
            scope.spawn(move || {
                let (api, world) = (ApiDouble::start(), TestNode::trusting(&[registry.host()]));
                let case = format!("{fault:?}");
                api.fault(fault);
                let run = run(&world, &api, &["--image", &registry.tagged("zoo/base")]);
                let run = run
                    .exits(0)
                    .says(says)
                    .says("continuing without the cluster's proxy");
                assert!(run.took < PATIENCE, "{case}: {run}");
                assert!(!run.to_string().contains("planted"), "{case}: {run}");
                assert!(
                    api.log().len() < 60,
                    "{case}: it is no siege: {}",
                    api.log().len()
                );
            });
        }
    });
}

#[test]
fn without_an_api_it_goes_on() {
    needs!(root());
    let (registry, mut api) = (registry_with_samples(), ApiDouble::start());
    let world = TestNode::trusting(&[registry.host()]);
    let image = ["--image", &registry.tagged("zoo/base")];
    // Turned off.
    run(&world, &api, &[&image[..], &["--no-cluster"]].concat()).exits(0);
    assert!(api.log().is_empty());
    // Another server.
    let other = ApiDouble::start();
    other.is_not_trusted();
    let distrust = start(&world, &other, &[FOR_EVER, ALL], &image).wait().exits(0);
    let distrust = distrust.says("the certificate of the API at `127.0.0.1:");
    assert!(distrust.took < PATIENCE, "{distrust}");
    assert!(other.log().is_empty());
    // No process listens there any more.
    api.close();
    let run = run(&world, &api, &image).exits(0);
    let run = run.says("this pod's Job and its deadline: the API at `127.0.0.1:");
    assert!(run.took < PATIENCE, "{run}");
}

/// Behind a proxy, or with a registry by the cluster's own authority, a start without the API would be an error that no
/// retry resolves.
#[test]
fn a_busy_api_is_waited_for() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    let proxy = "http://user:planted-proxy-password@proxy.test:3128";
    api.put(
        PROXY_PATH,
        json!({"status": {"httpsProxy": proxy, "noProxy": "127.0.0.1"}}),
    );
    let authority = Authority::new("the-cluster-s-own");
    let front = front(registry.host(), &authority);
    api.put(
        IMAGE_PATH,
        json!({"spec": {"additionalTrustedCA": {"name": "registries"}}}),
    );
    api.put(
        "/api/v1/namespaces/openshift-config/configmaps/registries",
        json!({"data": {format!("127.0.0.1..{}", front.port()): authority.pem()}}),
    );
    let world = TestNode::trusting(&[]);
    let image = ["--image", &format!("{front}/zoo/base:latest")];
    // Without it, nothing works.
    let without = run(&world, &api, &[&image[..], &["--no-cluster"]].concat()).exits(8);
    without.says("signed by unknown authority");

    api.fault(Fault::busy("/", 1));
    let running = start(&world, &api, &[FOR_EVER, ALL], &image);
    has_asked(&api);
    // After 3 s it logs what it waits for.
    std::thread::sleep(Duration::from_millis(3500));
    api.end_faults();
    let run = running.wait().exits(0);
    let run = run
        .says("waiting up to 60s for the cluster's API, which is busy or unreachable")
        .says("HTTPS requests use the proxy `http://proxy.test:3128`")
        .says("Kubernetes kills the Job at");
    assert!(!run.to_string().contains("planted"), "{run}");
    assert_eq!(run.report["warnings"], json!([]), "{run}");
    assert_eq!(api.status()["phase"], "Succeeded", "{run}");
}

#[test]
fn a_busy_api_is_asked_again_and_a_new_token_is_read() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let api = ApiDouble::start();
    api.rotate();
    api.fault(Fault::busy("/pods/", 1).times(1));
    api.fault(Fault::status("/jobs/", 500).times(2));
    api.fault(Fault::reset("/images/").times(1));
    api.fault(Fault::status("PATCH", 409).times(1));
    api.fault(Fault::status("POST", 503).times(1));
    let image = ["--image", &registry.tagged("zoo/base")];
    let run = start(&world, &api, &[FOR_EVER, ALL], &image).wait();
    let run = run.exits(0).says("Kubernetes kills the Job at");
    assert_eq!(api.status()["phase"], "Succeeded", "{run}");
    assert_eq!(reasons(&api), ["PreCacheStarted", "PreCacheSucceeded"], "{run}");
    assert_eq!(run.report["warnings"], json!([]), "{run}");
}

/// The server of a single node that has just rebooted answers before it has read who may do what.
#[test]
fn a_server_that_has_just_started_and_forbids_is_asked_again() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let api = ApiDouble::start();
    for on in ["/proxies/", "/images/"] {
        api.fault(Fault::status(on, 503).times(1));
        api.fault(Fault::status(on, 403).times(2));
    }
    let image = ["--image", &registry.tagged("zoo/base")];
    let run = start(&world, &api, &[FOR_EVER, ALL], &image).wait().exits(0);
    assert_eq!(run.report["warnings"], json!([]), "{run}");
}

#[test]
fn an_api_that_hangs_holds_up_neither_the_pull_nor_the_end() {
    needs!(root());
    let (registry, api) = (registry_with_samples(), ApiDouble::start());
    registry.fault(RegistryFault::on("/manifests/").status(503));
    let world = TestNode::trusting(&[registry.host()]);
    let images = ["--image", &registry.tagged("zoo/base")];
    let running = start(&world, &api, &[ALL], &images);
    has_begun(&api);
    api.fault(Fault::hang("/"));
    registry.end_faults();
    let mended = Instant::now();
    let run = running.wait().exits(0);
    // A pause before the registry is asked again, the pull, and 2 s for the farewell.
    let took = mended.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}: {run}");
    assert_eq!(api.status()["phase"], "Running", "{run}");
}

#[test]
fn a_signal_is_reported_and_ends_it_within_a_second() {
    needs!(root());
    for hangs in [false, true] {
        let (registry, api) = (registry_with_samples(), ApiDouble::start());
        registry.fault(RegistryFault::on("/manifests/").stall(0));
        let world = TestNode::trusting(&[registry.host()]);
        let image = registry.tagged("zoo/base");
        let running = start(&world, &api, &[ALL], &["--image", &image]);
        has_begun(&api);
        if hangs {
            api.fault(Fault::hang("/"));
        }
        let asked = Instant::now();
        running.signal(Signal::TERM);
        let run = running.wait().exits(143);
        assert!(
            asked.elapsed() < Duration::from_secs(1),
            "{:?}: {run}",
            asked.elapsed()
        );
        let phase = if hangs { "Running" } else { "Interrupted" };
        assert_eq!(api.status()["phase"], phase, "{run}");
    }
}

#[test]
fn a_signal_while_it_waits_for_the_api_ends_it_within_a_second() {
    needs!(root());
    for fault in [Fault::hang("/"), Fault::busy("/", 5), Fault::status("/", 503)] {
        let (registry, api) = (registry_with_samples(), ApiDouble::start());
        let case = format!("{fault:?}");
        api.fault(fault);
        let world = TestNode::trusting(&[registry.host()]);
        let running = start(
            &world,
            &api,
            &[FOR_EVER, ALL],
            &["--image", &registry.tagged("zoo/base")],
        );
        has_asked(&api);
        let asked = Instant::now();
        running.signal(Signal::TERM);
        let run = running.wait().exits(143);
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(3), "{case}: {took:?}: {run}");
        assert_eq!(run.report["phase"], "Interrupted", "{run}");
    }
}
