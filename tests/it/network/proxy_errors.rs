//! Tests a proxy that refuses, is missing, fails for a while, or breaks connections.

use std::io::Write as _;
use std::net::TcpListener;
use std::time::Duration;

use super::servers::Program;
use super::site::{BY_PLAIN_HTTP, BY_TLS, OUTSIDE, Site, image};
use crate::compare::inconsistencies;
use crate::link::{Harm, Proxy};
use crate::needs::needs;
use crate::registry::faults::Fault;
use crate::registry::{Auth, Registry};

/// What one broken connection may cost: the kernel's buffer that a reset destroys, tinyproxy's, and the handshakes of a new
/// tunnel.
const PER_HARM: u64 = 192 << 10;
/// Heads of answers, handshakes, manifests and configs.
const SLACK: u64 = 128 << 10;

#[test]
fn a_proxy_that_refuses_or_is_not_there_is_named() {
    needs!(root(), links(), stock(), docker_registry(), squid());
    let site = Site::new();
    let _squid = Program::squid(&site.link.server, Site::proxy(), ("me", "right"), None);
    let right = "me:right@10.77.0.1:3128";
    let through = "proxy `http://10.77.0.1:3128`";
    for (proxy, image, says) in [
        // Its rules forbid the host, for good.
        (
            right,
            "forbidden.test/a:1",
            format!("{through} refuses the connection: it answers 403"),
        ),
        // No process listens there.
        (
            right,
            "registry.test:5003/a:1",
            format!("{through} refuses the connection: it answers 503"),
        ),
        (
            "10.77.0.1:9",
            BY_TLS,
            "proxy `http://10.77.0.1:9` cannot be reached: tcp connect error: Connection refused".into(),
        ),
        (
            "proxy.test:3128",
            BY_TLS,
            "proxy `http://proxy.test:3128` cannot be reached: its name is not resolved".into(),
        ),
        (
            "10.77.0.1:9",
            BY_PLAIN_HTTP,
            "proxy `http://10.77.0.1:9` cannot be reached: tcp connect error: Connection refused".into(),
        ),
    ] {
        let variables = ["HTTP_PROXY", "HTTPS_PROXY"].map(|name| format!("{name}=http://{proxy}"));
        let variables = [variables[0].as_str(), &variables[1]];
        let world = site.node();
        let args = ["--image", image, "--give-up-after", "1s"];
        // Its rules stay.
        let code = if says.ends_with("403") { 8 } else { 1 };
        let run = site.run(&world, &variables, &args).exits(code).says(&says);
        assert_eq!(run.stderr.contains("gave up"), !says.ends_with("403"), "{run}");
        assert!(!format!("{run}").contains("right@"), "{run}");
    }
}

#[test]
fn tokens_and_redirects_go_through_the_proxy_too() {
    needs!(root(), links(), stock(), docker_registry(), squid());
    let site = Site::new();
    let squid = Program::squid(&site.link.server, Site::proxy(), ("me", "right"), None);
    let listener = site
        .link
        .server
        .within(|| TcpListener::bind((OUTSIDE, 5002)).unwrap());
    let cdn = Registry::on(listener);
    cdn.push("team/image", Some("latest"), &image());
    site.plain.require(Auth::bearer("user", "hunter2"));
    site.plain.fault(Fault::on("/blobs/").redirect(&cdn.host()));
    let world = site.node();
    world.pull_secret("registry.test:5001", "user:hunter2");
    let variables =
        ["HTTP_PROXY", "HTTPS_PROXY"].map(|name| format!("{name}=http://me:right@10.77.0.1:3128"));
    let args = ["--image", BY_PLAIN_HTTP, "--give-up-after", "1s"];
    site.run(&world, &[&variables[0], &variables[1]], &args).exits(0);
    let log = squid.log();
    for asked in [
        "GET http://registry.test:5001/v2/team/image/manifests/",
        "/token?",
        "GET http://10.88.0.1:5002/v2/team/image/blobs/",
    ] {
        assert!(log.contains(asked), "{asked}: {log}");
    }
    // Headers for the registry are not for other hosts behind the proxy.
    assert!(cdn.log().iter().all(|access| access.authorization.is_none()));
}

#[test]
fn a_proxy_that_fails_for_a_while_costs_time_and_few_bytes() {
    needs!(root(), links(), stock(), docker_registry(), tinyproxy());
    let site = Site::new();
    let _tinyproxy = Program::tinyproxy(&site.link.server, Site::proxy(), None);
    let harming = site.link.client.within(|| Proxy::start(Site::proxy()).unwrap());
    let variable = format!("HTTPS_PROXY=http://{}", harming.host());
    let world = site.node();
    let outside = format!("{OUTSIDE}/32");
    let address = |verb: &str| {
        let words = ["ip", "address", verb, &outside, "dev", "lo"];
        site.link.server.command(&words).unwrap();
    };
    address("del");
    let args = ["--image", BY_TLS, "--max-downloads", "1"];
    let run = site.start(&world, &[&variable], &args);
    std::thread::sleep(Duration::from_millis(700));
    harming.break_next([
        Harm::Cut(100_000),
        Harm::Reset(150_000),
        Harm::Cut(20),
        Harm::Stall(50_000, Duration::from_millis(300)),
        Harm::Reset(5000),
    ]);
    address("add");
    let run = run.wait().exits(0).says("refuses the connection: it answers 5");
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
    let unique: u64 = image().layers.iter().map(|layer| layer.size).sum();
    let (passed, harmed) = (harming.passed(), harming.broken_connections());
    let allowed = unique * 102 / 100 + SLACK + harmed * PER_HARM;
    assert!(
        passed <= allowed,
        "{passed} bytes passed, {allowed} are allowed, {harmed} connections broken: {run}"
    );
    assert!(harmed > 0, "{run}");
    // Not `eprintln!`: the test runner hides what passing tests print.
    let _ = writeln!(
        std::io::stderr(),
        "COUNTED: {harmed} tunnels broken, {passed} bytes passed for {unique} of layers, in {:?}",
        run.took
    );
}
