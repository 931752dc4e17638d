//! Pulls manifests and blobs from registries, over their mirrors, with logins, certificates, proxies and retries.
//!
//! ```text
//! RegistriesConf ─full_name→ Reference            completes names without a registry    registries_conf, short_names
//! Registries ── sources ───→ PullSource*          from registries.conf, mirrors first   registries_conf, mirrors
//!      ├────── resolve ───→ Resolved              index, manifest and config, verified  resolve
//!      ├────── signatures → Signature*            where registries.d states they are    signatures, registries_d,
//!      │                                                                                lookaside, attachments
//!      ├────── manifest_content → Content         any manifest, verified but not parsed  resolve
//!      ├────── referrers ─→ Referrer*             by the API or by the tag              referrers, referrers_index
//!      ├────── upload ────→ Upload                blobs and manifests to a repository   upload, upload_body
//!      ├────── get_signature_file → Bytes         one file by its URL                   signature_file
//!      ├────── media_signatures → Signature*      what media have of them                media_signatures, media_content
//!      ├────── attempts ──→ Attempts              the one retry loop                    attempts, retry_context
//!      │                                          silent and slow sources               watchdog, mirror_speed
//!      ├────── read_range → Bytes                 a short range of a blob, unverified   read_range
//!      └────── open_blob ─→ BlobStream            a blob or a range of it               blob_stream, content_range
//!                              │
//!                            RegistryRequest      range, media types, credentials       registry_request, credentials
//!                            RegistryClient       scheme and login of one registry      registry_client, auth_challenge,
//!                              │                                                        bearer_token
//!                            HttpClient           timeouts, redirects, TLS, proxies     http_client, tls, certs_d, proxy,
//!                              │                                                        no_proxy, tunnel_error, dns
//!                              │                  one connection for each blob          blob_connection
//!                            RateLimiter          the rate of all of them together      rate_limit
//! ```
//!
//! Manifests and configs that a medium has are read there, and no registry is asked for them ([`Registries::with_media`]).
//!
//! The bytes of a [`BlobStream`] are not verified; the caller compares their digest (`spool`). Nothing here knows what a
//! release or an operator is.

mod aliases;
mod attachments;
mod attempts;
mod auth_challenge;
mod auth_file;
mod bearer_token;
mod blob_connection;
mod blob_stream;
mod certificate_verifier;
mod certs_d;
mod content_range;
mod credentials;
mod dns;
mod error;
mod error_response;
mod failed_request;
mod http_client;
mod login;
mod lookaside;
mod media_content;
mod media_signatures;
mod mirror_speed;
mod mirrors;
mod no_proxy;
mod pem;
mod proxy;
mod rate_limit;
mod read_range;
mod referrers;
mod referrers_index;
mod registries_conf;
mod registries_d;
mod registry_client;
mod registry_request;
mod resolve;
mod response_monitor;
mod retry_context;
mod short_names;
mod signature_copies;
mod signature_file;
mod signatures;
#[cfg(test)]
mod tests;
mod tls;
mod tunnel_error;
mod upload;
mod upload_body;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::media::Media;
use crate::oci::Reference;
use crate::report::Observer;

pub use attempts::Attempts;
pub use blob_stream::{BlobRange, BlobStream};
pub use credentials::Credentials;
pub use dns::DnsFiles;
pub use error::{Kind, Message, RegistryError};
pub use http_client::IDLE_TIMEOUT;
pub use login::{Credential, CredentialOrigin, CredentialsError};
pub use lookaside::Lookaside;
pub use mirrors::PullSource;
pub use no_proxy::NoProxy;
pub use pem::Pem;
pub use proxy::{Proxies, Proxy, ProxyError};
pub use rate_limit::{
    LimitRate, LimitRateError, LimitSettings, Rate, RateError, RateLimiter, TransferPermit,
};
pub use referrers::Referrer;
pub use referrers_index::{ReferrerEntry, ReferrersIndexError, referrers_tag};
pub use registries_conf::{ConfText, RegistriesConf, RegistriesConfError};
pub use registries_d::{RegistriesD, RegistriesDError, SignatureSources};
pub use resolve::Resolved;
pub use short_names::ShortNameError;
pub use signature_copies::{AttachmentCopy, SignatureCopies};
pub use tls::{ClusterAuthorities, SystemRoots};
pub use upload::Upload;

use dns::DnsResolver;
use http_client::{HttpClient, Route};
use rate_limit::SocksProxy;
use registry_client::RegistryClient;
use retry_context::RetryContext;
use tls::Trust;

/// How registries are reached; `settings` resolves it.
#[derive(Clone, Debug)]
pub struct RegistrySettings {
    /// `registries.conf` first, with an empty text if there is none, then its drop-ins in their order.
    pub registries_conf: Vec<ConfText>,
    /// The files of registries.d in the order of their names.
    pub registries_d: Vec<ConfText>,
    /// The home of the user, unless that is root.
    pub user_home: Option<PathBuf>,
    /// The directory where the host's file system is mounted, for lookaside stores that are a directory of the host.
    pub host_root: PathBuf,
    /// Pull secrets, searched in this order. All must exist.
    pub auth_files: Vec<PathBuf>,
    /// The authorities that the system trusts.
    pub system_roots: SystemRoots,
    /// Further authorities.
    pub ca_certificates: Vec<Pem>,
    /// The cluster's authorities. Unusable ones are skipped, because the node may not need them.
    pub cluster_authorities: Vec<ClusterAuthorities>,
    /// `certs.d` directories; the first that has a directory for a host is used.
    pub certs_dirs: Vec<PathBuf>,
    /// The proxies, and the hosts that use none.
    pub proxies: Proxies,
    /// The resolver files of this process.
    pub dns_files: DnsFiles,
    /// The node's resolver files, if they differ: for names that the others do not resolve.
    pub node_dns_files: Option<DnsFiles>,
    /// The time without any byte after which operations give up although a retry may help. Nothing if the run has a
    /// deadline instead.
    pub give_up_after: Option<Duration>,
    /// How long a registry may be silent before the connection is dropped.
    pub idle_timeout: Duration,
    /// The limit on the rate of all connections together.
    pub limit: LimitSettings,
}

