//! Parses `NO_PROXY`, the hosts that are reached without a proxy, as Go (`golang.org/x/net/http/httpproxy`) and so CRI-O do.
//!
//! ```text
//! *                          everything
//! 10.0.0.0/30, 2001:db8::/64 addresses of a network, at any port
//! 10.1.2.3, [2001:db8::1]:80 one address, at any port or at this one
//! example.com:5000           the domain and all below it, at any port or at this one
//! .example.com, *.example.com   all below it
//! ```
//!
//! Loopback is never reached through a proxy. A name is compared as it is written in the image's reference and not resolved,
//! so `10.0.0.0/8` does not match a registry with a host name. Any other entry matches nothing, as in Go.

use std::net::IpAddr;

use reqwest::Url;

/// A parsed list.
#[derive(Clone, Debug, Default)]
pub struct NoProxy {
    everything: bool,
    networks: Vec<Network>,
    addresses: Vec<(IpAddr, Port)>,
    domains: Vec<Domain>,
}

/// `10.0.0.0/8`
#[derive(Clone, Debug)]
struct Network {
    address: IpAddr,
    /// Bits that count.
    prefix: u32,
}

/// As text, because Go compares it as text; empty for any port.
#[derive(Clone, Debug)]
struct Port(String);

#[derive(Clone, Debug)]
struct Domain {
    /// With a dot before it.
    suffix: String,
    /// The domain itself too, not only what is below.
    itself: bool,
    port: Port,
}

impl NoProxy {
    /// Reads a list whose parts are separated by commas.
    pub fn parse(text: &str) -> Self {
        let mut list = Self::default();
        for entry in text.split(',') {
            let entry = entry.trim().to_lowercase();
            if entry == "*" {
                list.everything = true;
            } else if let Some(network) = Network::parse(&entry) {
                list.networks.push(network);
            } else {
                list.add_host(&entry);
            }
        }
        list
    }

    fn add_host(&mut self, entry: &str) {
        let (host, port) = split_port(entry).unwrap_or((entry, ""));
        let port = Port(port.to_owned());
        if let Ok(address) = host.parse::<IpAddr>() {
            self.addresses.push((address.to_canonical(), port));
            return;
        }
        let host = match host.strip_prefix("*.") {
            Some(_) => &host[1..],
            None => host,
        };
        let (itself, name) = match host.strip_prefix('.') {
            Some(name) => (false, name),
            None if host.is_empty() => return,
            None => (true, host),
        };
        self.domains.push(Domain {
            suffix: format!(".{}", ascii(name)),
            itself,
            port,
        });
    }

    /// Whether `url`, which has a host, is reached without a proxy.
    pub(super) fn covers(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = url
            .port_or_known_default()
            .map(|port| port.to_string())
            .unwrap_or_default();
        let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        if host == "localhost" || address.is_some_and(|address| address.is_loopback()) || self.everything {
            return true;
        }
        match address {
            Some(address) => {
                self.networks.iter().any(|network| network.contains(address))
                    || self
                        .addresses
                        .iter()
                        .any(|(one, at)| *one == address && at.is(&port))
            }
            None => self
                .domains
                .iter()
                .any(|domain| domain.contains(host) && domain.port.is(&port)),
        }
    }
}

impl Network {
    fn parse(entry: &str) -> Option<Self> {
        let (address, prefix) = entry.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        if prefix.is_empty() || !prefix.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let prefix: u32 = prefix.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if prefix > bits {
            return None;
        }
        // `::ffff:10.0.0.0/104` is 10.0.0.0/8; with fewer bits than the mark has it is a network of IPv6.
        Some(match (address, address.to_canonical()) {
            (IpAddr::V6(_), canonical @ IpAddr::V4(_)) if prefix >= 96 => Self {
                address: canonical,
                prefix: prefix - 96,
            },
            (address, _) => Self { address, prefix },
        })
    }

    fn contains(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(ours), IpAddr::V4(other)) => {
                let differ = ours.to_bits() ^ other.to_bits();
                differ.checked_shr(32 - self.prefix).unwrap_or(0) == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(other)) => {
                let differ = ours.to_bits() ^ other.to_bits();
                differ.checked_shr(128 - self.prefix).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl Port {
    fn is(&self, other: &str) -> bool {
        self.0.is_empty() || self.0 == other
    }
}

impl Domain {
    fn contains(&self, host: &str) -> bool {
        host.ends_with(&self.suffix) || (self.itself && host == &self.suffix[1..])
    }
}

/// Host and port, if there is a port; an IPv6 address has one only with brackets.
fn split_port(entry: &str) -> Option<(&str, &str)> {
    let (host, port) = entry.rsplit_once(':')?;
    match host.strip_prefix('[') {
        Some(inside) => Some((inside.strip_suffix(']')?, port)),
        None if host.contains(':') => None,
        None => Some((host, port)),
    }
}

/// The name in the form of URLs: `示例.com` is `xn--fsq092h.com`.
fn ascii(name: &str) -> String {
    if name.is_ascii() {
        return name.to_owned();
    }
    let url = Url::parse(&format!("http://{name}/"));
    let host = url.ok().and_then(|url| url.host_str().map(str::to_owned));
    host.unwrap_or_else(|| name.to_owned())
}
