//! The HTTP client of one registry: timeouts, redirects, proxies, connections for blobs, and errors without secrets.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::AUTHORIZATION;
use reqwest::{Client, Request, RequestBuilder, Response, StatusCode, Url, redirect};
use rustls::ClientConfig;

use crate::cancel::Cancel;
use crate::http::{TransportError, client_builder, excerpt};

use super::blob_connection::{BlobConnection, BlobConnections};
use super::dns::DnsResolver;
use super::error::RegistryError;
use super::failed_request::{TUNNEL, is_lasting, transport_error};
use super::proxy::{Proxies, Proxy};
use super::rate_limit::{RateLimiter, SocksProxy};
use super::response_monitor::{Patience, Watchdog};
use super::tunnel_error;
use super::upload_body::RequestBody;

/// How long a connection may take, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a registry may send no byte, before an answer or in the middle of it.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a registry may take to answer after it has received a whole body: it may copy gigabytes to an object store.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a body that is kept in memory may take as a whole: a manifest of 100 kB arrives in time at 340 bytes a second. A
/// server that sends a byte now and then is never idle, and the body would never end.
const BODY_TIMEOUT: Duration = Duration::from_secs(300);

/// More redirects than a CDN needs.
const MAX_REDIRECTS: usize = 10;

/// How hosts are reached: the same for all registries.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) proxies: Arc<Proxies>,
    pub(super) dns: DnsResolver,
    /// The limit on the rate of all connections together.
    pub(super) limit: Arc<RateLimiter>,
    /// What enforces the limit, if there is one.
    pub(super) forwarder: Option<Arc<SocksProxy>>,
}

/// Clients with the TLS configuration of one registry.
#[derive(Debug)]
pub(super) struct HttpClient {
    route: Route,
    /// Follows redirects. reqwest drops `Authorization` when the host, the port or the scheme changes.
    pub(super) following: Client,
    /// Does not: for a body with a secret, which a redirect would pass on.
    pub(super) direct: Client,
    /// For requests with a body. Made when the first one is sent.
    uploading: OnceLock<Client>,
    blob_connections: Arc<BlobConnections>,
    /// For further clients.
    tls: ClientConfig,
    insecure: bool,
    idle_timeout: Duration,
}

impl HttpClient {
    pub(super) fn new(
        tls: ClientConfig,
        route: Route,
        insecure: bool,
        idle_timeout: Duration,
    ) -> Result<Self, reqwest::Error> {
        let client = |policy| client(&tls, &route, policy, idle_timeout, true);
        let following = client(follow(insecure))?;
        Ok(Self {
            direct: client(redirect::Policy::none())?,
            uploading: OnceLock::new(),
            blob_connections: BlobConnections::new(following.clone()),
            following,
            tls,
            route,
            insecure,
            idle_timeout,
        })
    }

    /// Records the version of HTTP by which the registry answers, or the host it redirects to.
    pub(super) fn learn_version(&self, response: &Response) {
        self.blob_connections.learn_version(response.version());
    }

    /// A connection of its own for a blob, if the registry requires that.
    pub(super) fn blob_connection(&self, what: &str) -> Result<Option<BlobConnection>, RegistryError> {
        let (policy, idle_timeout) = (follow(self.insecure), self.idle_timeout);
        let another = || client(&self.tls, &self.route, policy, idle_timeout, true);
        let connection = self.blob_connections.take(another);
        connection.map_err(|error| failed_request(error, what))
    }

    /// A client that follows no redirects, and that does not end a request whose answer takes long: reqwest's timeout runs
    /// while a body is sent. [`upload`](Self::upload) watches the body instead.
    pub(super) fn uploading(&self, what: &str) -> Result<&Client, RegistryError> {
        if let Some(client) = self.uploading.get() {
            return Ok(client);
        }
        let policy = redirect::Policy::none();
        let made = client(&self.tls, &self.route, policy, self.idle_timeout, false);
        let made = made.map_err(|error| failed_request(error, what))?;
        Ok(self.uploading.get_or_init(|| made))
    }
}

fn client(
    tls: &ClientConfig,
    route: &Route,
    policy: redirect::Policy,
    idle_timeout: Duration,
    has_read_timeout: bool,
) -> Result<Client, reqwest::Error> {
    // A connection that waits for its turn under a limit is not idle.
    let slack = route.limit.slack();
    let idle_timeout = idle_timeout + slack;
    let builder = client_builder(tls.clone())
        .dns_resolver(route.dns.clone())
        .redirect(policy)
        .connect_timeout(CONNECT_TIMEOUT + slack)
        // A read that times out ends its stream but not the connection, which later requests would use again. If the server
        // is gone while a middlebox still acknowledges packets, none of them would be answered.
        .http2_keep_alive_interval(idle_timeout)
        .http2_keep_alive_timeout(idle_timeout);
    let builder = match has_read_timeout {
        true => builder.read_timeout(idle_timeout),
        false => builder,
    };
    match &route.forwarder {
        Some(forwarder) => forwarder.apply(builder).build(),
        None => route.proxies.set(builder).build(),
    }
}

