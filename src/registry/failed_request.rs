//! Turns a failed request into a [`RegistryError`], with a hint on what to do where TLS is the reason.

use rustls::CertificateError;

use crate::http::TransportError;

use super::error::RegistryError;

/// What hyper-util's error begins with where a proxy refuses a tunnel; it reports no more of the proxy's answer.
pub(super) const TUNNEL: &str = "tunnel error: ";

/// The error of reqwest 0.13 for a tunnel to an IPv6 address: it takes the brackets as part of the certificate's name.
const INVALID_NAME: &str = "Invalid Server Name";

/// The error of a request for `what` that got no answer.
pub(super) fn transport_error(failure: &TransportError, what: &str) -> RegistryError {
    RegistryError::Transport {
        what: what.into(),
        why: failure.summary() + hint(failure),
        lasting: is_lasting(failure),
    }
}

/// Whether the same request fails again.
pub(super) fn is_lasting(failure: &TransportError) -> bool {
    failure.is_bad_request
        || failure.certificate().is_some()
        || failure.is_not_tls()
        || has_invalid_name(failure)
}

fn has_invalid_name(failure: &TransportError) -> bool {
    failure.causes.iter().any(|cause| cause == INVALID_NAME)
}

fn hint(failure: &TransportError) -> &'static str {
    if failure.is_not_tls() {
        return "\nhint: if the registry speaks plain HTTP, set `insecure = true` for it in registries.conf";
    }
    if has_invalid_name(failure) {
        return "\nhint: list the address in `NO_PROXY`, or name the registry by a host name: an IPv6 address cannot be \
                reached by TLS through a proxy";
    }
    match failure.certificate() {
        Some(_) if failure.is_self_signed() => {
            "\nhint: put this certificate into `/etc/containers/certs.d/HOST[:PORT]/ca.crt` or among the authorities that \
             the host trusts, or give the registry one that is signed by an authority"
        }
        Some(why) => certificate_hint(why),
        None => "",
    }
}

fn certificate_hint(why: &CertificateError) -> &'static str {
    use CertificateError as E;
    match why {
        E::UnknownIssuer => {
            "\nhint: put the certificate of its authority into `/etc/containers/certs.d/HOST[:PORT]/ca.crt` or among those \
             that the host trusts"
        }
        E::Expired | E::ExpiredContext { .. } => {
            "\nhint: renew the registry's certificate; or set the node's clock, if that is wrong"
        }
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "\nhint: set the node's clock, or the clock of the machine where the certificate was made"
        }
        E::NotValidForName | E::NotValidForNameContext { .. } => {
            "\nhint: name the registry as its certificate does, in the references and in registries.conf, or give it a \
             certificate for this name"
        }
        _ => "\nhint: give the registry a certificate that the host trusts for this name",
    }
}
