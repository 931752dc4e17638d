//! Resolves host names with `hosts` files and the servers in `resolv.conf`, because a static binary cannot load libc's
//! resolver modules (NSS).
//!
//! Answers are not cached. A name is resolved for each connection and not for each request, so a cache would save little. A
//! cached NXDOMAIN (RFC 2308) may be valid for hours, which is hours without a pull where a router's name server sends it
//! while the uplink is down. The files are read each time, because DHCP writes them when a link returns.
//!
//! # Design
//!
//! In a pod there are two resolver configurations: the cluster's name server, which also resolves services, and those of the
//! node, which CRI-O uses. The pod's is asked first. The node's is asked when the pod's has no address for the name, and also
//! when it is silent for [`HEAD_START`]; the first address counts, as with the connections of RFC 8305. A pod's name server
//! that failed where the node's answered is asked second for [`DEMOTED_FOR`], so that not every connection waits for it. An
//! NXDOMAIN is an answer and not a failure.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{Either, select};
use hickory_resolver::config::{
    LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name as DnsName, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{Hosts, TokioResolver};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::time::{Instant, timeout};

/// How long the first name server may be silent before the other is asked too: longer than a forwarding name server takes
/// over a satellite link, and shorter than the time that a connection may take.
const HEAD_START: Duration = Duration::from_secs(2);

/// How long a name server that failed is asked second.
const DEMOTED_FOR: Duration = Duration::from_secs(60);

/// How much of a file is read: more than any `hosts` or `resolv.conf` has.
const FILE_LIMIT: u64 = 4 << 20;

/// The resolver files of one file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsFiles {
    /// hosts(5)
    pub hosts: PathBuf,
    /// resolv.conf(5)
    pub resolv_conf: PathBuf,
}

/// The files of this process.
impl Default for DnsFiles {
    fn default() -> Self {
        Self {
            hosts: "/etc/hosts".into(),
            resolv_conf: "/etc/resolv.conf".into(),
        }
    }
}

/// Resolves host names.
#[derive(Clone, Debug)]
pub(super) struct DnsResolver(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    own: DnsFiles,
    node: Option<DnsFiles>,
    /// Until when the name server of `own` is asked second.
    demoted_until: Mutex<Option<Instant>>,
}

impl DnsResolver {
    /// Resolves with the files of this process, and with the node's where those have no answer.
    pub(super) fn new(own: DnsFiles, node: Option<DnsFiles>) -> Self {
        Self(Arc::new(Shared {
            own,
            node,
            demoted_until: Mutex::default(),
        }))
    }

    /// All addresses of a host.
    pub(super) async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        self.0.look_up(name).await
    }
}

