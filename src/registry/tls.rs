//! Whom we trust: the system's roots, the configured authorities, `certs.d`.
//!
//! ```text
//! certs.d/registry.example.com:5000/   the first of the directories that has one for the host
//!   *.crt                              authorities for this host, beside all others
//!   client.cert, client.key            who we are to it
//! ```
//!
//! An `https` proxy is judged by the system's roots and the configured authorities alone: neither `certs.d` of a registry
//! behind it says whom to tell the proxy's password, nor that the registry is insecure.
//!
//! The usual registry certificate of a lab, made by `openssl req -x509`, is its own authority. rustls refuses such a
//! leaf (`CaUsedAsEndEntity`); Go, and so CRI-O, takes it when it is among the roots. So do we, but only if exactly
//! that certificate was configured: never for the system's roots.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use reqwest::Url;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
};

use super::error::RegistryError;
use super::proxy::Proxies;

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

/// Trust that does not depend on the registry.
#[derive(Debug)]
pub(super) struct Trust {
    provider: Arc<CryptoProvider>,
    roots: RootCertStore,
    configured: Vec<CertificateDer<'static>>,
    certs_dirs: Vec<PathBuf>,
    /// Of proxies that are reached by TLS.
    proxies: Vec<ServerName<'static>>,
}

impl Trust {
    pub(super) fn new(
        system: &SystemRoots,
        configured: &[Pem],
        certs_dirs: Vec<PathBuf>,
        proxies: &Proxies,
    ) -> Result<Self, RegistryError> {
        let mut roots = RootCertStore::empty();
        // A system's bundle may hold what webpki cannot read; no registry that matters hangs on that.
        match system {
            SystemRoots::Native => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            SystemRoots::Pem(bundles) => {
                for bundle in bundles {
                    roots.add_parsable_certificates(certificates(&bundle.path, &bundle.bytes)?);
                }
            }
        }
        let mut trust = Self {
            provider: Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
            roots,
            configured: Vec::new(),
            certs_dirs,
            proxies: Vec::new(),
        };
        for proxy in [&proxies.http, &proxies.https].into_iter().flatten() {
            trust.proxies.extend(proxy.tls_host().and_then(server_name));
        }
        for pem in configured {
            let certificates = certificates(&pem.path, &pem.bytes)?;
            add(&mut trust.roots, &pem.path, &certificates)?;
            trust.configured.extend(certificates);
        }
        Ok(trust)
    }