impl HttpClient {
    /// Sends a request, unless the run stops first.
    pub(super) async fn send(
        &self,
        request: RequestBuilder,
        what: &str,
        watchdog: &Watchdog,
        cancel: &Cancel,
    ) -> Result<Response, SendError> {
        tokio::select! {
            biased;
            stopped = cancel.stopped() => Err(SendError { error: stopped.into(), unconnected: false }),
            executed = self.execute(request, None, what, watchdog) => executed,
        }
    }

    /// Sends a request with a body, unless the run stops first. An error if the connection takes no bytes for the idle
    /// timeout, or if no answer follows the body in time.
    pub(super) async fn upload(
        &self,
        request: RequestBuilder,
        body: &RequestBody,
        what: &str,
        watchdog: &Watchdog,
        cancel: &Cancel,
    ) -> Result<Response, SendError> {
        tokio::select! {
            biased;
            stopped = cancel.stopped() => Err(SendError { error: stopped.into(), unconnected: false }),
            executed = self.execute(request, Some(body), what, watchdog) => executed,
        }
    }

    async fn execute(
        &self,
        request: RequestBuilder,
        body: Option<&RequestBody>,
        what: &str,
        watchdog: &Watchdog,
    ) -> Result<Response, SendError> {
        let (client, request) = request.build_split();
        let again = request.as_ref().ok().and_then(Request::try_clone);
        let executed = match request {
            Ok(request) => {
                let host = request.url().authority().to_owned();
                let sent = client.execute(request);
                match body {
                    None => watchdog.head(what, &host, sent).await,
                    Some(body) => {
                        let patience = self.patience();
                        watchdog.upload(what, &host, body, patience, sent).await?
                    }
                }
            }
            Err(error) => Err(error),
        };
        let executed = match (executed, again) {
            (Ok(response), Some(again)) => self.redirect_through_proxy(&client, again, response).await,
            (executed, _) => executed,
        };
        match executed {
            Ok(response) => self.check_proxy(response, what),
            Err(error) => Err(SendError {
                unconnected: error.is_connect(),
                error: self.explain(error, what).await,
            }),
        }
    }

    fn patience(&self) -> Patience {
        Patience {
            idle: self.idle_timeout + self.route.limit.slack(),
            answer: ANSWER_TIMEOUT,
        }
    }

    /// Repeats a redirected request that a proxy refused for its missing login, as a request of its own: reqwest sends the
    /// proxy's password with a request but not where a redirect of plain HTTP leads.
    async fn redirect_through_proxy(
        &self,
        client: &Client,
        request: Request,
        mut response: Response,
    ) -> Result<Response, reqwest::Error> {
        let mut from = request.url().clone();
        for _ in 0..MAX_REDIRECTS {
            let is_refused = response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED;
            if !is_refused || *response.url() == from || self.route.proxies.for_url(response.url()).is_none()
            {
                break;
            }
            let Some(mut again) = request.try_clone() else {
                break;
            };
            from = response.url().clone();
            *again.url_mut() = from.clone();
            // Those credentials are the registry's.
            again.headers_mut().remove(AUTHORIZATION);
            response = client.execute(again).await?;
        }
        Ok(response)
    }

    /// Records the proxy of an answer by plain HTTP, because the proxy may have written it. An error if the proxy requires a
    /// login.
    fn check_proxy(&self, mut response: Response, what: &str) -> Result<Response, SendError> {
        let is_plain = response.url().scheme() == "http";
        let Some(proxy) = self.route.proxies.for_url(response.url()).filter(|_| is_plain) else {
            return Ok(response);
        };
        if response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            return Err(SendError {
                error: proxy_login_refused(proxy, response.status().as_u16(), what),
                unconnected: false,
            });
        }
        response
            .extensions_mut()
            .insert(AnsweringProxy(proxy.to_string()));
        Ok(response)
    }

    /// Why there is no answer, and whether a proxy is the reason.
    async fn explain(&self, error: reqwest::Error, what: &str) -> RegistryError {
        let is_connect = error.is_connect();
        let url = error.url().cloned();
        let (forwarder, is_request) = (self.route.forwarder.as_ref(), error.is_request());
        let mut failure = TransportError::of(error);
        if let (Some(forwarder), Some(url), true) = (forwarder, &url, is_request)
            && let Some(why) = forwarder.failure(url)
        {
            // reqwest only knows that the forwarder of the limit did not connect.
            failure.causes = match self.route.proxies.for_url(url) {
                Some(proxy) => vec![format!("proxy `{proxy}` cannot be reached"), why],
                None => vec![why],
            };
            return transport_error(&failure, what);
        }
        let tunnel = failure.causes.iter().position(|cause| cause.starts_with(TUNNEL));
        // Only URLs of HTTPS are tunnelled. It need not be the URL of the request, because of redirects.
        if let (Some(position), Some(proxy)) = (tunnel, &self.route.proxies.https) {
            return self
                .explain_tunnel(&failure, position, proxy, url.as_ref(), what)
                .await;
        }
        let proxy = url.as_ref().and_then(|url| self.route.proxies.for_url(url));
        match (proxy, url) {
            (Some(proxy), Some(url)) if is_connect && url.scheme() == "http" => {
                transport_error(&failure, &format!("{what}: proxy `{proxy}` cannot be reached"))
            }
            (Some(proxy), _) => transport_error(&failure, &format!("{what} through proxy `{proxy}`")),
            (None, _) => transport_error(&failure, what),
        }
    }

    /// Why `proxy` gives no tunnel; the cause at `position` is the tunnel's.
    async fn explain_tunnel(
        &self,
        failure: &TransportError,
        position: usize,
        proxy: &Proxy,
        url: Option<&Url>,
        what: &str,
    ) -> RegistryError {
        let within = failure.summary_within(position);
        let why = match failure.causes[position].trim_start_matches(TUNNEL) {
            "proxy authorization required" => return proxy_login_refused(proxy, 407, what),
            "unsuccessful" => {
                let status = match url {
                    Some(url) => tunnel_error::refusal(proxy, url, &self.route.dns).await,
                    None => None,
                };
                return match status {
                    Some(status @ (401 | 407)) => proxy_login_refused(proxy, status, what),
                    status => RegistryError::ProxyRefusal {
                        what: what.into(),
                        proxy: proxy.to_string(),
                        status,
                    },
                };
            }
            "failed to create underlying connection" => format!("cannot be reached: {within}"),
            other if within.is_empty() => format!("refuses the connection: {other}"),
            _ => format!("refuses the connection: {within}"),
        };
        let hint = if failure.is_not_tls() { PLAIN_PROXY } else { "" };
        RegistryError::Transport {
            what: what.into(),
            why: excerpt(&format!("proxy `{proxy}` {why}")) + hint,
            lasting: is_lasting(failure),
        }
    }
}

