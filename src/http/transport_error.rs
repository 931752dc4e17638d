//! Explains in a few words why a request failed without an HTTP response: the causes that reqwest, hyper and rustls report.
//!
//! Wrappers that add nothing and all URLs are left out: the URL of a redirect is as good as a password.

use std::error::Error;
use std::io;

use rustls::CertificateError;

use super::certificate_error::{describe, is_self_signed};
use super::excerpt;

/// The failure of one request, or of the body of its answer.
#[derive(Debug)]
pub struct TransportError {
    /// From the outermost cause to the innermost, none twice.
    pub causes: Vec<String>,
    /// The request itself is at fault and fails again: it has no valid URL, or a redirect was refused.
    pub is_bad_request: bool,
    is_timeout: bool,
    tls: Option<rustls::Error>,
}

impl TransportError {
    /// Reads all causes of `error`.
    pub fn of(error: reqwest::Error) -> Self {
        let mut failure = Self {
            is_bad_request: error.is_redirect() || error.is_builder(),
            is_timeout: error.is_timeout(),
            causes: Vec::new(),
            tls: None,
        };
        let error = error.without_url();
        failure.causes.push(error.to_string());
        let mut next = error.source();
        while let Some(cause) = next {
            let tls = tls_error(cause);
            let text = match tls {
                Some(rustls::Error::InvalidCertificate(why)) => describe(why),
                _ => cause.to_string(),
            };
            // Some repeat what they wrap.
            if !failure.causes.last().is_some_and(|last| last.ends_with(&text)) {
                failure.causes.push(text);
            }
            failure.tls = tls.cloned().or(failure.tls);
            if failure.is_not_tls() {
                break;
            }
            next = cause.source();
        }
        failure
    }

    /// What is wrong with the server's certificate, if that is the reason.
    pub fn certificate(&self) -> Option<&CertificateError> {
        match &self.tls {
            Some(rustls::Error::InvalidCertificate(why)) => Some(why),
            _ => None,
        }
    }

    /// The server presents a self-signed certificate that is not among the trusted ones.
    pub fn is_self_signed(&self) -> bool {
        self.certificate().is_some_and(is_self_signed)
    }

    /// The server speaks another protocol where TLS is expected.
    pub fn is_not_tls(&self) -> bool {
        matches!(self.tls, Some(rustls::Error::InvalidMessage(_)))
    }

    /// The innermost cause alone.
    pub fn innermost(&self) -> String {
        match self.causes.last() {
            _ if self.is_timeout => "no answer in time".to_owned(),
            Some(cause) => excerpt(cause),
            None => String::new(),
        }
    }

    /// All causes in one line.
    pub fn summary(&self) -> String {
        excerpt(&summary(&self.causes))
    }

    /// The causes within the one at this position, in one line.
    pub fn summary_within(&self, position: usize) -> String {
        summary(self.causes.get(position + 1..).unwrap_or_default())
    }
}

/// Texts of wrappers that add nothing to the cause.
const WRAPPERS: [&str; 7] = [
    "error sending request",
    "error decoding response body",
    "request or response body error",
    "error reading a body from connection",
    "client error (Connect)",
    "dns error",
    "error resolving DNS",
];

/// The causes in one line, without [`WRAPPERS`] and without the resolver's query:
/// `no records found for Query { name: Name("quay.io."), query_type: AAAA, query_class: IN }`
fn summary(causes: &[String]) -> String {
    let is_dns = causes.iter().any(|cause| cause == "dns error");
    let useful = causes.iter().filter(|cause| !WRAPPERS.contains(&cause.as_str()));
    let useful = useful.map(|cause| {
        let cause = cause.strip_prefix("DNS error: ").unwrap_or(cause);
        cause.split(" for Query {").next().unwrap_or(cause)
    });
    let mut texts: Vec<&str> = useful.collect();
    if is_dns {
        texts.insert(0, "its name is not resolved");
    } else if texts.is_empty() {
        texts.extend(causes.first().map(String::as_str));
    }
    texts.join(": ")
}

/// The summary of a failed DNS lookup.
pub fn dns_failure(error: &impl Error) -> String {
    summary(&["dns error".to_owned(), error.to_string()])
}

/// The TLS error that `cause` is or wraps. `io::Error` hides from `source` what it wraps, and one may wrap another.
fn tls_error<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    match wrapped {
        Some(wrapped) => tls_error(wrapped),
        None => cause.downcast_ref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_summed_up_in_a_few_words() {
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
            assert_eq!(summary(&causes), expected);
        }
    }
}
