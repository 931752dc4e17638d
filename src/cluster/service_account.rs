//! Reads the pod's service account: the API's address, token, certificate authority and namespace.
//!
//! ```text
//! KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT        the API's address
//! /var/run/secrets/kubernetes.io/serviceaccount/
//!   token        bearer token; the kubelet replaces it before it expires, so it is read for each request
//!   ca.crt       certificate authority of the API server
//!   namespace    of this pod
//! ```

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use secrecy::SecretString;

use super::ClusterError;

/// The largest file; a bundle of authorities has a few hundred KiB at most.
const FILE_LIMIT: u64 = 4 << 20;

/// The API's address and the directory of the service account; `settings` finds them.
#[derive(Clone, Debug)]
pub struct ServiceAccount {
    /// Name or address of the API server.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Directory of the service account's files.
    pub dir: PathBuf,
    /// This pod's name, if it is known.
    pub pod: Option<String>,
    /// This node's name, if it is known.
    pub node: Option<String>,
    /// The completion index of this pod in an Indexed Job.
    pub index: Option<u32>,
}

impl ServiceAccount {
    /// Reads the current token.
    pub(super) fn token(&self) -> Result<SecretString, ClusterError> {
        let text = read(&self.dir.join("token"))?;
        Ok(text.trim().to_owned().into())
    }

    /// Reads the certificate authorities of the API server.
    pub(super) fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, ClusterError> {
        let path = self.dir.join("ca.crt");
        let text = read(&path)?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        certificates.map_err(|error| ClusterError::Authority {
            path,
            why: error.to_string(),
        })
    }

    /// Reads the namespace of this pod.
    pub(super) fn namespace(&self) -> Result<String, ClusterError> {
        Ok(read(&self.dir.join("namespace"))?.trim().to_owned())
    }
}

fn read(path: &Path) -> Result<String, ClusterError> {
    let mut text = String::new();
    let file = File::open(path);
    let done = file.and_then(|file| file.take(FILE_LIMIT).read_to_string(&mut text));
    done.map_err(|source| ClusterError::ServiceAccount {
        path: path.to_owned(),
        source,
    })?;
    Ok(text)
}
