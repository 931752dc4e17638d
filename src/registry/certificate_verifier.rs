//! Verifies the certificates of registries and of HTTPS proxies.
//!
//! The usual registry certificate of a lab, made by `openssl req -x509`, is its own authority. webpki refuses such a leaf
//! (`CaUsedAsEndEntity`); Go, and so CRI-O, accepts it when it is among the roots, also the system's: there OpenShift puts a
//! cluster's `additionalTrustBundle`. So does this verifier, if the leaf is exactly a trusted certificate. That trusts no
//! other server: the owner of its key could as well sign a leaf.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, SignatureScheme};

use crate::http::is_self_signed;

/// Verifies the certificates of the registry, of hosts that it redirects to, and of an HTTPS proxy.
#[derive(Debug)]
pub(super) struct CertificateVerifier {
    pub(super) provider: Arc<CryptoProvider>,
    pub(super) registry: ChainVerifier,
    /// Every certificate is accepted for the registry.
    pub(super) insecure: bool,
    /// Names that only a proxy has, and the name that its certificate must be for.
    pub(super) proxies: Vec<(ServerName<'static>, ServerName<'static>)>,
    pub(super) proxy: ChainVerifier,
}

/// Verifies a chain as webpki does, and accepts a self-signed certificate that is itself trusted.
#[derive(Debug)]
pub(super) struct ChainVerifier {
    /// Nothing without any root.
    pub(super) webpki: Option<Arc<WebPkiServerVerifier>>,
    /// Trusted for every host.
    pub(super) trusted: Arc<[CertificateDer<'static>]>,
    /// Trusted for this host.
    pub(super) of_host: Vec<CertificateDer<'static>>,
}

impl ChainVerifier {
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(webpki) = &self.webpki else {
            return Err(CertificateError::UnknownIssuer.into());
        };
        match webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // webpki checks the dates before the usage of the certificate (`check_issuer_independent_properties`), so they are
            // valid; it has not checked the name.
            Err(error)
                if is_untrusted_self_signed(&error)
                    && self
                        .trusted
                        .iter()
                        .chain(&self.of_host)
                        .any(|ca| ca == end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
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
        let (verifier, server_name) = match proxy {
            Some((_, name)) => (&self.proxy, name),
            None if self.insecure => return Ok(ServerCertVerified::assertion()),
            None => (&self.registry, server_name),
        };
        verifier.verify(end_entity, intermediates, server_name, ocsp_response, now)
    }

    // An insecure registry, too, must sign the handshake with the key of its certificate: that costs nothing.
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

fn is_untrusted_self_signed(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(why) if is_self_signed(why))
}
