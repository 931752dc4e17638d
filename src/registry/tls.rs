//! Whom we trust: the system's roots, the configured authorities, the cluster's, those of `certs.d`.
//!
//! An `https` proxy is judged by the system's roots and the configured authorities alone: neither `certs.d` of a registry
//! behind it says whom to tell the proxy's password, nor that the registry is insecure.
//!
//! The usual registry certificate of a lab, made by `openssl req -x509`, is its own authority. rustls refuses such a
//! leaf (`CaUsedAsEndEntity`); Go, and so CRI-O, takes it when it is among the roots, the system's too: there OpenShift
//! puts a cluster's `additionalTrustBundle`. So do we, if it is exactly that certificate. That trusts nobody more: who
//! has its key could as well sign a leaf.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use reqwest::Url;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::certs_d::{HostCerts, Identities};
use super::error::RegistryError;
use super::proxy::{Proxies, Proxy};

/// Certificates in PEM, and where they were read, for errors.
#[derive(Clone, Debug)]
pub struct Pem {
    /// The file.
    pub path: PathBuf,
    /// What it holds.
    pub bytes: Vec<u8>,
}

/// The authorities that the operating system trusts.
#[derive(Clone, Debug, Default)]
pub enum SystemRoots {
    /// Those that OpenSSL would take where this process runs.
    #[default]
    Native,
    /// These bundles, of the host perhaps; none at all if there are none.
    Pem(Vec<Pem>),
}

/// Authorities that the cluster's configuration names.
#[derive(Clone, Debug)]
pub struct ClusterAuthorities {
    /// `host[:port]` of the registry that they are for, as the directories of `certs.d` are named; all, if there is none.
    pub host: Option<String>,
    /// Their certificates.
    pub pem: Pem,
}

/// Trust that does not depend on the registry.
#[derive(Debug)]
pub(super) struct Trust {
    provider: Arc<CryptoProvider>,
    roots: RootCertStore,
    /// The same, as they are.
    trusted: Arc<[CertificateDer<'static>]>,
    certs_dirs: Vec<PathBuf>,
    /// The cluster's for single registries.
    of_hosts: Vec<ClusterAuthorities>,
    /// Of proxies that are reached by TLS: what we call them, and what their certificates must be for.
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
        // A system's bundle may hold what webpki cannot read; no registry that matters hangs on that.
        roots.add_parsable_certificates(trusted.iter().cloned());
        for pem in configured {
            for certificate in certificates(&pem.path, &pem.bytes)? {
                roots
                    .add(certificate.clone())
                    .map_err(|error| unusable(&pem.path, error))?;
                trusted.push(certificate);
            }
        }
        let (of_hosts, of_all): (Vec<_>, Vec<_>) =
            cluster.iter().cloned().partition(|them| them.host.is_some());
        for ClusterAuthorities { pem, .. } in of_all {
            trusted.extend(added(&pem, &mut roots));
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
        let identities = Identities::new(host_certs.clients, &self.provider)?;
        let (mut roots, mut of_host) = (self.roots.clone(), Vec::new());
        for (path, authorities) in host_certs.authorities {
            for authority in authorities {
                match roots.add(authority.clone()) {
                    Ok(()) => of_host.push(authority),
                    // Go passes it over too; another one in the directory may be what matters.
                    Err(error) => tracing::warn!("no use of an authority in `{}`: {error}", path.display()),
                }
            }
        }
        for them in self
            .of_hosts
            .iter()
            .filter(|them| them.host.as_deref() == Some(host))
        {
            of_host.extend(added(&them.pem, &mut roots));
        }
        // A registry on a proxy's own host cannot be told from it: certificates name no port.
        let own = server_name(host);
        let proxies = self
            .proxies
            .iter()
            .filter(|(called, _)| own.as_ref() != Some(called));
        let verifier = CertificateVerifier {
            provider: self.provider.clone(),
            registry: self.judge(roots, of_host, host)?,
            insecure,
            proxies: proxies.cloned().collect(),
            proxy: self.judge(self.roots.clone(), Vec::new(), host)?,
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

    fn judge(
        &self,
        roots: RootCertStore,
        of_host: Vec<CertificateDer<'static>>,
        host: &str,
    ) -> Result<Judge, RegistryError> {
        let mut judge = Judge {
            chain: None,
            trusted: Arc::clone(&self.trusted),
            of_host,
        };
        if !roots.is_empty() {
            let builder = WebPkiServerVerifier::builder_with_provider(roots.into(), self.provider.clone());
            let chain = builder.build();
            judge.chain = Some(chain.map_err(|error| unusable(Path::new(host), error))?);
        }
        Ok(judge)
    }
}

/// What a proxy may be called, and what its certificate must be for.
fn names_of(proxy: &Proxy) -> Vec<(ServerName<'static>, ServerName<'static>)> {
    let Some(name) = proxy.tls_host().and_then(server_name) else {
        return Vec::new();
    };
    let alias = proxy.alias().and_then(|alias| server_name(&alias));
    let called = [Some(name.clone()), alias].into_iter().flatten();
    called.map(|called| (called, name.clone())).collect()
}

/// The name that a certificate of `host[:port]` is for.
fn server_name(host: &str) -> Option<ServerName<'static>> {
    let url = Url::parse(&format!("https://{host}")).ok()?;
    let name = url.host_str()?.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(name.to_owned()).ok()
}

pub(super) fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, RegistryError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    certificates.map_err(|error| unusable(path, error))
}

/// Those of the certificates that can be used, which are then among the roots.
fn added(pem: &Pem, roots: &mut RootCertStore) -> Vec<CertificateDer<'static>> {
    let (mut added, mut refused) = (Vec::new(), None);
    for certificate in CertificateDer::pem_slice_iter(&pem.bytes) {
        match certificate {
            Ok(certificate) => match roots.add(certificate.clone()) {
                Ok(()) => added.push(certificate),
                Err(error) => refused = Some(error.to_string()),
            },
            // What follows it cannot be told from it.
            Err(error) => {
                refused = Some(error.to_string());
                break;
            }
        }
    }
    if let Some(why) = refused {
        tracing::warn!("no use of an authority in {}: {why}", pem.path.display());
    }
    added
}

