//! Tests a node that reaches registries only through a proxy.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::servers::Program;
use super::site::{BY_PLAIN_HTTP, BY_TLS, Site, image};
use crate::compare::inconsistencies;
use crate::link::Link;
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

const SOON: [&str; 2] = ["--give-up-after", "1s"];

fn args(image: &str) -> [&str; 4] {
    ["--image", image, SOON[0], SOON[1]]
}

/// Fails the test if the run or the termination message contains `secret`, plain or in a header.
#[track_caller]
fn hides(run: &Run, world: &TestNode, secret: &str) {
    let log = std::fs::read_to_string(world.out("termination-log")).unwrap_or_default();
    let said = format!("{run}{log}");
    assert!(!said.contains(secret), "{said}");
    for user in ["me", "you"] {
        let header = BASE64_STANDARD.encode(format!("{user}:{secret}"));
        assert!(!said.contains(&header), "{said}");
    }
}

/// Bug 18 of TALM's scripts: they hand podman neither the node's proxy nor, in the pod, its `certs.d`; for the latter see
/// `certificates`.
#[test]
fn bug_18_an_image_is_pulled_only_through_the_proxy() {
    needs!(root(), links(), stock(), docker_registry(), tinyproxy());
    let site = Site::new();
    let world = site.node();
    site.run(&world, &[], &args(BY_TLS))
        .exits(1)
        .says("its name is not resolved");

    let proxy = Program::tinyproxy(&site.link.server, Site::proxy(), None);
    // Of the scheme, not of the other.
    site.run(&world, &["HTTP_PROXY=10.77.0.1:3128"], &args(BY_TLS))
        .exits(1)
        .says("its name is not resolved");
    assert!(!proxy.log().contains("CONNECT registry"), "{}", proxy.log());

    // By TLS with a password of the registry's; as a host and a port, in small letters.
    let run = site
        .run(&world, &["https_proxy=10.77.0.1:3128"], &args(BY_TLS))
        .exits(0);
    assert_eq!(run.total("imagesPulled"), 1, "{run}");
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
    run.says("HTTPS requests use the proxy `http://10.77.0.1:3128` of the environment");
    assert!(
        proxy.log().contains("CONNECT registry.test:5000"),
        "{}",
        proxy.log()
    );

    // By plain HTTP, as registries.conf allows it.
    let world = site.node();
    let before = proxy.log().len();
    let both = [
        "HTTP_PROXY=http://10.77.0.1:3128",
        "HTTPS_PROXY=http://10.77.0.1:3128",
    ];
    site.run(&world, &both, &args(BY_PLAIN_HTTP)).exits(0);
    let log = proxy.log().split_off(before);
    assert!(log.contains("GET http://registry.test:5001/v2/"), "{log}");

    // As configured for the node's services; hosts in NO_PROXY are reached directly.
    let listener = site
        .link
        .client
        .within(|| std::net::TcpListener::bind(Site::near()).unwrap());
    let near = Registry::on(listener);
    near.push("near", Some("latest"), &image());
    let world = site.node();
    world.write(
        "etc/mco/proxy.env",
        "# by the machine config operator\nHTTP_PROXY=http://10.77.0.1:3128\nHTTPS_PROXY=\"http://10.77.0.1:3128\"\n\
         NO_PROXY=.cluster.local,10.77.0.0/24\n",
    );
    let before = proxy.log().len();
    let at_near = near.tagged("near");
    let run = site.run(&world, &[], &[&args(BY_TLS)[..], &["--image", &at_near]].concat());
    let run = run.exits(0).says("etc/mco/proxy.env`, except for `NO_PROXY`");
    assert_eq!(run.total("imagesPulled"), 2, "{run}");
    let log = proxy.log().split_off(before);
    assert!(log.contains("CONNECT registry.test:5000"), "{log}");
    assert!(
        !log.contains(&Link::CLIENT.to_string().replace("0.2", "0.2:")),
        "{log}"
    );

    // A variable of the process wins over the node's file.
    let world_without = site.node();
    world_without.write("etc/mco/proxy.env", "HTTPS_PROXY=http://10.77.0.1:3128\n");
    site.run(&world_without, &["NO_PROXY=*"], &args(BY_TLS))
        .exits(1)
        .says("its name is not resolved");
}

