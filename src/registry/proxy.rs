//! Chooses the proxy for a URL, and parses the URLs of proxies with their credentials.
//!
//! ```text
//! https://registry/…   CONNECT registry:443 to the proxy of HTTPS, then TLS with the registry through that tunnel
//! http://registry/…    GET http://registry/… to the proxy of HTTP
//! ```
//!
//! The proxy is chosen for every URL anew, because a registry may redirect to a CDN that is reached in another way. The proxy
//! resolves the target's name, and only the proxy's name is resolved here: a node behind a proxy often has no name server for
//! public names. An `https` proxy must have a certificate that the system trusts, whatever `certs.d` and `insecure` state for
//! the registry behind it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::header::HeaderValue;
use reqwest::{ClientBuilder, Url};
use secrecy::{ExposeSecret as _, SecretString};

use super::no_proxy::NoProxy;

/// A proxy by its URL: `http://user:password@proxy.example:3128`, or `proxy.example:3128` for `http`.
#[derive(Clone)]
pub struct Proxy {
    /// Without user and password.
    url: Url,
    /// `Proxy-Authorization`, if the URL has a user.
    authorization: Option<SecretString>,
}

/// Why a text is not the URL of a proxy. Never repeats the text: there may be a password in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// SOCKS, for instance.
    #[error("only proxies by `http://` and `https://` are supported")]
    Scheme,
    /// Not `host`, `host:port` or a URL.
    #[error("it is not the URL of a proxy: {0}")]
    Url(String),
    /// `http://user:pass/word@proxy`: everything from the slash on would be a path.
    #[error(
        "it is not the URL of a proxy: there is a `@` after its host\nhint: in a user or password write `%2F` for `/`, `%3F` for `?`, `%23` for `#`"
    )]
    Ambiguous,
    /// `http://user:100%@proxy`
    #[error(
        "a `%` in its user or password is not followed by two hexadecimal digits\nhint: write `%25` for `%`"
    )]
    Escape,
}

impl FromStr for Proxy {
    type Err = ProxyError;

    fn from_str(text: &str) -> Result<Self, ProxyError> {
        let text = text.trim();
        // The parser of URLs would drop them.
        if text.contains(|letter: char| letter.is_control() || letter == ' ') {
            return Err(ProxyError::Url("there is a blank in it".into()));
        }
        let url = match text.split_once("://") {
            Some((scheme, _)) if ["http", "https"].contains(&scheme.to_ascii_lowercase().as_str()) => {
                Url::parse(text)
            }
            Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                return Err(ProxyError::Scheme);
            }
            _ => Url::parse(&format!("http://{text}")),
        };
        let mut url = url.map_err(|error| ProxyError::Url(error.to_string()))?;
        let behind = [Some(url.path()), url.query(), url.fragment()];
        if behind.into_iter().flatten().any(|part| part.contains('@')) {
            return Err(ProxyError::Ambiguous);
        }
        let authorization = match (url.username(), url.password()) {
            ("", None) => None,
            (user, password) => {
                let mut both = unescape(user)?;
                both.push(b':');
                both.extend(unescape(password.unwrap_or_default())?);
                Some(format!("Basic {}", BASE64_STANDARD.encode(both)).into())
            }
        };
        // These cannot fail for a URL with a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_path("");
        url.set_query(None);
        url.set_fragment(None);
        Ok(Self { url, authorization })
    }
}

/// Bytes for `%41`.
fn unescape(text: &str) -> Result<Vec<u8>, ProxyError> {
    let (mut rest, mut bytes) = (text.as_bytes(), Vec::new());
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let hex = |at: usize| char::from(*behind.get(at)?).to_digit(16);
        let (Some(high), Some(low)) = (hex(0), hex(1)) else {
            return Err(ProxyError::Escape);
        };
        bytes.push((high << 4 | low) as u8);
        rest = &behind[2..];
    }
    Ok(bytes)
}

impl Proxy {
    /// Whether its URL has a user and a password.
    pub(super) fn has_credentials(&self) -> bool {
        self.authorization.is_some()
    }

    /// Host and port, if it is reached without TLS.
    pub(super) fn plain_address(&self) -> Option<(&str, u16)> {
        let host = self.url.host_str().filter(|_| self.url.scheme() == "http")?;
        Some((host, self.url.port_or_known_default()?))
    }

    /// Host and port.
    pub(super) fn address(&self) -> (&str, u16) {
        // A URL without a host is refused, and both schemes have a port.
        let port = self.url.port_or_known_default().unwrap_or_default();
        (self.url.host_str().unwrap_or_default(), port)
    }

    /// The same proxy, reached at `address`. By TLS it keeps its name, which its certificate is for.
    pub(super) fn at(&self, address: SocketAddr) -> Self {
        let mut stand_in = self.clone();
        // These cannot fail for a URL that has a host.
        match self.alias() {
            Some(alias) => drop(stand_in.url.set_host(Some(&alias))),
            None if self.tls_host().is_none() => drop(stand_in.url.set_ip_host(address.ip())),
            None => {}
        }
        let _ = stand_in.url.set_port(Some(address.port()));
        stand_in
    }

