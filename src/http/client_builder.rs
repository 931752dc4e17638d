//! Builds HTTP clients with the settings that registries and the cluster's API have in common.

use reqwest::header::{HeaderValue, InvalidHeaderValue};
use reqwest::{Client, ClientBuilder};
use rustls::ClientConfig;
use secrecy::{ExposeSecret as _, SecretString};

/// The `User-Agent` of every request.
const USER_AGENT: &str = concat!("spoke-precache/", env!("CARGO_PKG_VERSION"));

/// A client that uses `tls` and leaves everything else to the caller: it does not retry (a second retry loop would multiply
/// the requests of the first) and uses no proxy of the environment, which only `settings` reads.
pub fn client_builder(tls: ClientConfig) -> ClientBuilder {
    Client::builder()
        .tls_backend_preconfigured(tls)
        .retry(reqwest::retry::never())
        .no_proxy()
        .referer(false)
        .user_agent(USER_AGENT)
}

/// `Authorization` with a bearer token (RFC 6750), marked as a secret. An error if the token has bytes that no header can
/// have.
pub fn bearer(token: &SecretString) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose_secret()))?;
    value.set_sensitive(true);
    Ok(value)
}
