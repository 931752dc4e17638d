//! Builds a site whose only way out is a proxy.
//!
//! ```text
//!   namespace `client`              namespace `server`
//!   the product      10.77.0.2 ═══ 10.77.0.1:3128   a proxy
//!   a registry :5001               10.88.0.1:5000   docker-registry by TLS, with a password; to the proxy `registry.test`
//!   no name server                 10.88.0.1:5001   a registry in this process, by plain HTTP
//!                                  10.88.0.1 has no route from the client
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use super::certificates::Authority;
use super::servers::{Program, REGISTRY_LOGIN};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::link::{Link, Quality};
use crate::registry::Registry;
use crate::test_node::{Run, Running, TestNode};

/// Where no packet of the client's gets by itself.
pub(super) const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);

/// The image at docker-registry, by a name that only the proxy knows.
pub(super) const BY_TLS: &str = "registry.test:5000/team/image:latest";
/// The same at the registry with plain HTTP.
pub(super) const BY_PLAIN_HTTP: &str = "registry.test:5001/team/image:latest";

/// Nothing of it is on the machine.
pub(super) struct Site {
    pub(super) link: Link,
    pub(super) authority: Authority,
    /// With plain HTTP, outside.
    pub(super) plain: Registry,
    _docker: Program,
}

/// A few layers of some size.
pub(super) fn image() -> Image {
    let layer = |seed| {
        let text = format!("file /data{seed} 0644 0:0 random=300000 seed={seed}");
        Layer::of(&text, Compression::Gzip)
    };
    let layers = (1..4).map(layer).collect();
    Image::build("image", Format::Docker, node_architecture(), layers, |_, _| {})
}

impl Site {
    pub(super) fn new() -> Self {
        let link = Link::new(Quality {
            rate: 1_000_000_000,
            delay: Duration::from_millis(1),
            loss: 0.0,
        })
        .expect("two namespaces");
        let outside = format!("{OUTSIDE}/32");
        link.server
            .command(&["ip", "address", "add", &outside, "dev", "lo"])
            .expect("an address more");
        let authority = Authority::new("site");
        let subjects = format!("DNS:registry.test,IP:{OUTSIDE},IP:{}", Link::SERVER);
        let certificate = authority.certificate("registry", &subjects);
        let docker = Program::docker_registry(&link.server, (OUTSIDE, 5000).into(), &certificate);
        let listener = link.server.within(|| TcpListener::bind((OUTSIDE, 5001)));
        let plain = Registry::on(listener.expect("a port of a namespace of our own"));
        plain.push("team/image", Some("latest"), &image());
        let pusher = TestNode::trusting(&[format!("{OUTSIDE}:5001")]);
        let (from, to) = [5001, 5000]
            .map(|port| format!("docker://{OUTSIDE}:{port}/team/image:latest"))
            .into();
        let copy = ["copy", "--dest-creds", REGISTRY_LOGIN, "--dest-tls-verify=false"];
        let copied = link
            .server
            .within(|| pusher.skopeo(&[&copy[..], &["--src-tls-verify=false", &from, &to]].concat()));
        copied.ok();
        Self {
            link,
            authority,
            plain,
            _docker: docker,
        }
    }

    /// Where a proxy listens.
    pub(super) fn proxy() -> SocketAddr {
        (Link::SERVER, 3128).into()
    }

    /// A node that knows what it takes to log in at docker-registry and to trust it.
    pub(super) fn node(&self) -> TestNode {
        let world = TestNode::trusting(&["registry.test:5001".into(), Self::near().to_string()]);
        world.write(
            "etc/containers/certs.d/registry.test:5000/ca.crt",
            &self.authority.pem(),
        );
        world.pull_secret("registry.test:5000", REGISTRY_LOGIN);
        world
    }

    /// Where a registry on the node's side listens.
    pub(super) fn near() -> SocketAddr {
        (IpAddr::V4(Link::CLIENT), 5001).into()
    }

    /// The product on a node of this site, with these variables, to its end.
    pub(super) fn run(&self, world: &TestNode, variables: &[&str], args: &[&str]) -> Run {
        self.start(world, variables, args).wait()
    }

    /// The same, not waited for.
    pub(super) fn start(&self, world: &TestNode, variables: &[&str], args: &[&str]) -> Running {
        let wrapper = [&["/usr/bin/env"], variables].concat();
        self.link
            .client
            .within(|| world.start_under(&wrapper, "run", args))
    }
}
