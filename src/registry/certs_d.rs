//! `certs.d`: certificates for one registry, as containers/image reads them (`pkg/tlsclientconfig`).
//!
//! ```text
//! certs.d/registry.example.com:5000/   the first of the directories that has one for the host
//!   *.crt                              authorities for this host, beside all others
//!   client.cert, client.key            who we are to it
//! ```
//!
//! Half of a pair is an error, as it is there; a link into nowhere is none.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{DistinguishedName, SignatureScheme};

use super::error::RegistryError;
use super::tls::{certificates, unusable};

/// What `certs.d` has for one host.
#[derive(Default)]
pub(super) struct HostCerts {
    /// Whom to believe for this host.
    pub(super) authorities: Vec<(PathBuf, Vec<CertificateDer<'static>>)>,
    /// Who we are to it.
    pub(super) clients: Vec<Client>,
}

/// A certificate with its key.
pub(super) struct Client {
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
                // A link into nowhere; containers/image passes it over.
                Some("crt") if !path.exists() => {}
                Some("crt") => {
                    match certificates(path, &read(path)?) {
                        Ok(authorities) => found.authorities.push((path.clone(), authorities)),
                        // Go passes it over too; another one in the directory may be what matters.
                        Err(error) => tracing::warn!("{error}"),
                    }
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
                    found.clients.push(Client {
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

/// Who we are to one registry; the first is for those that do not say whom they believe.
#[derive(Debug)]
pub(super) struct Identities(Vec<Arc<CertifiedKey>>);

impl Identities {
    pub(super) fn new(clients: Vec<Client>, provider: &CryptoProvider) -> Result<Self, RegistryError> {
        let identity = |Client { path, chain, key }| match CertifiedKey::from_der(chain, key, provider) {
            Ok(identity) => Ok(Arc::new(identity)),
            Err(error) => Err(unusable(&path, error)),
        };
        Ok(Self(clients.into_iter().map(identity).collect::<Result<_, _>>()?))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

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
