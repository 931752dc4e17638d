//! Names of hosts, by `/etc/hosts` and the name servers of `/etc/resolv.conf`: a static binary has no NSS.
//!
//! Nothing is remembered. A name is looked up for each connection and not for each request, so there is nothing to save;
//! and a "no such name" may be kept for as long as its zone says, hours often, which is hours without a pull where a
//! router's name server says it while the uplink is down. Both files are read each time, for DHCP writes them when a link
//! comes back.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Looks names up.
pub(super) struct Names;

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = resolver()?.lookup_ip(name.as_str()).await?;
            // The port is the URL's.
            let addresses: Vec<_> = found.iter().map(|address| SocketAddr::new(address, 0)).collect();
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Without a file, or without a server in it, the one on this machine is asked: resolv.conf(5). Never one that nobody
/// configured, for a registry's name may be a secret of the site.
fn resolver() -> Result<TokioResolver, NetError> {
    let mut builder = TokioResolver::builder_tokio().unwrap_or_else(|error| {
        tracing::debug!("no name server is configured: {error}");
        let local = NameServerConfig::udp_and_tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![local]);
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
    });
    let options = builder.options_mut();
    options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
    options.cache_size = 0;
    builder.build()
}
