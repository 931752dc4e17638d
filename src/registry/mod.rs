//! Registries: from a reference to bytes, over whatever mirrors, logins and faults lie between.
//!
//! ```text
//! RegistriesConf ─full_name→ Reference           what a name without registry means  registries_conf, short_names
//! Registries ── sources ──→ PullSource*          registries.conf: mirrors first      registries_conf, mirrors
//!      ├────── resolve ──→ ResolvedImage         manifests and config, verified      resolve
//!      ├────── attempts ─→ Attempts              the one retry loop                  retry, rates, watch
//!      ├────── read_range → Bytes                 a few of a blob's, unverified       part
//!      └────── open_blob → BlobStream            one answer, its range checked       blob
//!                              │
//!                            Client              one per registry: scheme, login     client, challenge, auth
//!                              │                 which pull secret                   credentials, auth_file
//!                            Http                limits, redirects, trust            http, trouble, tls, certs_d
//!                              │                 over how many connections  lane
//!                              │                 which way, to which address         proxy, no_proxy, tunnel, names
//!                            RateLimiter         how fast, all together            limit
//! ```
//!
//! The bytes of a [`BlobStream`] are not verified: who receives them hashes them (`spool`). Nothing here knows what a
//! release or an operator is.

mod auth_challenge;
mod auth_file;
mod bearer_token;
mod blob_connection;
mod blob_stream;
mod certs_d;
mod credentials;
mod dns;
mod error;
mod error_response;
mod http_client;
mod mirror_speed;
mod mirrors;
mod no_proxy;
mod proxy;
mod rate_limit;
mod read_range;
mod registries_conf;
#[cfg(test)]
mod registries_conf_corpus;
mod registry_client;
mod resolve;
mod retry;
mod short_names;
mod tls;
mod transport_error;
mod tunnel_error;
mod watchdog;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::oci::Reference;
use crate::report::Observer;

pub use blob_stream::{BlobStream, Wanted};
pub use credentials::{Credential, Credentials, CredentialsError, Origin};
pub use dns::DnsFiles;
pub use error::{Kind, Message, RegistryError};
pub use http_client::IDLE_TIMEOUT;
pub use mirrors::PullSource;
pub use no_proxy::NoProxy;
pub use proxy::{Proxies, Proxy, ProxyError};
pub use rate_limit::{
    LimitRate, LimitRateError, LimitSettings, Rate, RateError, RateLimiter, TransferPermit,
};
pub use registries_conf::{ConfText, RegistriesConf, RegistriesConfError};
pub use retry::Attempts;
pub use short_names::ShortNameError;
pub use tls::{ClusterAuthorities, Pem, SystemRoots};

use dns::DnsResolver;
use http_client::{Http, Way};
use rate_limit::SocksProxy;
use registry_client::Client;
use retry::RetryContext;
use tls::Trust;

/// What registries are to be reached with; `settings` fills it in.
#[derive(Clone, Debug)]
pub struct RegistrySettings {
    /// `registries.conf` first, an empty text if there is none, then its drop-ins in the order in which they count.
    pub registries_conf: Vec<ConfText>,
    /// Pull secrets, asked in this order. All must exist.
    pub auth_files: Vec<PathBuf>,
    /// Whom the system trusts.
    pub system_roots: SystemRoots,
    /// Whom we trust beside that.
    pub ca_certificates: Vec<Pem>,
    /// And whom the cluster trusts: what of these cannot be used is passed over, for the node may do without.
    pub cluster_authorities: Vec<ClusterAuthorities>,
    /// `certs.d` directories; the first that has one for a host is taken.
    pub certs_dirs: Vec<PathBuf>,
    /// What is reached through which proxy.
    pub proxies: Proxies,
    /// Where names are looked up.
    pub dns_files: DnsFiles,
    /// And where else if that does not help: the node's files, if they are not the same.
    pub node_dns_files: Option<DnsFiles>,
    /// When to stop trying although nothing is wrong for good: after so long in which no byte came. Never, if there is
    /// a deadline instead.
    pub give_up_after: Option<Duration>,
    /// How long a registry may be silent before the connection is dropped.
    pub idle_timeout: Duration,
    /// How much all of them together may bring in a second.
    pub limit: LimitSettings,
}

