//! Whom we trust: the system's roots, the configured authorities, `certs.d`.
//!
//! ```text
//! certs.d/registry.example.com:5000/   the first of the directories that has one for the host
//!   *.crt                              authorities for this host, beside all others
//!   client.cert, client.key            who we are to it
//! ```
//!
//! The usual registry certificate of a lab, made by `openssl req -x509`, is its own authority. rustls refuses such a
//! leaf (`CaUsedAsEndEntity`); Go, and so CRI-O, takes it when it is among the roots. So do we, but only if exactly
//! that certificate was configured: never for the system's roots.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::error::RegistryError;

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
}

impl Trust {
    pub(super) fn new(
        system: &SystemRoots,
        configured: &[Pem],
        certs_dirs: Vec<PathBuf>,
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
        };
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
        let mut verifier = Verifier {
            provider: self.provider.clone(),
            chain: None,
            configured: self.configured.clone(),
            insecure,
        };
        let mut roots = self.roots.clone();
        for (path, authorities) in host_certs.authorities {
            add(&mut roots, &path, &authorities)?;
            verifier.configured.extend(authorities);
        }
        if !roots.is_empty() {
            let builder = WebPkiServerVerifier::builder_with_provider(roots.into(), self.provider.clone());
            verifier.chain = Some(
                builder
                    .build()
                    .map_err(|error| unusable(Path::new(host), error))?,
            );
        }
        let builder = ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(Path::new(host), error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match host_certs.client {
            Some((path, chain, key)) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| unusable(&path, error))?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// What `certs.d` has for one host.
#[derive(Default)]
struct HostCerts {
    authorities: Vec<(PathBuf, Vec<CertificateDer<'static>>)>,
    client: Option<(PathBuf, Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
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
        for path in paths {
            let read = |path: &Path| std::fs::read(path).map_err(|error| unusable(path, error));
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("crt") => {
                    let authorities = certificates(&path, &read(&path)?)?;
                    found.authorities.push((path, authorities));
                }
                Some("cert") if found.client.is_none() => {
                    let key_path = path.with_extension("key");
                    let key = PrivateKeyDer::from_pem_slice(&read(&key_path)?)
                        .map_err(|error| unusable(&key_path, error))?;
                    let chain = certificates(&path, &read(&path)?)?;
                    found.client = Some((path, chain, key));
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

/// webpki's judgement, with the one exception above, or none at all for an insecure registry.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// Nothing without any root.
    chain: Option<Arc<WebPkiServerVerifier>>,
    configured: Vec<CertificateDer<'static>>,
    insecure: bool,
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
        if self.insecure {
            return Ok(ServerCertVerified::assertion());
        }
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
