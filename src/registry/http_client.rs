//! HTTP, as far as it has nothing to do with registries: clients, limits, errors without secrets.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::AUTHORIZATION;
use reqwest::{Client, Request, RequestBuilder, Response, StatusCode, redirect};
use rustls::ClientConfig;

use crate::cancel::Cancel;

use super::blob_connection::{BlobConnection, BlobConnections};
use super::dns::DnsResolver;
use super::error::{RegistryError, printable};
use super::proxy::{Proxies, Proxy};
use super::rate_limit::{RateLimiter, SocksProxy};
use super::transport_error::{TUNNEL, TransportError, brief};
use super::tunnel_error;
use super::watchdog::Watch;

/// How long a connection may take, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long not a single byte may come, at the head of an answer as in its body.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a body that is kept in memory may take as a whole: a manifest of 100 kB comes in time at 340 bytes a second.
/// Who sends a byte now and then is never idle, and would hold us for ever.
const BODY_TIMEOUT: Duration = Duration::from_secs(300);

/// More redirects than a CDN needs.
const MAX_REDIRECTS: usize = 10;

/// How registries see us.
const USER_AGENT: &str = concat!("spoke-precache/", env!("CARGO_PKG_VERSION"));

/// How a host is reached.
#[derive(Clone, Debug)]
pub(super) struct Way {
    /// Through which proxy.
    pub(super) proxies: Arc<Proxies>,
    /// At which address.
    pub(super) names: DnsResolver,
    /// How fast, together with all others.
    pub(super) limit: Arc<RateLimiter>,
    /// Who sees to that, if there is a limit.
    pub(super) forwarder: Option<Arc<SocksProxy>>,
}

/// Clients with one idea of trust.
#[derive(Debug)]
pub(super) struct Http {
    way: Way,
    /// Follows redirects. reqwest drops `Authorization` when the host, the port or the scheme changes.
    pub(super) following: Client,
    /// Does not: for a body with a secret, which a redirect would take along.
    pub(super) direct: Client,
    lanes: Arc<BlobConnections>,
    /// What another client is made of.
    tls: ClientConfig,
    insecure: bool,
    idle_timeout: Duration,
}

impl Http {
    pub(super) fn new(
        tls: ClientConfig,
        way: Way,
        insecure: bool,
        idle_timeout: Duration,
    ) -> Result<Self, reqwest::Error> {
        let client = |policy| client(&tls, &way, policy, idle_timeout);
        let following = client(follow(insecure))?;
        Ok(Self {
            direct: client(redirect::Policy::none())?,
            lanes: BlobConnections::new(following.clone()),
            following,
            tls,
            way,
            insecure,
            idle_timeout,
        })
    }

    /// Takes note of how the registry answers, or whoever it redirects to.
    pub(super) fn learn(&self, response: &Response) {
        self.lanes.learn(response.version());
    }

    /// A lane for a blob, if there is one of its own.
    pub(super) fn lane(&self, what: &str) -> Result<Option<BlobConnection>, RegistryError> {
        let another = || client(&self.tls, &self.way, follow(self.insecure), self.idle_timeout);
        self.lanes.take(another).map_err(|error| transport(error, what))
    }
}

fn client(
    tls: &ClientConfig,
    way: &Way,
    policy: redirect::Policy,
    idle_timeout: Duration,
) -> Result<Client, reqwest::Error> {
    // Who waits for its turn is not silent.
    let slack = way.limit.slack();
    let idle_timeout = idle_timeout + slack;
    let builder = Client::builder()
        .tls_backend_preconfigured(tls.clone())
        .dns_resolver(way.names.clone())
        .redirect(policy)
        .connect_timeout(CONNECT_TIMEOUT + slack)
        .read_timeout(idle_timeout)
        // A read that times out ends its stream and not the connection, which all later requests would take again: one
        // whose other end is gone while something between still acknowledges would hold us for ever.
        .http2_keep_alive_interval(idle_timeout)
        .http2_keep_alive_timeout(idle_timeout)
        .user_agent(USER_AGENT)
        .referer(false)
        // There is one retry loop, and it is not here.
        .retry(reqwest::retry::never())
        // Only `settings` reads the environment.
        .no_proxy();
    match &way.forwarder {
        Some(forwarder) => forwarder.apply(builder).build(),
        None => way.proxies.set(builder).build(),
    }
}

