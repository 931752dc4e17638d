//! Reads the certificates for one registry from `certs.d`, as containers/image does (`pkg/tlsclientconfig`).
//!
//! ```text
//! certs.d/registry.example.com:5000/   the first of the directories that exists for the host
//!   *.crt                              authorities for this host, in addition to all others
//!   client.cert, client.key            client certificate and key for this host
//! ```
//!
//! A `.cert` without `.key` or the reverse is an error, as in containers/image; a dangling link is not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{DistinguishedName, SignatureScheme};

use super::error::RegistryError;
use super::pem::{certificates, unusable};

/// The certificates of `certs.d` for one host.
#[derive(Default)]
pub(super) struct HostCerts {
    /// Authorities, by file.
    pub(super) authorities: Vec<(PathBuf, Vec<CertificateDer<'static>>)>,
    /// Client certificates.
    pub(super) clients: Vec<ClientCertificate>,
}

/// A client certificate with its key.
pub(super) struct ClientCertificate {
    path: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl HostCerts {
    pub(super) fn read(certs_dirs: &[PathBuf], host: &str) -> Result<Self, RegistryError> {
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
                // A dangling link, which containers/image skips.
                Some("crt") if !path.exists() => {}
                Some("crt") => {
                    match certificates(path, &read(path)?) {
                        Ok(authorities) => found.authorities.push((path.clone(), authorities)),
                        // Go skips it too; another certificate of the directory may be the relevant one.
                        Err(error) => tracing::warn!("{error}"),
                    }
                }
                Some("cert") => {
                    let Some(key_path) = twin("key") else {
                        let why = "there is no `.key` beside it\nhint: if it is the certificate of an authority, let its name end in `.crt`";
                        return Err(unusable(path, why));
                    };
                    let key = PrivateKeyDer::from_pem_slice(&read(&key_path)?)
                        .map_err(|error| unusable(&key_path, error))?;
                    let chain = certificates(path, &read(path)?)?;
                    found.clients.push(ClientCertificate {
                        path: path.clone(),
                        chain,
                        key,
                    });
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

/// The client certificates for one registry; the first is for registries that do not list their authorities.
#[derive(Debug)]
pub(super) struct ClientCertificates(Vec<Arc<CertifiedKey>>);

impl ClientCertificates {
    pub(super) fn new(
        clients: Vec<ClientCertificate>,
        provider: &CryptoProvider,
    ) -> Result<Self, RegistryError> {
        let identity =
            |ClientCertificate { path, chain, key }| match CertifiedKey::from_der(chain, key, provider) {
                Ok(identity) => Ok(Arc::new(identity)),
                Err(error) => Err(unusable(&path, error)),
            };
        Ok(Self(clients.into_iter().map(identity).collect::<Result<_, _>>()?))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl ResolvesClientCert for ClientCertificates {
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

/// The name of its issuer, in DER, as a server lists the authorities that it trusts.
fn issuer(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    Some(DistinguishedName::in_sequence(parsed.issuer()).as_ref().to_vec())
}