/// What to do about a proxy that does not speak TLS.
const PLAIN_PROXY: &str = "\nhint: if the proxy speaks plain HTTP, its URL must begin with `http://`";

/// The proxy that may have written an answer; one of the extensions of its [`Response`].
#[derive(Clone)]
struct AnsweringProxy(String);

/// What was requested, and the proxy if the answer may be the proxy's own.
pub(super) fn describe(what: &str, response: &Response) -> String {
    match response.extensions().get() {
        Some(AnsweringProxy(proxy)) => format!("{what} through proxy `{proxy}`"),
        None => what.to_owned(),
    }
}

fn proxy_login_refused(proxy: &Proxy, status: u16, what: &str) -> RegistryError {
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

impl From<RegistryError> for SendError {
    fn from(error: RegistryError) -> Self {
        Self {
            error,
            unconnected: false,
        }
    }
}

/// Why a request got no answer.
pub(super) struct SendError {
    pub(super) error: RegistryError,
    /// There was no connection, or TLS failed.
    pub(super) unconnected: bool,
}

/// The next bytes of a body, unless the run stops first.
pub(super) async fn chunk(
    response: &mut Response,
    what: &str,
    cancel: &Cancel,
) -> Result<Option<Bytes>, RegistryError> {
    tokio::select! {
        biased;
        stopped = cancel.stopped() => Err(stopped.into()),
        chunk = response.chunk() => chunk.map_err(|error| failed_request(error, what)),
    }
}

/// A whole body of at most `limit` bytes. `Content-Length` is not believed, only used to refuse early.
pub(super) async fn body(
    response: Response,
    limit: u64,
    what: &str,
    watchdog: &Watchdog,
    cancel: &Cancel,
) -> Result<Bytes, RegistryError> {
    let _active = watchdog.begin_response();
    let whole = collect(response, limit, what, watchdog, cancel);
    let too_slow = |_| RegistryError::Transport {
        what: what.into(),
        why: format!(
            "the answer was not complete after {} seconds",
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
    watchdog: &Watchdog,
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
    while let Some(bytes) = watchdog.chunk(what, chunk(&mut response, what, cancel)).await? {
        if (whole.len() + bytes.len()) as u64 > limit {
            return Err(too_large());
        }
        whole.extend_from_slice(&bytes);
    }
    Ok(whole.freeze())
}

/// The error of a request for `what` that got no answer, or of a body that broke off.
pub(super) fn failed_request(error: reqwest::Error, what: &str) -> RegistryError {
    transport_error(&TransportError::of(error), what)
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream};

    use std::io;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_given_up() {
        let chunks = stream::repeat(Bytes::from_static(b" ")).then(async |chunk| {
            tokio::time::sleep(Duration::from_secs(25)).await;
            Ok::<_, io::Error>(chunk)
        });
        let response = Response::from(axum::http::Response::new(reqwest::Body::wrap_stream(chunks)));
        let began = tokio::time::Instant::now();
        let error = body(response, 1000, "it", &Watchdog::idle(), &Cancel::default())
            .await
            .expect_err("it never ends");
        assert_eq!(
            error.to_string(),
            "it: the answer was not complete after 300 seconds"
        );
        assert!(error.may_pass());
        assert_eq!(began.elapsed(), BODY_TIMEOUT);
    }
}
