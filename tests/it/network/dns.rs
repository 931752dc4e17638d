//! Tests name resolution when the pod's files and the node's files differ.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::time::Duration;

use super::site;
use crate::compare::inconsistencies;
use crate::link::{NameServer, Namespace, Reply};
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

const NAME: &str = "registry.test:5000";

/// The pod's files over those of the machine, for this process alone.
const POD: &str = r#"
mount --bind "$0/pod-resolv.conf" /etc/resolv.conf && mount --bind "$0/pod-hosts" /etc/hosts && exec "$@"
"#;

/// A registry in a namespace, where the pod's name server is at 127.0.0.53 and the node's at 127.0.0.54.
struct Pod {
    namespace: Namespace,
    _registry: Registry,
}

impl Pod {
    fn new() -> Self {
        let namespace = Namespace::new().unwrap();
        let listener = namespace.within(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 5000)).unwrap());
        let registry = Registry::on(listener);
        registry.push("image", Some("latest"), &site::image());
        Self {
            namespace,
            _registry: registry,
        }
    }

    fn name_server(&self, address: &str, reply: Reply) -> NameServer {
        let socket = self.namespace.within(|| UdpSocket::bind(address).unwrap());
        NameServer::on(socket, reply)
    }

    /// The product on a node whose own resolv.conf, and perhaps hosts, are written already.
    fn run(&self, world: &TestNode, resolv_conf: &str) -> Run {
        let dir = world.out("pod");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("pod-resolv.conf"), resolv_conf).unwrap();
        std::fs::write(dir.join("pod-hosts"), "127.0.0.1 localhost\n").unwrap();
        let wrapper = [
            "/usr/bin/unshare",
            "--mount",
            "--propagation=private",
            "/bin/sh",
            "-c",
            POD,
            dir.to_str().unwrap(),
        ];
        let image = format!("{NAME}/image:latest");
        let args = ["--image", &image, "--give-up-after", "1s"];
        let run = self
            .namespace
            .within(|| world.start_under(&wrapper, "run", &args));
        run.wait()
    }
}

const OF_POD: &str = "search a.test b.test\nnameserver 127.0.0.53\noptions ndots:5\n";
const OF_NODE: &str = "nameserver 127.0.0.54\n";
const HERE: Reply = Reply::Address(Ipv4Addr::LOCALHOST);

#[test]
fn what_the_pods_name_server_does_not_say_is_asked_where_the_node_asks() {
    needs!(root(), links());
    let pod = Pod::new();
    let own = pod.name_server("127.0.0.53:53", HERE);
    let node = pod.name_server("127.0.0.54:53", Reply::NoSuchName);
    let world = || {
        let world = TestNode::trusting(&[NAME.to_owned()]);
        world.write("etc/resolv.conf", OF_NODE);
        world
    };
    // One that answers is all that is asked.
    pod.run(&world(), OF_POD).exits(0);
    assert_eq!(node.asked(), 0);

    node.say(HERE);
    for reply in [Reply::NoSuchName, Reply::Failure, Reply::Silence] {
        own.say(reply);
        let world = world();
        let run = pod.run(&world, OF_POD).exits(0);
        // One head start of two seconds, not one for each connection.
        assert!(run.took < Duration::from_secs(8), "{reply:?}: {run}");
        assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
    }
    // A file without a server in it, and none to ask at the usual place.
    let before = own.asked();
    pod.run(&world(), "search a.test\n").exits(0);
    assert_eq!(own.asked(), before);

    // No name server has it.
    own.say(Reply::NoSuchName);
    node.say(Reply::NoSuchName);
    pod.run(&world(), OF_POD)
        .exits(1)
        .says("its name is not resolved: no records found");
}

#[test]
fn the_nodes_hosts_file_counts_where_the_pods_has_nothing() {
    needs!(root(), links());
    let pod = Pod::new();
    let _own = pod.name_server("127.0.0.53:53", Reply::NoSuchName);
    let world = TestNode::trusting(&[NAME.to_owned()]);
    pod.run(&world, "nameserver 127.0.0.53\n").exits(1);
    world.write(
        "etc/hosts",
        "# ours\n10.0.0.1 other.test\n127.0.0.1 that.test registry.test\n",
    );
    pod.run(&world, "nameserver 127.0.0.53\n").exits(0);
}