#[test]
fn only_the_proxy_gets_its_password() {
    needs!(root(), links(), stock(), docker_registry(), tinyproxy(), squid());
    let site = Site::new();
    // tinyproxy takes but letters and digits.
    for (kind, password, written) in [
        ("tinyproxy", "s3cret.pass", "s3cret%2Epass"),
        ("squid", "s3cr/t@p%ss", "s3cr%2Ft%40p%25ss"),
    ] {
        let proxy = match kind {
            "tinyproxy" => {
                let login = format!("me {password}");
                Program::tinyproxy(&site.link.server, Site::proxy(), Some(&login))
            }
            _ => Program::squid(&site.link.server, Site::proxy(), ("me", password), None),
        };
        let both = |login: &str| {
            ["HTTP_PROXY", "HTTPS_PROXY"].map(|name| format!("{name}=http://{login}10.77.0.1:3128"))
        };
        let (none, wrong, right) = (both(""), both("you:wr0ngpass@"), both(&format!("me:{written}@")));
        for image in [BY_TLS, BY_PLAIN_HTTP] {
            let world = site.node();
            let run = |variables: &[String; 2]| {
                let variables = [variables[0].as_str(), &variables[1]];
                run_with_termination_log(&site, &world, &variables, &args(image))
            };
            run(&none)
                .exits(4)
                .says("proxy `http://10.77.0.1:3128` requires a user and password (407)");
            let refused = run(&wrong).exits(4);
            let refused = match (kind, image) {
                // It answers 401 to a wrong password, as a registry does.
                ("tinyproxy", BY_PLAIN_HTTP) => {
                    refused.says("through proxy `http://10.77.0.1:3128`: the registry answers 401")
                }
                ("tinyproxy", _) => refused.says("refuses the user and password of its URL (401)"),
                _ => refused
                    .says("proxy `http://10.77.0.1:3128` refuses the user and password of its URL (407)"),
            };
            hides(&refused, &world, "wr0ngpass");
            let pulled = run(&right).exits(0);
            hides(&pulled, &world, password);
            hides(&pulled, &world, written);
            assert_eq!(
                inconsistencies(&world.graph_root()),
                Vec::<String>::new(),
                "{kind}"
            );
        }
        let log = proxy.log();
        assert!(
            log.contains("CONNECT") && log.contains("registry.test:5000"),
            "{kind}: {log}"
        );
    }
}

/// The run as in a pod, with a place for the termination message, `out/termination-log`.
fn run_with_termination_log(site: &Site, world: &TestNode, variables: &[&str], args: &[&str]) -> Run {
    // A `/dev` of its own: a file for the message in the machine's would be everybody's.
    let script = r#": >"$0" && mount -t tmpfs tmpfs /dev && : >/dev/termination-log &&
        mount --bind "$0" /dev/termination-log && exec "$@""#;
    let log = world.out("termination-log");
    let wrapper = [
        "/usr/bin/unshare",
        "--mount",
        "--propagation=private",
        "/bin/sh",
        "-c",
        script,
        log.to_str().unwrap(),
        "/usr/bin/env",
    ];
    let wrapper = [&wrapper[..], variables, &["SPOKE_PRECACHE_LOG_LEVEL=trace"]].concat();
    let run = site
        .link
        .client
        .within(|| world.start_under(&wrapper, "run", args));
    let run = run.wait();
    let said = std::fs::read_to_string(log).unwrap();
    assert!(!said.is_empty(), "there is no termination message: {run}");
    run
}

#[test]
fn a_proxy_by_tls_must_be_one_that_the_node_trusts() {
    needs!(root(), links(), stock(), docker_registry(), squid());
    let site = Site::new();
    let certificate = site
        .authority
        .certificate("proxy", &format!("IP:{}", Link::SERVER));
    let login = ("me", "right");
    let _proxy = Program::squid(&site.link.server, Site::proxy(), login, Some(&certificate));
    let variables = [
        "HTTPS_PROXY=https://me:right@10.77.0.1:3129",
        "HTTP_PROXY=https://me:right@10.77.0.1:3129",
    ];
    // Trust in the registry, by certs.d or otherwise, does not extend to the proxy.
    let world = site.node();
    for image in [BY_TLS, BY_PLAIN_HTTP] {
        site.run(&world, &variables, &args(image))
            .exits(8)
            .says("proxy `https://10.77.0.1:3129` cannot be reached: ")
            .says("signed by unknown authority");
    }
    world.write(
        "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
        &site.authority.pem(),
    );
    for image in [BY_TLS, BY_PLAIN_HTTP] {
        site.run(&world, &variables, &args(image)).exits(0);
    }
    // One that does not speak TLS at all.
    let world = site.node();
    site.run(&world, &["HTTPS_PROXY=https://10.77.0.1:3128"], &args(BY_TLS))
        .exits(8)
        .says("hint: if the proxy speaks plain HTTP, its URL must begin with `http://`");
}

#[test]
fn a_variable_that_names_no_proxy_ends_the_run_without_being_repeated() {
    needs!(root());
    let world = TestNode::trusting(&[]);
    for (value, says) in [
        ("socks5://me:hunter2@proxy:1080", "only proxies by `http://`"),
        ("http://me:hunter2@proxy:port", "invalid port number"),
        ("http://me:12/hunter2@proxy", "%2F"),
        ("http://me:hunter2%@proxy", "%25"),
    ] {
        let variable = format!("HTTPS_PROXY={value}");
        let wrapper = ["/usr/bin/env", &variable];
        let run = world
            .start_under(&wrapper, "run", &["--image", "registry.test/a:1"])
            .wait()
            .exits(2)
            .says("cannot use the proxy of `HTTPS_PROXY`: ")
            .says(says);
        hides(&run, &world, "hunter2");
    }
    world.write("etc/mco/proxy.env", "http_proxy=ftp://me:hunter2@proxy\n");
    let run = world
        .run(&["--image", "registry.test/a:1"])
        .exits(2)
        .says("cannot use the proxy of `http_proxy` in `")
        .says("etc/mco/proxy.env`: only");
    hides(&run, &world, "hunter2");
}
