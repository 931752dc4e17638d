//! Reads certificates from PEM files, and names the file in errors.

use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::error::RegistryError;

/// Certificates in PEM, and where they were read, for errors.
#[derive(Clone, Debug)]
pub struct Pem {
    /// The file.
    pub path: PathBuf,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// All certificates of a file.
pub(super) fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, RegistryError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    certificates.map_err(|error| unusable(path, error))
}

/// The error for a file or directory whose certificates or keys cannot be used.
pub(super) fn unusable(path: &Path, error: impl ToString) -> RegistryError {
    RegistryError::Certificates {
        path: path.into(),
        why: error.to_string(),
    }
}
