//! Contains the HTTP code that registries and the cluster's API share: client defaults, backoff, `Retry-After`, causes of
//! failures.
//!
//! Nothing here knows what a registry or an API server is, and nothing logs or sends. Which failures are worth a retry, and
//! how long to go on, is decided by `registry` and `cluster`.

mod backoff;
mod certificate_error;
mod client_builder;
mod retry_after;
mod transport_error;

pub use backoff::Backoff;
pub use certificate_error::is_self_signed;
pub use client_builder::{bearer, client_builder};
pub use retry_after::retry_after;
pub use transport_error::{TransportError, dns_failure};

use crate::report::Printable;

/// How much of a server's text is repeated in a message, in characters. A certificate may name a thousand hosts.
const EXCERPT_CHARS: usize = 300;

/// A server's text made fit for a log: bounded, on one line, without terminal escapes.
pub fn excerpt(text: &str) -> String {
    Printable(text).to_string().chars().take(EXCERPT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_one_bounded_line() {
        assert_eq!(excerpt(&"x".repeat(5000)).len(), EXCERPT_CHARS);
        assert_eq!(excerpt("no\u{1b}[31m\nentry"), "no?[31m entry");
    }
}