impl Default for RegistrySettings {
    fn default() -> Self {
        Self {
            registries_conf: Vec::new(),
            registries_d: Vec::new(),
            user_home: None,
            host_root: "/".into(),
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

/// All registries, with the configuration of this node.
#[derive(Debug)]
pub struct Registries {
    conf: RegistriesConf,
    registries_d: RegistriesD,
    host_root: PathBuf,
    credentials: Credentials,
    trust: Trust,
    /// Asked before any registry.
    media: Arc<Media>,
    proxies: Arc<Proxies>,
    dns: DnsResolver,
    idle_timeout: Duration,
    limit: Arc<RateLimiter>,
    forwarder: Option<Arc<SocksProxy>>,
    retry_context: Arc<RetryContext>,
    /// By domain and `insecure`: the same host may be a secure registry and an insecure mirror.
    clients: Mutex<HashMap<(String, bool), Arc<RegistryClient>>>,
    /// For signature files, by `host[:port]`.
    file_clients: Mutex<HashMap<String, Arc<HttpClient>>>,
}

impl Registries {
    /// Reads the configuration and the pull secrets. Sends nothing.
    pub fn new(settings: RegistrySettings, observer: Arc<dyn Observer>) -> Result<Self, RegistryError> {
        let conf = RegistriesConf::parse(&settings.registries_conf)?;
        let registries_d = RegistriesD::parse(&settings.registries_d)?.of_user(settings.user_home.clone());
        let credentials = Credentials::read(&settings.auth_files)?;
        let lowest_limit = settings.limit.rate.lowest();
        let (proxies, limit) = (
            Arc::new(settings.proxies),
            Arc::new(RateLimiter::new(settings.limit)),
        );
        let dns = DnsResolver::new(settings.dns_files, settings.node_dns_files);
        let forwarder = match limit.is_limited() {
            true => Some(Arc::new(
                SocksProxy::start(&limit, &dns, &proxies).map_err(RegistryError::Limit)?,
            )),
            false => None,
        };
        Ok(Self {
            credentials: credentials.with_helpers(conf.credential_helpers.clone()),
            conf,
            registries_d,
            host_root: settings.host_root,
            trust: Trust::new(
                &settings.system_roots,
                &settings.ca_certificates,
                &settings.cluster_authorities,
                settings.certs_dirs,
                &proxies,
            )?,
            media: Arc::default(),
            proxies,
            dns,
            idle_timeout: settings.idle_timeout,
            limit,
            forwarder,
            retry_context: Arc::new(RetryContext::new(observer, settings.give_up_after, lowest_limit)),
            clients: Mutex::default(),
            file_clients: Mutex::default(),
        })
    }

    /// The sources of `reference`, in the order of preference. A name without a registry is an error: names of the version
    /// spec are completed before, and names in a release or an operator must have a registry.
    pub fn sources(&self, reference: &Reference) -> Result<Vec<PullSource>, RegistryError> {
        if reference.is_short() {
            return Err(RegistryError::NoRegistry(reference.to_string()));
        }
        Ok(self.conf.pull_sources(reference)?)
    }

    /// Begins an operation of several attempts. `what` is for messages; `images` are those that need the result.
    pub fn attempts(&self, what: String, images: Vec<String>, sources: Vec<PullSource>) -> Attempts {
        Attempts::new(&self.retry_context, what, images, sources)
    }

    /// What one connection to the source's registry receives in a second; 0 if that is unknown.
    pub fn bytes_per_second(&self, source: &PullSource) -> u64 {
        let speeds = &self.retry_context.speeds;
        speeds.bytes_per_second(source.reference.domain())
    }

    /// The limit on the rate of all connections together.
    pub fn limit(&self) -> Arc<RateLimiter> {
        Arc::clone(&self.limit)
    }

    fn client(&self, source: &PullSource) -> Result<Arc<RegistryClient>, RegistryError> {
        let domain = source.reference.domain();
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (domain.to_owned(), source.insecure);
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        let http = self.http_client(domain, source.insecure)?;
        let client = Arc::new(RegistryClient::new(domain, source.insecure, http));
        Ok(clients.entry(key).or_insert(client).clone())
    }

    /// A client with the certificates for `host[:port]`.
    fn http_client(&self, host: &str, insecure: bool) -> Result<HttpClient, RegistryError> {
        let tls = self.trust.config(host, insecure)?;
        let route = Route {
            proxies: Arc::clone(&self.proxies),
            dns: self.dns.clone(),
            limit: self.limit(),
            forwarder: self.forwarder.clone(),
        };
        HttpClient::new(tls, route, insecure, self.idle_timeout)
            .map_err(|error| http_client::failed_request(error, &format!("host `{host}`")))
    }
}