impl Default for RegistrySettings {
    fn default() -> Self {
        Self {
            registries_conf: Vec::new(),
            auth_files: Vec::new(),
            system_roots: SystemRoots::default(),
            ca_certificates: Vec::new(),
            cluster_authorities: Vec::new(),
            certs_dirs: Vec::new(),
            proxies: Proxies::default(),
            dns_files: DnsFiles::default(),
            node_dns_files: None,
            give_up_after: None,
            idle_timeout: IDLE_TIMEOUT,
            limit: LimitSettings::default(),
        }
    }
}

/// All registries, as this node is configured to see them.
#[derive(Debug)]
pub struct Registries {
    conf: RegistriesConf,
    credentials: Credentials,
    trust: Trust,
    proxies: Arc<Proxies>,
    names: DnsResolver,
    idle_timeout: Duration,
    limit: Arc<RateLimiter>,
    forwarder: Option<Arc<SocksProxy>>,
    pace: Arc<RetryContext>,
    /// By domain and `insecure`: the same host may be a secure registry and an insecure mirror.
    clients: Mutex<HashMap<(String, bool), Arc<Client>>>,
}

impl Registries {
    /// Reads the configuration and the pull secrets. Sends nothing.
    pub fn new(settings: RegistrySettings, observer: Arc<dyn Observer>) -> Result<Self, RegistryError> {
        let conf = RegistriesConf::parse(&settings.registries_conf)?;
        let credentials = Credentials::read(&settings.auth_files)?;
        let lowest = settings.limit.rate.lowest();
        let (proxies, limit) = (
            Arc::new(settings.proxies),
            Arc::new(RateLimiter::new(settings.limit)),
        );
        let names = DnsResolver::new(settings.dns_files, settings.node_dns_files);
        let forwarder = match limit.is_limited() {
            true => Some(Arc::new(
                SocksProxy::start(&limit, &names, &proxies).map_err(RegistryError::Limit)?,
            )),
            false => None,
        };
        Ok(Self {
            credentials: credentials.with_helpers(conf.credential_helpers.clone()),
            conf,
            trust: Trust::new(
                &settings.system_roots,
                &settings.ca_certificates,
                &settings.cluster_authorities,
                settings.certs_dirs,
                &proxies,
            )?,
            proxies,
            names,
            idle_timeout: settings.idle_timeout,
            limit,
            forwarder,
            pace: Arc::new(RetryContext::new(observer, settings.give_up_after, lowest)),
            clients: Mutex::default(),
        })
    }

    /// Where to pull `reference` from, best first. A name without a registry is an error: those of the version spec were
    /// completed by then, and a release or an operator that has one is not as it should be.
    pub fn sources(&self, reference: &Reference) -> Result<Vec<PullSource>, RegistryError> {
        if reference.is_short() {
            return Err(RegistryError::NoRegistry(reference.to_string()));
        }
        Ok(self.conf.pull_sources(reference)?)
    }

    /// Begins an operation that may take several attempts. `what` is for messages, `images` are those that need it.
    pub fn attempts(&self, what: String, images: Vec<String>, sources: Vec<PullSource>) -> Attempts {
        Attempts::new(&self.pace, what, images, sources)
    }

    /// What one connection to the source's registry brings, in bytes a second; 0 if nobody knows.
    pub fn bytes_per_second(&self, source: &PullSource) -> u64 {
        self.pace.rates.pace(source.reference.domain())
    }

    /// What bounds the rate of all of them together.
    pub fn limit(&self) -> Arc<RateLimiter> {
        Arc::clone(&self.limit)
    }

    fn client(&self, source: &PullSource) -> Result<Arc<Client>, RegistryError> {
        let domain = source.reference.domain();
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (domain.to_owned(), source.insecure);
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        let tls = self.trust.config(domain, source.insecure)?;
        let way = Way {
            proxies: Arc::clone(&self.proxies),
            names: self.names.clone(),
            limit: self.limit(),
            forwarder: self.forwarder.clone(),
        };
        let http = Http::new(tls, way, source.insecure, self.idle_timeout)
            .map_err(|error| http_client::transport(error, &format!("registry `{domain}`")))?;
        let client = Arc::new(Client::new(domain, source.insecure, http));
        Ok(clients.entry(key).or_insert(client).clone())
    }
}