impl Resolve for DnsResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.clone();
        Box::pin(async move {
            let found = resolver.addresses(name.as_str()).await?;
            // The port is the URL's.
            let addresses = found.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

impl Shared {
    async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        let files = || [Some(&self.own), self.node.as_ref()].into_iter().flatten();
        for files in files() {
            let found = in_hosts(&files.hosts, name);
            if !found.is_empty() {
                return Ok(found);
            }
        }
        let (mut texts, mut servers) = (Vec::new(), Vec::new());
        for DnsFiles { resolv_conf, .. } in files() {
            match read(resolv_conf) {
                Ok(text) if texts.contains(&text) => {}
                Ok(text) => {
                    match parse_resolv_conf(&text) {
                        Ok((config, options)) => servers.push(resolver(config, options)?),
                        Err(error) => tracing::debug!("skipped `{}`: {error}", resolv_conf.display()),
                    }
                    texts.push(text);
                }
                Err(error) => tracing::debug!("skipped `{}`: {error}", resolv_conf.display()),
            }
        }
        let mut servers = servers.into_iter();
        match (servers.next(), servers.next()) {
            (Some(own), Some(node)) => self.look_up_with_both(name, &own, &node).await,
            (Some(only), None) => ask(&only, name).await,
            // Without a file, or without a server in it, the one on this machine is asked: resolv.conf(5). Never a server that
            // is not configured, because a registry's name may be a secret of the site.
            (None, _) => {
                let local = NameServerConfig::udp_and_tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
                let config = ResolverConfig::from_parts(None, Vec::new(), vec![local]);
                ask(&resolver(config, ResolverOpts::default())?, name).await
            }
        }
    }

    async fn look_up_with_both(
        &self,
        name: &str,
        own: &TokioResolver,
        node: &TokioResolver,
    ) -> Result<Vec<IpAddr>, NetError> {
        let is_demoted = self.demoted_until().is_some_and(|until| until > Instant::now());
        let (first, second) = if is_demoted { (node, own) } else { (own, node) };
        let (mut first, second) = (pin!(ask(first, name)), pin!(ask(second, name)));
        let (of_first, of_second) = match timeout(HEAD_START, &mut first).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => (Some(error), second.await),
            Err(_) => match select(first, second).await {
                Either::Left((Ok(found), _)) => return Ok(found),
                Either::Left((Err(error), second)) => (Some(error), second.await),
                Either::Right((Ok(found), _)) => (None, Ok(found)),
                Either::Right((Err(error), first)) => match first.await {
                    Ok(found) => return Ok(found),
                    Err(of_first) => (Some(of_first), Err(error)),
                },
            },
        };
        match of_second {
            Ok(found) if is_demoted => {
                *self.demoted_until() = None;
                Ok(found)
            }
            Ok(found) => {
                let why = match of_first {
                    Some(error) if has_no_address(&error) => return Ok(found),
                    Some(error) => error.to_string(),
                    None => "no answer in time".to_owned(),
                };
                tracing::debug!(
                    "the node's name servers are asked first for a while, because the pod's failed: {why}"
                );
                *self.demoted_until() = Some(Instant::now() + DEMOTED_FOR);
                Ok(found)
            }
            Err(of_second) => {
                let of_first = of_first.unwrap_or(NetError::Timeout);
                let (own, node) = match is_demoted {
                    true => (of_second, of_first),
                    false => (of_first, of_second),
                };
                tracing::debug!("`{name}`: the node's name servers failed, too: {node}");
                Err(own)
            }
        }
    }

    fn demoted_until(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.demoted_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(resolver: &TokioResolver, name: &str) -> Result<Vec<IpAddr>, NetError> {
    Ok(resolver.lookup_ip(name).await?.iter().collect())
}

/// Whether it is an answer: the name does not exist, or it has no address.
fn has_no_address(error: &NetError) -> bool {
    let NetError::Dns(DnsError::NoRecordsFound(no)) = error else {
        return false;
    };
    matches!(no.response_code, ResponseCode::NXDomain | ResponseCode::NoError)
}

fn resolver(config: ResolverConfig, mut options: ResolverOpts) -> Result<TokioResolver, NetError> {
    options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
    options.cache_size = 0;
    // Both files were read before.
    options.use_hosts_file = ResolveHosts::Never;
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        .with_options(options)
        .build()
}

/// The addresses of the name in a `hosts` file; none if there is no file.
fn in_hosts(path: &Path, name: &str) -> Vec<IpAddr> {
    let mut hosts = Hosts::default();
    let read = read(path).and_then(|text| hosts.read_hosts_conf(text.as_slice()));
    if let Err(error) = read {
        tracing::debug!("skipped `{}`: {error}", path.display());
    }
    let Ok(name) = DnsName::from_utf8(name) else {
        return Vec::new();
    };
    let lookup = |kind| hosts.lookup_static_host(&Query::query(name.clone(), kind));
    let found = [RecordType::AAAA, RecordType::A].into_iter().filter_map(lookup);
    let addresses = found.flat_map(|lookup| {
        let records = lookup.answers().iter();
        records
            .filter_map(|record| record.data.ip_addr())
            .collect::<Vec<_>>()
    });
    addresses.collect()
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(FILE_LIMIT).read_to_end(&mut text)?;
    Ok(text)
}
