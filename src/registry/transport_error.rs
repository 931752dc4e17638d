//! What went wrong between two machines, in a few words: the chain of causes that reqwest, hyper and rustls give, without
//! what says nothing and without any URL.

use std::error::Error as _;
use std::io;

use rustls::CertificateError;

use super::error::{RegistryError, printable};

/// What hyper-util says where a proxy does not give the tunnel that it was asked for; it tells no more of its answer.
pub(super) const TUNNEL: &str = "tunnel error: ";

/// What went wrong, without any URL, for a redirect's is as good as a password.
pub(super) struct TransportError {
    /// From the outside in, none twice.
    pub(super) causes: Vec<String>,
    /// The same will happen again.
    pub(super) lasting: bool,
    /// Where TLS was to be, there was something else.
    pub(super) is_no_tls: bool,
    /// What to do about it if the registry is to blame.
    hint: &'static str,
}

/// What reqwest 0.13 says of a tunnel to an IPv6 address: it takes the brackets for a part of the certificate's name.
const NO_NAME: &str = "Invalid Server Name";

impl TransportError {
    pub(super) fn of(error: reqwest::Error) -> Self {
        let mut trouble = Self {
            lasting: error.is_redirect() || error.is_builder(),
            causes: Vec::new(),
            is_no_tls: false,
            hint: "",
        };
        let error = error.without_url();
        trouble.causes.push(error.to_string());
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Some repeat what they wrap.
            if !trouble.causes.last().is_some_and(|last| last.ends_with(&text)) {
                trouble.causes.push(text);
            }
            match tls_cause(cause) {
                Some(rustls::Error::InvalidCertificate(why)) => {
                    trouble.lasting = true;
                    trouble.hint = hint(why);
                }
                Some(rustls::Error::InvalidMessage(_)) => {
                    trouble.lasting = true;
                    trouble.is_no_tls = true;
                    trouble.hint =
                        "\nhint: if the registry speaks plain HTTP, say `insecure = true` in registries.conf";
                    break;
                }
                _ => {}
            }
            if trouble.causes.last().is_some_and(|cause| cause == NO_NAME) {
                trouble.lasting = true;
                trouble.hint = "\nhint: list it in `NO_PROXY`, or call it by a name: an IPv6 address cannot be reached \
                                by TLS through a proxy";
            }
            source = cause.source();
        }
        trouble
    }

    pub(super) fn told(self, what: &str) -> RegistryError {
        RegistryError::Transport {
            what: what.into(),
            why: printable(&brief(&self.causes)) + self.hint,
            lasting: self.lasting,
        }
    }
}

/// What to do about a certificate that is refused.
fn hint(why: &CertificateError) -> &'static str {
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
            "\nhint: set the node's clock, or the registry's where the certificate was made"
        }
        E::NotValidForName | E::NotValidForNameContext { .. } => {
            "\nhint: name the registry as its certificate does, in the references and in registries.conf, or give it a \
             certificate for this name"
        }
        _ => "\nhint: give the registry a certificate that the host trusts for this name",
    }
}

/// What wraps the cause of interest and says nothing.
const WRAPPERS: [&str; 7] = [
    "error sending request",
    "error decoding response body",
    "request or response body error",
    "error reading a body from connection",
    "client error (Connect)",
    "dns error",
    "error resolving DNS",
];

/// The causes in one line, without those that say nothing and without the resolver's innards:
/// `no records found for Query { name: Name("quay.io."), query_type: AAAA, query_class: IN }`
pub(super) fn brief(causes: &[String]) -> String {
    let is_name = causes.iter().any(|cause| cause == "dns error");
    let telling = causes.iter().filter(|cause| !WRAPPERS.contains(&cause.as_str()));
    let telling = telling.map(|cause| {
        let cause = cause.strip_prefix("DNS error: ").unwrap_or(cause);
        cause.split(" for Query {").next().unwrap_or(cause)
    });
    let mut parts: Vec<&str> = telling.collect();
    if is_name {
        parts.insert(0, "its name is not resolved");
    } else if parts.is_empty() {
        parts.extend(causes.first().map(String::as_str));
    }
    parts.join(": ")
}

/// The error of TLS that `cause` is or wraps; `io::Error` hides what it wraps from `source`, and may do so twice.
fn tls_cause<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    match wrapped {
        Some(wrapped) => tls_cause(wrapped),
        None => cause.downcast_ref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_in_a_few_words() {
        for (causes, expected) in [
            (
                &[
                    "error sending request",
                    "client error (Connect)",
                    "dns error",
                    "error resolving DNS",
                    "DNS error: no records found for Query { name: Name(\"quay.io.\"), query_type: AAAA, query_class: IN }",
                ][..],
                "its name is not resolved: no records found",
            ),
            (
                &["error sending request", "client error (Connect)", "dns error"],
                "its name is not resolved",
            ),
            (
                &[
                    "error sending request",
                    "client error (Connect)",
                    "tcp connect error",
                    "Connection refused (os error 111)",
                ],
                "tcp connect error: Connection refused (os error 111)",
            ),
            (&["error sending request"], "error sending request"),
        ] {
            let causes: Vec<String> = causes.iter().map(|cause| (*cause).to_owned()).collect();
            assert_eq!(brief(&causes), expected);
        }
    }
}