    /// The name of the proxy when it is reached at another address, if it is reached by TLS and its URL has an IP address: a
    /// URL with an IP address would lead to that address. No other host can have this name (`.invalid`: RFC 2606), and `tls`
    /// maps it to the proxy.
    pub(super) fn alias(&self) -> Option<String> {
        let host = self.tls_host()?.trim_start_matches('[').trim_end_matches(']');
        Some(match host.parse().ok()? {
            IpAddr::V4(address) => format!("{:08x}.proxy.invalid", address.to_bits()),
            IpAddr::V6(address) => format!("{:032x}.proxy.invalid", address.to_bits()),
        })
    }

    /// The CONNECT request for a tunnel to the host of `url`, with user and password.
    pub(super) fn connect_request(&self, url: &Url) -> Option<String> {
        let (host, port) = (url.host_str()?, url.port_or_known_default()?);
        let authorization = self
            .authorization
            .as_ref()
            .map_or(String::new(), |authorization| {
                format!("Proxy-Authorization: {}\r\n", authorization.expose_secret())
            });
        Some(format!(
            "CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{authorization}\r\n"
        ))
    }

    /// The host that its certificate must be for, if it is reached by TLS.
    pub(super) fn tls_host(&self) -> Option<&str> {
        self.url.host_str().filter(|_| self.url.scheme() == "https")
    }
}

/// `http://proxy.example:3128`, without user and password.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port_or_known_default().unwrap_or_default();
        write!(f, "{}://{host}:{port}", self.url.scheme())
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

/// The configured proxies; by default everything is reached directly.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// For URLs with `http`.
    pub http: Option<Proxy>,
    /// For URLs with `https`; never used instead of the other.
    pub https: Option<Proxy>,
    /// The hosts that use neither.
    pub except: NoProxy,
}

impl Proxies {
    /// The proxy for a URL; nothing if it is reached directly.
    pub fn for_url(&self, url: &Url) -> Option<&Proxy> {
        let proxy = match url.scheme() {
            "https" => self.https.as_ref(),
            "http" => self.http.as_ref(),
            _ => None,
        };
        proxy.filter(|_| !self.except.covers(url))
    }

    /// Makes a client choose the proxy here before each connection.
    pub(super) fn set(self: &Arc<Self>, mut builder: ClientBuilder) -> ClientBuilder {
        // One for each scheme, because each has its own password.
        for (scheme, proxy) in [("http", &self.http), ("https", &self.https)] {
            let Some(proxy) = proxy else { continue };
            let proxies = Arc::clone(self);
            let mut choice = reqwest::Proxy::custom(move |url| {
                let proxy = proxies.for_url(url).filter(|_| url.scheme() == scheme);
                proxy.map(|proxy| proxy.url.clone())
            });
            if let Some(authorization) = &proxy.authorization {
                let mut value =
                    HeaderValue::try_from(authorization.expose_secret()).expect("base64 is ASCII");
                value.set_sensitive(true);
                choice = choice.custom_http_auth(value);
            }
            builder = builder.proxy(choice);
        }
        builder
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn a_proxy_is_a_url_or_a_host_and_port() {
        for (text, expected) in [
            ("http://proxy.example:3128", "http://proxy.example:3128"),
            ("HTTPS://proxy.example/", "https://proxy.example:443"),
            (" proxy.example ", "http://proxy.example:80"),
            ("proxy:3128", "http://proxy:3128"),
            ("[fd00::1]:3128", "http://[fd00::1]:3128"),
            ("user:pa%40ss@proxy:3128", "http://proxy:3128"),
        ] {
            assert_eq!(text.parse::<Proxy>().expect(text).to_string(), expected, "{text}");
        }
    }

    #[test]
    fn user_and_password_are_unescaped_and_do_not_show() {
        for (text, expected) in [
            ("http://user:pa%40s%2Fs%25@proxy", Some("user:pa@s/s%")),
            ("http://do%3Amain:x:y@proxy", Some("do:main:x:y")),
            ("http://user@proxy", Some("user:")),
            ("http://:only@proxy", Some(":only")),
            ("http://proxy", None),
        ] {
            let proxy: Proxy = text.parse().expect(text);
            let sent = proxy.authorization.as_ref().map(ExposeSecret::expose_secret);
            let expected = expected.map(|both| format!("Basic {}", BASE64_STANDARD.encode(both)));
            assert_eq!(sent, expected.as_deref(), "{text}");
            let shown = format!("{proxy:?} {proxy} {}", proxy.url);
            assert_eq!(shown, "Proxy(http://proxy:80) http://proxy:80 http://proxy/");
        }
    }

    #[test]
    fn an_invalid_url_is_refused_and_not_repeated() {
        for text in [
            "socks5://user:hunter2@proxy:1080",
            "ftp://user:hunter2@proxy",
            "http://user:hunter2@",
            "http://user:hunter2@proxy:port",
            "http://user:hunter2@pro xy",
            "http://user:hunter2%zz@proxy",
            "http://user:hunter2%4",
            // The port would be 12, and the rest a path, a query or a fragment.
            "http://user:12/hunter2@proxy:3128",
            "http://user:12?hunter2@proxy:3128",
            "user:12#hunter2@proxy:3128",
            "http://user:12\\hunter2@proxy:3128",
            "http://",
            "://hunter2",
        ] {
            let error = text.parse::<Proxy>().expect_err(text);
            assert!(
                !format!("{error:?} {error}").contains("hunter2"),
                "{text}: {error}"
            );
        }
    }
}