impl Http {
    /// Sends a request, unless the run is to end first.
    pub(super) async fn send(
        &self,
        request: RequestBuilder,
        what: &str,
        watch: &Watch,
        cancel: &Cancel,
    ) -> Result<Response, SendError> {
        tokio::select! {
            biased;
            stopped = cancel.stopped() => Err(SendError { error: stopped.into(), unconnected: false }),
            sent = self.sent(request, what, watch) => sent,
        }
    }

    async fn sent(&self, request: RequestBuilder, what: &str, watch: &Watch) -> Result<Response, SendError> {
        let (client, request) = request.build_split();
        let again = request.as_ref().ok().and_then(Request::try_clone);
        let sent = match request {
            Ok(request) => {
                let host = request.url().authority().to_owned();
                watch.head(what, &host, client.execute(request)).await
            }
            Err(error) => Err(error),
        };
        let sent = match (sent, again) {
            (Ok(response), Some(again)) => self.follow_through(&client, again, response).await,
            (sent, _) => sent,
        };
        match sent {
            Ok(response) => self.through(response, what),
            Err(error) => Err(SendError {
                unconnected: error.is_connect(),
                error: self.unsent(error, what).await,
            }),
        }
    }

    /// reqwest tells a proxy its password with a request and not again where a redirect of plain HTTP leads; so what was
    /// refused there for want of it is asked for once more, as a request of its own.
    async fn follow_through(
        &self,
        client: &Client,
        request: Request,
        mut response: Response,
    ) -> Result<Response, reqwest::Error> {
        let mut from = request.url().clone();
        for _ in 0..MAX_REDIRECTS {
            let is_refused = response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED;
            if !is_refused || *response.url() == from || self.way.proxies.for_url(response.url()).is_none() {
                break;
            }
            let Some(mut again) = request.try_clone() else {
                break;
            };
            from = response.url().clone();
            *again.url_mut() = from.clone();
            // That was for the registry.
            again.headers_mut().remove(AUTHORIZATION);
            response = client.execute(again).await?;
        }
        Ok(response)
    }

    /// Takes note of the proxy that an answer came through, if that could read and write it: by plain HTTP.
    fn through(&self, mut response: Response, what: &str) -> Result<Response, SendError> {
        let is_plain = response.url().scheme() == "http";
        let Some(proxy) = self.way.proxies.for_url(response.url()).filter(|_| is_plain) else {
            return Ok(response);
        };
        if response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            return Err(SendError {
                error: refused_by(proxy, response.status().as_u16(), what),
                unconnected: false,
            });
        }
        response.extensions_mut().insert(Through(proxy.to_string()));
        Ok(response)
    }

    /// Why there is no answer, and whether a proxy is to blame.
    async fn unsent(&self, error: reqwest::Error, what: &str) -> RegistryError {
        let is_connect = error.is_connect();
        let url = error.url().cloned();
        let (forwarder, is_request) = (self.way.forwarder.as_ref(), error.is_request());
        let mut trouble = TransportError::of(error);
        if let (Some(forwarder), Some(url), true) = (forwarder, &url, is_request)
            && let Some(why) = forwarder.failure(url)
        {
            // What reqwest says of that is a detail of how the limit is held.
            trouble.causes = match self.way.proxies.for_url(url) {
                Some(proxy) => vec![format!("proxy `{proxy}` cannot be reached"), why],
                None => vec![why],
            };
            return trouble.told(what);
        }
        let refused = trouble.causes.iter().position(|cause| cause.starts_with(TUNNEL));
        // No other URLs are tunnelled. It need not be the request's: there are redirects.
        if let (Some(at), Some(proxy)) = (refused, &self.way.proxies.https) {
            let within = &trouble.causes[at + 1..];
            let why = match &trouble.causes[at][TUNNEL.len()..] {
                "proxy authorization required" => return refused_by(proxy, 407, what),
                "unsuccessful" => {
                    let status = match &url {
                        Some(url) => tunnel_error::refusal(proxy, url, &self.way.names).await,
                        None => None,
                    };
                    return match status {
                        Some(status @ (401 | 407)) => refused_by(proxy, status, what),
                        status => RegistryError::ProxyRefusal {
                            what: what.into(),
                            proxy: proxy.to_string(),
                            status,
                        },
                    };
                }
                "failed to create underlying connection" => format!("cannot be reached: {}", brief(within)),
                other if within.is_empty() => format!("does not connect us: {other}"),
                _ => format!("does not connect us: {}", brief(within)),
            };
            return RegistryError::Transport {
                what: what.into(),
                why: printable(&format!("proxy `{proxy}` {why}"))
                    + if trouble.is_no_tls { PLAIN_PROXY } else { "" },
                lasting: trouble.lasting,
            };
        }
        let proxy = url.as_ref().and_then(|url| self.way.proxies.for_url(url));
        match (proxy, url) {
            (Some(proxy), Some(url)) if is_connect && url.scheme() == "http" => {
                trouble.told(&format!("{what}: proxy `{proxy}` cannot be reached"))
            }
            (Some(proxy), _) => trouble.told(&format!("{what} through proxy `{proxy}`")),
            (None, _) => trouble.told(what),
        }
    }
}