pub(super) fn unusable(path: &Path, error: impl ToString) -> RegistryError {
    RegistryError::Certificates {
        path: path.into(),
        why: error.to_string(),
    }
}

/// Whom to believe: the registry or whoever it redirects to, or the proxy before them.
#[derive(Debug)]
struct CertificateVerifier {
    provider: Arc<CryptoProvider>,
    registry: Judge,
    /// Anybody is taken for the registry.
    insecure: bool,
    /// DnsResolver that only a proxy has, and what its certificate must be for.
    proxies: Vec<(ServerName<'static>, ServerName<'static>)>,
    proxy: Judge,
}

/// webpki's judgement, with the one exception above.
#[derive(Debug)]
struct Judge {
    /// Nothing without any root.
    chain: Option<Arc<WebPkiServerVerifier>>,
    trusted: Arc<[CertificateDer<'static>]>,
    /// Those of `certs.d`.
    of_host: Vec<CertificateDer<'static>>,
}

impl Judge {
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else {
            return Err(CertificateError::UnknownIssuer.into());
        };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // webpki looks at the dates before it looks at what the certificate may be used for
            // (`check_issuer_independent_properties`), so these are right; the name it has not seen yet.
            Err(error)
                if is_authority_as_leaf(&error)
                    && self
                        .trusted
                        .iter()
                        .chain(&self.of_host)
                        .any(|ca| ca == end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            judgement => judgement,
        }
    }
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let proxy = self.proxies.iter().find(|(called, _)| called == server_name);
        let (judge, server_name) = match proxy {
            Some((_, name)) => (&self.proxy, name),
            None if self.insecure => return Ok(ServerCertVerified::assertion()),
            None => (&self.registry, server_name),
        };
        judge.verify(end_entity, intermediates, server_name, ocsp_response, now)
    }

    // Also for an insecure registry the handshake must be signed with the certificate's key: that costs nothing.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn is_authority_as_leaf(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = error else {
        return false;
    };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}
