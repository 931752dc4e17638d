//! DnsResolver of hosts, by `hosts` files and the name servers of `resolv.conf`: a static binary has no NSS.
//!
//! No answer is remembered. A name is looked up for each connection and not for each request, so there is nothing to save;
//! and a "no such name" may be kept for as long as its zone says, hours often, which is hours without a pull where a
//! router's name server says it while the uplink is down. The files are read each time, for DHCP writes them when a link
//! comes back.
//!
//! # Design
//!
//! In a pod there are two opinions: the cluster's name server, which knows services too, and those of the node, which
//! CRI-O asks. The cluster's is asked first. The node's is asked when the other has no address for the name, and also when it
//! is silent for [`HEAD_START`]; the first address counts. A cluster's name server that did not do its work, where the node's
//! did, comes second for [`DISTRUST`], so that not every connection waits for it. A plain "no such name" is no reason for
//! distrust.

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

/// How long the one that is asked first may be silent until the other is asked too: longer than a forwarding name server
/// takes over a satellite link, and short of the time that a connection may take.
const HEAD_START: Duration = Duration::from_secs(2);

/// How long a name server that did not do its work is asked second.
const DISTRUST: Duration = Duration::from_secs(60);

/// More than any `hosts` or `resolv.conf`.
const FILE_LIMIT: u64 = 4 << 20;

/// The files of one file system that say where names are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsFiles {
    /// hosts(5)
    pub hosts: PathBuf,
    /// resolv.conf(5)
    pub resolv_conf: PathBuf,
}

/// Our own.
impl Default for DnsFiles {
    fn default() -> Self {
        Self {
            hosts: "/etc/hosts".into(),
            resolv_conf: "/etc/resolv.conf".into(),
        }
    }
}

/// Looks names up.
#[derive(Clone, Debug)]
pub(super) struct DnsResolver(Arc<Opinions>);

#[derive(Debug)]
struct Opinions {
    own: DnsFiles,
    node: Option<DnsFiles>,
    /// Until when our own name server is asked second.
    distrusted: Mutex<Option<Instant>>,
}

impl DnsResolver {
    /// By our own files, and by the node's where these do not help.
    pub(super) fn new(own: DnsFiles, node: Option<DnsFiles>) -> Self {
        Self(Arc::new(Opinions {
            own,
            node,
            distrusted: Mutex::default(),
        }))
    }

    /// All addresses of a host.
    pub(super) async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        self.0.look_up(name).await
    }
}

impl Resolve for DnsResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let names = self.clone();
        Box::pin(async move {
            let found = names.addresses(name.as_str()).await?;
            // The port is the URL's.
            let addresses = found.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

impl Opinions {
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
                        Err(error) => tracing::debug!("no use of `{}`: {error}", resolv_conf.display()),
                    }
                    texts.push(text);
                }
                Err(error) => tracing::debug!("no use of `{}`: {error}", resolv_conf.display()),
            }
        }
        let mut servers = servers.into_iter();
        match (servers.next(), servers.next()) {
            (Some(own), Some(node)) => self.by_either(name, &own, &node).await,
            (Some(only), None) => ask(&only, name).await,
            // Without a file, or without a server in it, the one on this machine is asked: resolv.conf(5). Never one that
            // nobody configured, for a registry's name may be a secret of the site.
            (None, _) => {
                let local = NameServerConfig::udp_and_tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
                let config = ResolverConfig::from_parts(None, Vec::new(), vec![local]);
                ask(&resolver(config, ResolverOpts::default())?, name).await
            }
        }
    }

    async fn by_either(
        &self,
        name: &str,
        own: &TokioResolver,
        node: &TokioResolver,
    ) -> Result<Vec<IpAddr>, NetError> {
        let is_distrusted = self.distrusted().is_some_and(|until| until > Instant::now());
        let (first, second) = if is_distrusted { (node, own) } else { (own, node) };
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
            Ok(found) if is_distrusted => {
                *self.distrusted() = None;
                Ok(found)
            }
            Ok(found) => {
                let why = match of_first {
                    Some(error) if says_no(&error) => return Ok(found),
                    Some(error) => error.to_string(),
                    None => "it is silent".to_owned(),
                };
                tracing::debug!("the node's name servers are asked first for a while: of our own, {why}");
                *self.distrusted() = Some(Instant::now() + DISTRUST);
                Ok(found)
            }
            Err(of_second) => {
                let of_first = of_first.unwrap_or(NetError::Timeout);
                let (own, node) = match is_distrusted {
                    true => (of_second, of_first),
                    false => (of_first, of_second),
                };
                tracing::debug!("`{name}`, of the node's name servers: {node}");
                Err(own)
            }
        }
    }

    fn distrusted(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.distrusted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(resolver: &TokioResolver, name: &str) -> Result<Vec<IpAddr>, NetError> {
    Ok(resolver.lookup_ip(name).await?.iter().collect())
}

/// Whether it is an answer: there is no such name, or it has no address.
fn says_no(error: &NetError) -> bool {
    let NetError::Dns(DnsError::NoRecordsFound(no)) = error else {
        return false;
    };
    matches!(no.response_code, ResponseCode::NXDomain | ResponseCode::NoError)
}

fn resolver(config: ResolverConfig, mut options: ResolverOpts) -> Result<TokioResolver, NetError> {
    options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
    options.cache_size = 0;
    // They were read.
    options.use_hosts_file = ResolveHosts::Never;
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        .with_options(options)
        .build()
}

/// What a `hosts` file says, if there is one and it says anything.
fn in_hosts(path: &Path, name: &str) -> Vec<IpAddr> {
    let mut hosts = Hosts::default();
    let read = read(path).and_then(|text| hosts.read_hosts_conf(text.as_slice()));
    if let Err(error) = read {
        tracing::debug!("no use of `{}`: {error}", path.display());
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
