//! Tests names that do not resolve for a while.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::time::Duration;

use super::image;
use crate::compare::inconsistencies;
use crate::link::{NameServer, Namespace, Reply};
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::TestNode;

const NAME: &str = "registry.test:5000";

/// Puts a file over `/etc/resolv.conf`, which belongs to the machine, for this process alone.
const RESOLV_CONF: &str = r#"mount --bind "$0" /etc/resolv.conf && exec "$@""#;

#[test]
fn names_that_are_not_resolved_for_a_while_are_asked_for_again() {
    needs!(root(), links());
    // "No such name" comes with the zone's word that this holds for an hour.
    for reply in [Reply::Failure, Reply::Silence, Reply::NoSuchName] {
        let namespace = Namespace::new().unwrap();
        let listener = namespace.within(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 5000)).unwrap());
        let socket = namespace.within(|| UdpSocket::bind("127.0.0.53:53").unwrap());
        let (registry, names) = (Registry::on(listener), NameServer::on(socket, reply));
        registry.push("image", Some("latest"), &image());
        let world = TestNode::trusting(&[NAME.to_owned()]);
        world.write(
            "resolv.conf",
            "nameserver 127.0.0.53\noptions timeout:1 attempts:1\n",
        );
        let conf = world.host().join("resolv.conf");
        let wrapper = [
            "/usr/bin/unshare",
            "--mount",
            "--propagation=private",
            "/bin/sh",
            "-c",
            RESOLV_CONF,
            conf.to_str().unwrap(),
        ];
        let image = format!("{NAME}/image:latest");
        let run = namespace.within(|| world.start_under(&wrapper, "run", &["--image", &image]));
        while names.asked() == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(600));
        names.say(Reply::Address(Ipv4Addr::LOCALHOST));
        let run = run.wait();
        assert_eq!(run.code, 0, "{reply:?}: {run}");
        assert!(run.took < Duration::from_secs(20), "{reply:?}: {run}");
        assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
    }
}
