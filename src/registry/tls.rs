//! Builds the TLS configuration for each registry: trusted authorities and client certificates.
//!
//! Authorities are those of the system, of the settings, of the cluster, and of `certs.d` for one host. An `https` proxy is
//! verified with those of the system, the settings and the cluster alone: neither `certs.d` for a registry behind it nor
//! `insecure` for that registry may decide to which server the proxy's password is sent.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use reqwest::Url;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use super::certificate_verifier::{CertificateVerifier, ChainVerifier};
use super::certs_d::{ClientCertificates, HostCerts};
use super::error::RegistryError;
use super::pem::{Pem, certificates, unusable};
use super::proxy::{Proxies, Proxy};

/// The authorities that the operating system trusts.
#[derive(Clone, Debug, Default)]
pub enum SystemRoots {
    /// Those that OpenSSL would use where this process runs.
    #[default]
    Native,
    /// These bundles, for instance the host's; none at all if the list is empty.
    Pem(Vec<Pem>),
}

/// Authorities that the cluster's configuration names.
#[derive(Clone, Debug)]
pub struct ClusterAuthorities {
    /// `host[:port]` of the registry that they are for, as the directories of `certs.d` are named; nothing for all registries.
    pub host: Option<String>,
    /// Their certificates.
    pub pem: Pem,
}

/// The authorities and directories from which the configuration of each registry is built.
#[derive(Debug)]
pub(super) struct Trust {
    provider: Arc<CryptoProvider>,
    roots: RootCertStore,
    /// The same certificates, in DER.
    trusted: Arc<[CertificateDer<'static>]>,
    certs_dirs: Vec<PathBuf>,
    /// The cluster's authorities for single registries.
    of_hosts: Vec<ClusterAuthorities>,
    /// Of proxies that are reached by TLS: the name in our requests, and the name that the certificate must be for.
    proxies: Vec<(ServerName<'static>, ServerName<'static>)>,
}

impl Trust {
    pub(super) fn new(
        system: &SystemRoots,
        configured: &[Pem],
        cluster: &[ClusterAuthorities],
        certs_dirs: Vec<PathBuf>,
        proxies: &Proxies,
    ) -> Result<Self, RegistryError> {
        let mut trusted = match system {
            SystemRoots::Native => rustls_native_certs::load_native_certs().certs,
            SystemRoots::Pem(bundles) => {
                let read = |bundle: &Pem| certificates(&bundle.path, &bundle.bytes);
                bundles.iter().map(read).collect::<Result<Vec<_>, _>>()?.concat()
            }
        };
        let mut roots = RootCertStore::empty();
        // A system's bundle may have certificates that webpki cannot parse; no relevant registry depends on them.
        roots.add_parsable_certificates(trusted.iter().cloned());
        for pem in configured {
            for certificate in certificates(&pem.path, &pem.bytes)? {
                roots
                    .add(certificate.clone())
                    .map_err(|error| unusable(&pem.path, error))?;
                trusted.push(certificate);
            }
        }
        let (of_hosts, of_all): (Vec<_>, Vec<_>) = cluster.iter().cloned().partition(|it| it.host.is_some());
        for ClusterAuthorities { pem, .. } in of_all {
            trusted.extend(add_usable(&pem, &mut roots));
        }
        let proxies = [&proxies.http, &proxies.https].into_iter().flatten();
        Ok(Self {
            provider: Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
            roots,
            trusted: trusted.into(),
            certs_dirs,
            of_hosts,
            proxies: proxies.flat_map(names_of).collect(),
        })
    }

    /// The TLS configuration for the registry `host[:port]`.
    pub(super) fn config(&self, host: &str, insecure: bool) -> Result<ClientConfig, RegistryError> {
        let host_certs = HostCerts::read(&self.certs_dirs, host)?;
        let identities = ClientCertificates::new(host_certs.clients, &self.provider)?;
        let (mut roots, mut of_host) = (self.roots.clone(), Vec::new());
        for (path, authorities) in host_certs.authorities {
            for authority in authorities {
                match roots.add(authority.clone()) {
                    Ok(()) => of_host.push(authority),
                    // Go skips it too; another certificate of the directory may be the relevant one.
                    Err(error) => tracing::warn!("skipped an authority in `{}`: {error}", path.display()),
                }
            }
        }
        for of_this in self
            .of_hosts
            .iter()
            .filter(|authorities| authorities.host.as_deref() == Some(host))
        {
            of_host.extend(add_usable(&of_this.pem, &mut roots));
        }
        // A registry on a proxy's host cannot be distinguished from the proxy: certificates name no port.
        let own = server_name(host);
        let proxies = self
            .proxies
            .iter()
            .filter(|(requested, _)| own.as_ref() != Some(requested));
        let verifier = CertificateVerifier {
            provider: self.provider.clone(),
            registry: self.chain_verifier(roots, of_host, host)?,
            insecure,
            proxies: proxies.cloned().collect(),
            proxy: self.chain_verifier(self.roots.clone(), Vec::new(), host)?,
        };
        let builder = ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(Path::new(host), error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match identities.is_empty() {
            true => builder.with_no_client_auth(),
            false => builder.with_client_cert_resolver(Arc::new(identities)),
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    fn chain_verifier(
        &self,
        roots: RootCertStore,
        of_host: Vec<CertificateDer<'static>>,
        host: &str,
    ) -> Result<ChainVerifier, RegistryError> {
        let mut verifier = ChainVerifier {
            webpki: None,
            trusted: Arc::clone(&self.trusted),
            of_host,
        };
        if !roots.is_empty() {
            let builder = WebPkiServerVerifier::builder_with_provider(roots.into(), self.provider.clone());
            let webpki = builder.build();
            verifier.webpki = Some(webpki.map_err(|error| unusable(Path::new(host), error))?);
        }
        Ok(verifier)
    }
}

/// The names by which requests reach a proxy, each with the name that its certificate must be for.
fn names_of(proxy: &Proxy) -> Vec<(ServerName<'static>, ServerName<'static>)> {
    let Some(name) = proxy.tls_host().and_then(server_name) else {
        return Vec::new();
    };
    let alias = proxy.alias().and_then(|alias| server_name(&alias));
    let requested = [Some(name.clone()), alias].into_iter().flatten();
    requested.map(|requested| (requested, name.clone())).collect()
}

/// The name that a certificate for `host[:port]` must have.
fn server_name(host: &str) -> Option<ServerName<'static>> {
    let url = Url::parse(&format!("https://{host}")).ok()?;
    let name = url.host_str()?.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(name.to_owned()).ok()
}

/// Adds the certificates that can be used to the roots, and returns them.
fn add_usable(pem: &Pem, roots: &mut RootCertStore) -> Vec<CertificateDer<'static>> {
    let (mut added, mut refused) = (Vec::new(), None);
    for certificate in CertificateDer::pem_slice_iter(&pem.bytes) {
        match certificate {
            Ok(certificate) => match roots.add(certificate.clone()) {
                Ok(()) => added.push(certificate),
                Err(error) => refused = Some(error.to_string()),
            },
            // The parser cannot find the beginning of the next one.
            Err(error) => {
                refused = Some(error.to_string());
                break;
            }
        }
    }
    if let Some(why) = refused {
        tracing::warn!("skipped an authority in {}: {why}", pem.path.display());
    }
    added
}
