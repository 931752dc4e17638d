//! Makes links between a node and its registry that are bad on purpose.
//!
//! ```text
//!   namespace `client`                this process                 namespace `server`
//!   the product                                                    a registry
//!   tun0 10.77.0.2 ──tbf──→ ═══ Forwarder: delay, loss, outage ═══ ←──tbf── tun0 10.77.0.1
//! ```
//!
//! [`Link`] is IP: two network namespaces, a TUN device in each, `tc tbf` at both ends for the rate, and a forwarder between
//! them for what the kernels at hand have no netem for. [`Proxy`] is TCP: it cuts, resets, stalls and holds connections on
//! loopback. [`NameServer`] is DNS with a mind of its own.
//!
//! Nothing has a name on the machine: the namespaces live as long as the descriptors that this process holds, and their
//! devices with them, so a test that panics or is killed leaves nothing behind.
//!
//! A sibling of nothing: whatever crate includes it needs no other helper.

mod forwarder;
mod name_server;
mod namespace;
mod proxy;

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use forwarder::Forwarder;
pub(crate) use name_server::{NameServer, Reply};
pub(crate) use namespace::Namespace;
pub(crate) use proxy::{Harm, Proxy};

/// The largest IP packet.
const MTU: u32 = 1500;

/// How the link is when it is up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quality {
    /// Bits a second, each way.
    pub(crate) rate: u64,
    /// One way.
    pub(crate) delay: Duration,
    /// The share of packets that get lost, from 0 to 1.
    pub(crate) loss: f64,
}

/// A link between two namespaces.
pub(crate) struct Link {
    /// Where the product runs.
    pub(crate) client: Namespace,
    /// Where the registry listens.
    pub(crate) server: Namespace,
    forwarder: Forwarder,
}

impl Link {
    /// The registry's end.
    pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
    /// The product's end.
    pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

    /// A link that is up.
    pub(crate) fn new(quality: Quality) -> io::Result<Self> {
        let (client, server) = (Namespace::new()?, Namespace::new()?);
        let ends = [
            (&client, Self::CLIENT, Self::SERVER),
            (&server, Self::SERVER, Self::CLIENT),
        ];
        let mut devices = Vec::new();
        for (namespace, own, peer) in ends {
            devices.push(namespace.tun()?);
            let (mtu, rate) = (MTU.to_string(), format!("{}bit", quality.rate));
            let (own, peer) = (own.to_string(), peer.to_string());
            namespace.command(&["ip", "address", "add", &own, "peer", &peer, "dev", "tun0"])?;
            namespace.command(&["ip", "link", "set", "tun0", "mtu", &mtu, "up"])?;
            // A burst of 40 packets; a queue as deep as a small router's.
            let shaped = ["tc", "qdisc", "add", "dev", "tun0", "root", "tbf", "rate", &rate];
            namespace.command(&[&shaped[..], &["burst", "64kb", "latency", "100ms"]].concat())?;
        }
        let [near, far] = <[_; 2]>::try_from(devices).expect("two ends");
        Ok(Self {
            client,
            server,
            forwarder: Forwarder::start(near, far, quality.delay, quality.loss),
        })
    }

    /// Drops all packets from now on, without an error for either side.
    pub(crate) fn cut(&self) {
        self.forwarder.set_up(false);
    }

    /// It passes again.
    pub(crate) fn end_faults(&self) {
        self.forwarder.set_up(true);
    }

    /// Bytes that arrived at the client's device so far, with the headers of IP and TCP.
    pub(crate) fn received(&self) -> io::Result<u64> {
        self.client.received("tun0")
    }
}