    /// The TLS configuration for the registry `host[:port]`.
    pub(super) fn config(&self, host: &str, insecure: bool) -> Result<ClientConfig, RegistryError> {
        let host_certs = HostCerts::read(&self.certs_dirs, host)?;
        let (mut roots, mut configured) = (self.roots.clone(), self.configured.clone());
        for (path, authorities) in host_certs.authorities {
            for authority in authorities {
                match roots.add(authority.clone()) {
                    Ok(()) => configured.push(authority),
                    // Go passes it over too; another one in the directory may be what matters.
                    Err(error) => tracing::warn!("no use of an authority in `{}`: {error}", path.display()),
                }
            }
        }
        // A registry on a proxy's own host cannot be told from it: certificates name no port.
        let own = server_name(host);
        let proxies = self.proxies.iter().filter(|proxy| own.as_ref() != Some(*proxy));
        let verifier = Verifier {
            provider: self.provider.clone(),
            registry: self.judge(roots, configured, host)?,
            insecure,
            proxies: proxies.cloned().collect(),
            proxy: self.judge(self.roots.clone(), self.configured.clone(), host)?,
        };
        let builder = ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(Path::new(host), error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut identities = Vec::new();
        for (path, chain, key) in host_certs.clients {
            let identity = CertifiedKey::from_der(chain, key, &self.provider);
            identities.push(Arc::new(identity.map_err(|error| unusable(&path, error))?));
        }
        let mut config = match identities.is_empty() {
            true => builder.with_no_client_auth(),
            false => builder.with_client_cert_resolver(Arc::new(Identities(identities))),
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    fn judge(
        &self,
        roots: RootCertStore,
        configured: Vec<CertificateDer<'static>>,
        host: &str,
    ) -> Result<Judge, RegistryError> {
        if roots.is_empty() {
            return Ok(Judge {
                chain: None,
                configured,
            });
        }
        let builder = WebPkiServerVerifier::builder_with_provider(roots.into(), self.provider.clone());
        let chain = builder
            .build()
            .map_err(|error| unusable(Path::new(host), error))?;
        Ok(Judge {
            chain: Some(chain),
            configured,
        })
    }
}

/// The name that a certificate of `host[:port]` is for.
fn server_name(host: &str) -> Option<ServerName<'static>> {
    let url = Url::parse(&format!("https://{host}")).ok()?;
    let name = url.host_str()?.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(name.to_owned()).ok()
}

/// Who we are to one registry; the first is for those that do not say whom they believe.
#[derive(Debug)]
struct Identities(Vec<Arc<CertifiedKey>>);

impl ResolvesClientCert for Identities {
    fn resolve(&self, authorities: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let mut usable = self
            .0
            .iter()
            .filter(|identity| identity.key.choose_scheme(schemes).is_some());
        let vouched = usable.clone().find(|identity| {
            let issuers = identity.cert.iter().filter_map(issuer);
            issuers
                .into_iter()
                .any(|issuer| authorities.contains(&issuer.as_slice()))
        });
        vouched.or_else(|| usable.next()).cloned()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The name of who signed it, in DER as a server lists those whom it believes.
fn issuer(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    Some(DistinguishedName::in_sequence(parsed.issuer()).as_ref().to_vec())
}

/// What `certs.d` has for one host.
#[derive(Default)]
struct HostCerts {
    authorities: Vec<(PathBuf, Vec<CertificateDer<'static>>)>,
    clients: Vec<(PathBuf, Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

impl HostCerts {
    fn read(certs_dirs: &[PathBuf], host: &str) -> Result<Self, RegistryError> {
        let mut found = Self::default();
        let Some(dir) = certs_dirs
            .iter()
            .map(|dir| dir.join(host))
            .find(|dir| dir.is_dir())
        else {
            return Ok(found);
        };
        let entries = std::fs::read_dir(&dir).and_then(|entries| {
            let paths = entries.map(|entry| entry.map(|entry| entry.path()));
            paths.collect::<Result<Vec<_>, _>>()
        });
        let mut paths = entries.map_err(|error| unusable(&dir, error))?;
        paths.sort();
        for path in &paths {
            let read = |path: &Path| std::fs::read(path).map_err(|error| unusable(path, error));
            let twin = |extension| Some(path.with_extension(extension)).filter(|twin| paths.contains(twin));
            match path.extension().and_then(|extension| extension.to_str()) {
                // A link into nowhere; containers/image passes it over.
                Some("crt") if !path.exists() => {}
                Some("crt") => {
                    let authorities = certificates(path, &read(path)?)?;
                    found.authorities.push((path.clone(), authorities));
                }
                Some("cert") => {
                    let Some(key_path) = twin("key") else {
                        let why =
                            "there is no `.key` beside it\nhint: the name of an authority's ends in `.crt`";
                        return Err(unusable(path, why));
                    };
                    let key = PrivateKeyDer::from_pem_slice(&read(&key_path)?)
                        .map_err(|error| unusable(&key_path, error))?;
                    let chain = certificates(path, &read(path)?)?;
                    found.clients.push((path.clone(), chain, key));
                }
                Some("key") if twin("cert").is_none() => {
                    return Err(unusable(path, "there is no `.cert` of this name beside it"));
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, RegistryError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    certificates.map_err(|error| unusable(path, error))
}

fn add(
    roots: &mut RootCertStore,
    path: &Path,
    certificates: &[CertificateDer<'static>],
) -> Result<(), RegistryError> {
    for certificate in certificates {
        roots
            .add(certificate.clone())
            .map_err(|error| unusable(path, error))?;
    }
    Ok(())
}

fn unusable(path: &Path, error: impl ToString) -> RegistryError {
    RegistryError::Certificates {
        path: path.into(),
        why: error.to_string(),
    }
}

/// Whom to believe: the registry or whoever it redirects to, or the proxy before them.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    registry: Judge,
    /// Anybody is taken for the registry.
    insecure: bool,
    /// Names that only a proxy has.
    proxies: Vec<ServerName<'static>>,
    proxy: Judge,
}

/// webpki's judgement, with the one exception above.
#[derive(Debug)]
struct Judge {
    /// Nothing without any root.
    chain: Option<Arc<WebPkiServerVerifier>>,
    configured: Vec<CertificateDer<'static>>,
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
                if is_authority_as_leaf(&error) && self.configured.iter().any(|ca| ca == end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            judgement => judgement,
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let judge = if self.proxies.iter().any(|proxy| proxy == server_name) {
            &self.proxy
        } else if self.insecure {
            return Ok(ServerCertVerified::assertion());
        } else {
            &self.registry
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
