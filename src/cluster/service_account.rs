//! Where the API is and who we are to it: what the kubelet gives every container of a pod.
//!
//! ```text
//! KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT        where
//! /var/run/secrets/kubernetes.io/serviceaccount/
//!   token        who we are; the kubelet writes a new one before the old one expires, so it is read for each request
//!   ca.crt       who signed the API server's certificate
//!   namespace    of our pod
//! ```

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use secrecy::SecretString;

use super::ClusterError;

/// Larger than any of these files; a bundle of authorities has a few hundred KiB at most.
const FILE_LIMIT: u64 = 4 << 20;

/// The way to the API; `settings` finds it.
#[derive(Clone, Debug)]
pub struct ServiceAccount {
    /// Name or address of the API server.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Directory of the service account's files.
    pub dir: PathBuf,
    /// Our pod's name, if it is known.
    pub pod: Option<String>,
    /// Our node's name, if it is known.
    pub node: Option<String>,
    /// Which pod of an Indexed Job we are.
    pub index: Option<u32>,
}

impl ServiceAccount {
    /// The token as it is now.
    pub(super) fn token(&self) -> Result<SecretString, ClusterError> {
        let text = read(&self.dir.join("token"))?;
        Ok(text.trim().to_owned().into())
    }

    /// Whom to believe that they are the API server.
    pub(super) fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, ClusterError> {
        let path = self.dir.join("ca.crt");
        let text = read(&path)?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        certificates.map_err(|error| ClusterError::Authority {
            path,
            why: error.to_string(),
        })
    }

    /// The namespace of our pod.
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
