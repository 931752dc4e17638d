//! Sets up the network: a registry in one network namespace, the node in another, and a cable or a bad link between them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Duration;

use crate::link::{Link, Namespace, Quality};
use crate::stock::docker_registry::DockerRegistry;

/// The address of the registry, on every site.
pub(crate) const REGISTRY: &str = "10.77.0.1:5000";

/// A registry and a node. Dropped in this order, the registry first.
pub(crate) struct Site {
    _registry: DockerRegistry,
    wire: Wire,
}

enum Wire {
    /// As fast as the machine.
    Cable {
        client: Namespace,
        _server: Namespace,
    },
    Link(Link),
}

impl Site {
    /// With a registry that has the content of a directory.
    pub(crate) fn new(content: &Path, quality: Option<Quality>) -> anyhow::Result<Self> {
        let start = || DockerRegistry::keeping(content, REGISTRY);
        let (registry, wire) = match quality {
            None => {
                let (client, server) = (Namespace::new()?, Namespace::new()?);
                connect(&client, &server)?;
                (
                    server.within(start),
                    Wire::Cable {
                        client,
                        _server: server,
                    },
                )
            }
            Some(quality) => {
                let link = Link::new(quality)?;
                (link.server.within(start), Wire::Link(link))
            }
        };
        Ok(Self {
            _registry: registry,
            wire,
        })
    }

    /// Where the node is.
    pub(crate) fn client(&self) -> &Namespace {
        match &self.wire {
            Wire::Cable { client, .. } => client,
            Wire::Link(link) => &link.client,
        }
    }

    /// Bytes that the node received so far, with all headers.
    pub(crate) fn received(&self) -> anyhow::Result<u64> {
        Ok(match &self.wire {
            Wire::Cable { client, .. } => client.received("eth0")?,
            Wire::Link(link) => link.received()?,
        })
    }
}

/// A cable between two namespaces, `eth0` at either end.
fn connect(client: &Namespace, server: &Namespace) -> io::Result<()> {
    let held = server.within(|| File::open("/proc/thread-self/ns/net"))?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
    let pair = [
        "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &path,
    ];
    client.command(&pair)?;
    for (namespace, address) in [(client, Link::CLIENT), (server, Link::SERVER)] {
        namespace.command(&["ip", "address", "add", &format!("{address}/24"), "dev", "eth0"])?;
        namespace.command(&["ip", "link", "set", "eth0", "up"])?;
    }
    Ok(())
}

/// `20Mbit,40ms` or `100Mbit,150ms,0.0001`: rate, round-trip time, share of packets lost in each direction.
pub(crate) fn quality(text: &str) -> anyhow::Result<Quality> {
    let mut words = text.split(',');
    let mut word = |unit: &str| {
        let word = words.next()?.strip_suffix(unit)?;
        word.parse::<f64>().ok()
    };
    let all = (word("Mbit"), word("ms"), word(""));
    let (Some(rate), Some(round_trip)) = (all.0, all.1) else {
        anyhow::bail!("`{text}` is not like `20Mbit,40ms,0.0001`");
    };
    Ok(Quality {
        rate: (rate * 1e6) as u64,
        delay: Duration::from_secs_f64(round_trip / 2e3),
        loss: all.2.unwrap_or_default(),
    })
}