/// What to do about a proxy that does not speak TLS.
const PLAIN_PROXY: &str = "\nhint: if the proxy speaks plain HTTP, its URL begins with `http://`";

/// The proxy that an answer came through; beside it in its [`Response`].
#[derive(Clone)]
struct Through(String);

/// What was asked for and of whom, and through which proxy if the answer may be the proxy's own.
pub(super) fn asked(what: &str, response: &Response) -> String {
    match response.extensions().get() {
        Some(Through(proxy)) => format!("{what} through proxy `{proxy}`"),
        None => what.to_owned(),
    }
}

fn refused_by(proxy: &Proxy, status: u16, what: &str) -> RegistryError {
    RegistryError::ProxyUnauthorized {
        what: what.into(),
        proxy: proxy.to_string(),
        status,
        has_credentials: proxy.has_credentials(),
    }
}

fn follow(insecure: bool) -> redirect::Policy {
    redirect::Policy::custom(move |attempt| {
        let downgraded = attempt.url().scheme() != "https"
            && attempt
                .previous()
                .last()
                .is_some_and(|url| url.scheme() == "https");
        if downgraded && !insecure {
            attempt.error("the registry redirects from HTTPS to HTTP")
        } else if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error(format!("more than {MAX_REDIRECTS} redirects"))
        } else {
            attempt.follow()
        }
    })
}

/// Why a request got no answer.
pub(super) struct SendError {
    pub(super) error: RegistryError,
    /// There was not even a connection; TLS counts as one.
    pub(super) unconnected: bool,
}

/// The next piece of a body, unless the run is to end first.
pub(super) async fn chunk(
    response: &mut Response,
    what: &str,
    cancel: &Cancel,
) -> Result<Option<Bytes>, RegistryError> {
    tokio::select! {
        biased;
        stopped = cancel.stopped() => Err(stopped.into()),
        chunk = response.chunk() => chunk.map_err(|error| transport(error, what)),
    }
}

/// A whole body of at most `limit` bytes. `Content-Length` is not believed, only used to refuse early.
pub(super) async fn body(
    response: Response,
    limit: u64,
    what: &str,
    watch: &Watch,
    cancel: &Cancel,
) -> Result<Bytes, RegistryError> {
    let _busy = watch.rates().busy();
    let whole = collect(response, limit, what, watch, cancel);
    let too_slow = |_| RegistryError::Transport {
        what: what.into(),
        why: format!(
            "the answer was not whole after {} seconds",
            BODY_TIMEOUT.as_secs()
        ),
        lasting: false,
    };
    tokio::time::timeout(BODY_TIMEOUT, whole)
        .await
        .map_err(too_slow)?
}

async fn collect(
    mut response: Response,
    limit: u64,
    what: &str,
    watch: &Watch,
    cancel: &Cancel,
) -> Result<Bytes, RegistryError> {
    let too_large = || RegistryError::TooLarge {
        what: what.into(),
        limit,
    };
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let mut whole = BytesMut::new();
    while let Some(piece) = watch.piece(what, chunk(&mut response, what, cancel)).await? {
        if (whole.len() + piece.len()) as u64 > limit {
            return Err(too_large());
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

/// Says what went wrong.
pub(super) fn transport(error: reqwest::Error, what: &str) -> RegistryError {
    TransportError::of(error).told(what)
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream};

    use std::io;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_is_given_up() {
        let pieces = stream::repeat(Bytes::from_static(b" ")).then(async |piece| {
            tokio::time::sleep(Duration::from_secs(25)).await;
            Ok::<_, io::Error>(piece)
        });
        let response = Response::from(axum::http::Response::new(reqwest::Body::wrap_stream(pieces)));
        let began = tokio::time::Instant::now();
        let error = body(response, 1000, "it", &Watch::idle(), &Cancel::default())
            .await
            .expect_err("it never ends");
        assert_eq!(
            error.to_string(),
            "it: the answer was not whole after 300 seconds"
        );
        assert!(error.may_pass());
        assert_eq!(began.elapsed(), BODY_TIMEOUT);
    }
}
