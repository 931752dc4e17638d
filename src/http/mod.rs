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

use reqwest::Url;

use crate::report::Printable;

/// How much of a server's text is repeated in a message, in characters. A certificate may name a thousand hosts.
const EXCERPT_CHARS: usize = 300;

/// A server's text made fit for a log: bounded, on one line, without terminal escapes.
pub fn excerpt(text: &str) -> String {
    Printable(text).to_string().chars().take(EXCERPT_CHARS).collect()
}

/// A URL for messages: without user and password, and without the query, which may be a secret too.
pub fn shown_url(url: &Url) -> String {
    let mut url = url.clone();
    // These fail for a URL without a host, which has neither.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    excerpt(url.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_one_bounded_line() {
        assert_eq!(excerpt(&"x".repeat(5000)).len(), EXCERPT_CHARS);
        assert_eq!(excerpt("no\u{1b}[31m\nentry"), "no?[31m entry");
    }

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        for (url, shown) in [
            (
                "https://user:hunter2@s.io:5000/a/b?token=1#x",
                "https://s.io:5000/a/b",
            ),
            ("file:///var/lib/a%20b", "file:///var/lib/a%20b"),
        ] {
            assert_eq!(shown_url(&url.parse().expect("a URL")), shown);
        }
    }
}
