//! Sends requests to the cluster's API, and retries them while the API server is busy, up to the caller's deadline.
//!
//! It uses reqwest and not the `kube` crate, which with the types of `k8s-openapi` makes the binary 5.1 MB larger (10.8 instead
//! of 5.7), takes 206 s to compile on two cores and adds 21 crates, for ten requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Client, Method, Response, StatusCode, Url, redirect};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tokio::time::{Instant, sleep, timeout_at};

use super::rbac::{LIST_SIGNATURES, PATCH_PINS, Rule};
use super::{ClusterError, ServiceAccount};
use crate::http::{Backoff, TransportError, bearer, client_builder, excerpt, retry_after};

/// How long a connection may take. The API server of a single node is on that node, but all of its few cores may be busy.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long one answer may take, if the caller has the time. The API server itself gives up on etcd after 10 s or so.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// How long after a failure of the server a 403 is retried: a server that has just started may answer before it has loaded its
/// RBAC rules, and allows the same request some seconds later.
const RBAC_LOAD: Duration = Duration::from_secs(30);

/// The largest answer that is read: larger than etcd's limit for one object (1.5 MiB).
const ANSWER_LIMIT: usize = 4 << 20;

/// How much of a failure's body is read: its `Status` has a few hundred bytes.
const FAILURE_LIMIT: usize = 64 << 10;

/// The pause after the first failure; doubles each time, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause, so that the recovery of a server is noticed soon.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// A server whose `Retry-After` is longer than this is asked again nevertheless.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// The longest patience of a caller; a longer one could overflow the clock.
const LONGEST_PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// The name of this program as the owner of fields (`metadata.managedFields`).
pub(super) const FIELD_MANAGER: &str = "spoke-precache";

/// Selects the ConfigMaps with signatures: by the label's existence, whatever its value.
const SIGNATURE_SELECTOR: &str = "labelSelector=release.openshift.io%2Fverification-signatures";

/// How hard to try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// The deadline of the request and its retries.
    pub(super) until: Instant,
    /// Whether to wait for a busy server. A caller that repeats the request soon anyway does not wait. A request with a
    /// replaced token is retried at once in either case.
    pub(super) waits: bool,
}

impl Effort {
    /// Retries for as long as `patience`.
    pub(super) fn patient(patience: Duration) -> Self {
        Self {
            until: Instant::now() + patience.min(LONGEST_PATIENCE),
            waits: true,
        }
    }

    /// Does not retry.
    pub(super) fn once(patience: Duration) -> Self {
        Self {
            waits: false,
            ..Self::patient(patience)
        }
    }
}

/// A body and its media type.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub(super) media_type: &'static str,
    pub(super) bytes: Bytes,
}

impl Body {
    pub(super) fn new(media_type: &'static str, document: &serde_json::Value) -> Self {
        Self {
            media_type,
            bytes: document.to_string().into(),
        }
    }
}

/// The requests to the cluster's API, as the pod's service account.
#[derive(Debug)]
pub struct Api {
    pub(super) account: ServiceAccount,
    /// Of our pod.
    pub(super) namespace: String,
    base: Url,
    client: Client,
    /// When the server was busy or unreachable last.
    last_failure: Mutex<Option<Instant>>,
}

impl Api {
    /// Reads the service account's files. Sends nothing.
    pub fn new(account: ServiceAccount) -> Result<Self, ClusterError> {
        let unusable = |why: String| ClusterError::Authority {
            path: account.dir.join("ca.crt"),
            why,
        };
        let mut roots = RootCertStore::empty();
        let (usable, _) = roots.add_parsable_certificates(account.authorities()?);
        if usable == 0 {
            return Err(unusable("it has no certificate of an authority".to_owned()));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = client_builder(tls)
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            // The token must reach no other server.
            .redirect(redirect::Policy::none())
            .https_only(true)
            // A dead connection ends with its request. HTTP/2 would use it for further requests until TCP times out.
            .http1_only()
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        let host = match account.host.contains(':') {
            true => format!("[{}]", account.host),
            false => account.host.clone(),
        };
        let base = Url::parse(&format!("https://{host}:{}/", account.port));
        Ok(Self {
            namespace: account.namespace()?,
            base: base.map_err(|_| ClusterError::Name(account.host.escape_debug().collect()))?,
            account,
            client,
            last_failure: Mutex::default(),
        })
    }

    /// Reads the object `name`, or the list of the collection if the name is empty; only the fields of `T`.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        rule: &Rule,
        name: &str,
        effort: Effort,
    ) -> Result<T, ClusterError> {
        let path = rule.path(&self.namespace, name)?;
        self.get_at(rule, &path, effort).await
    }

    /// The same for a subresource, or for a page of a list: the path may have a query.
    pub(super) async fn get_at<T: DeserializeOwned>(
        &self,
        rule: &Rule,
        path: &str,
        effort: Effort,
    ) -> Result<T, ClusterError> {
        let bytes = self.call(rule, path, None, effort).await?;
        parse(rule, &bytes)
    }

    /// Reads the object `name` as the server sends it.
    pub(super) async fn get_bytes(
        &self,
        rule: &Rule,
        name: &str,
        effort: Effort,
    ) -> Result<Bytes, ClusterError> {
        let path = rule.path(&self.namespace, name)?;
        self.call(rule, &path, None, effort).await
    }

    /// Sends `body` to the object `name`, or to the collection if the name is empty.
    pub(super) async fn send(
        &self,
        rule: &Rule,
        name: &str,
        body: &Body,
        effort: Effort,
    ) -> Result<(), ClusterError> {
        let path = rule.path(&self.namespace, name)?;
        self.call(rule, &path, Some(body), effort).await.map(drop)
    }

    /// Deletes the object `name`. Returns whether it existed.
    pub(super) async fn delete(&self, rule: &Rule, name: &str, effort: Effort) -> Result<bool, ClusterError> {
        let path = rule.path(&self.namespace, name)?;
        match self.call(rule, &path, None, effort).await {
            Ok(_) => Ok(true),
            Err(ClusterError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a request, with retries.
    async fn call(
        &self,
        rule: &Rule,
        path: &str,
        body: Option<&Body>,
        effort: Effort,
    ) -> Result<Bytes, ClusterError> {
        // A token, and the server's message.
        let mut rejected: Option<(SecretString, String)> = None;
        let mut backoff = backoff();
        loop {
            let token = self.account.token()?;
            if let Some((rejected, message)) = &rejected
                && rejected.expose_secret() == token.expose_secret()
            {
                // The kubelet has not replaced it.
                return Err(ClusterError::Unauthorized {
                    message: message.clone(),
                });
            }
            let attempt = self.attempt(rule, path, body, &token);
            let error = match timeout_at(effort.until, attempt).await {
                Ok(Ok(bytes)) => return Ok(bytes),
                // An earlier attempt, whose answer was lost, created it.
                Ok(Err(error)) if rule.verb == "create" && error.is_conflict() => return Ok(Bytes::new()),
                Ok(Err(error)) => error,
                Err(_elapsed) => self.unreachable("no answer in time".to_owned()),
            };
            if error.is_transient() && !error.is_conflict() {
                *self.last_failure() = Some(Instant::now());
            }
            let wait = match &error {
                ClusterError::Unauthorized { message: said } if rejected.is_none() => {
                    rejected = Some((token, said.clone()));
                    Duration::ZERO
                }
                error if effort.waits && (error.is_transient() || self.may_be_allowed_soon(error)) => {
                    // A `Retry-After` of 0 does not shorten the pause.
                    let wanted = error.retry_after().unwrap_or_default();
                    wanted.max(backoff.next_pause())
                }
                _ => return Err(error),
            };
            if Instant::now() + wait >= effort.until {
                return Err(error);
            }
            tracing::debug!("{error}; retrying in {wait:?}");
            sleep(wait).await;
        }
    }

    /// Whether this is a 403 of a server that has just started.
    fn may_be_allowed_soon(&self, error: &ClusterError) -> bool {
        let is_new = self.last_failure().is_some_and(|last| last.elapsed() < RBAC_LOAD);
        matches!(error, ClusterError::Forbidden { .. }) && is_new
    }

    fn last_failure(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn attempt(
        &self,
        rule: &Rule,
        path: &str,
        body: Option<&Body>,
        token: &SecretString,
    ) -> Result<Bytes, ClusterError> {
        let mut url = self.base.clone();
        // No name in a path contains a question mark.
        let (path, query) = path
            .split_once('?')
            .map_or((path, None), |(path, query)| (path, Some(query)));
        url.set_path(path);
        url.set_query(query);
        let method = match rule.verb {
            "patch" => Method::PATCH,
            "create" => Method::POST,
            "delete" => Method::DELETE,
            _ => Method::GET,
        };
        if *rule == PATCH_PINS {
            // Server-side apply takes over the fields of other owners: what an earlier run pinned is replaced.
            url.set_query(Some(&format!("fieldManager={FIELD_MANAGER}&force=true")));
        } else if body.is_some() {
            url.set_query(Some(&format!("fieldManager={FIELD_MANAGER}")));
        } else if *rule == LIST_SIGNATURES {
            url.set_query(Some(SIGNATURE_SELECTOR));
        }
        let bearer = bearer(token).map_err(|_| ClusterError::Unauthorized {
            message: "its file has bytes that no token can have".to_owned(),
        })?;
        let mut request = self
            .client
            .request(method, url)
            .header(AUTHORIZATION, bearer)
            .header(ACCEPT, "application/json");
        if let Some(body) = body {
            request = request
                .header(CONTENT_TYPE, body.media_type)
                .body(body.bytes.clone());
        }
        let response = request.send().await;
        let response = response.map_err(|error| self.failure(error))?;
        let status = response.status();
        let retry_after = retry_after(response.headers(), SystemTime::now());
        let retry_after = retry_after.map(|wait| wait.min(LONGEST_WAIT));
        if status.is_success() {
            return self.bytes(response, rule).await;
        }
        let said = message(&read_failure(response).await, status, token);
        let request = rule.request();
        Err(match status {
            StatusCode::UNAUTHORIZED => ClusterError::Unauthorized { message: said },
            StatusCode::FORBIDDEN => ClusterError::Forbidden {
                request,
                message: said,
            },
            StatusCode::NOT_FOUND => ClusterError::NotFound {
                path: path.to_owned(),
            },
            _ => ClusterError::Status {
                status: status.as_u16(),
                request,
                message: said,
                retry_after,
            },
        })
    }

    async fn bytes(&self, mut response: Response, rule: &Rule) -> Result<Bytes, ClusterError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failure(error))? {
            if bytes.len() + chunk.len() > ANSWER_LIMIT {
                return Err(ClusterError::Unexpected {
                    request: rule.request(),
                    why: format!("it is longer than {ANSWER_LIMIT} bytes"),
                });
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.into())
    }

    fn failure(&self, error: reqwest::Error) -> ClusterError {
        let failure = TransportError::of(error);
        // The outer causes repeat the URL.
        let why = failure.innermost();
        match failure.certificate().is_some_and(is_distrust) {
            true => ClusterError::Untrusted {
                server: self.server(),
                why,
            },
            false => self.unreachable(why),
        }
    }

    fn unreachable(&self, why: String) -> ClusterError {
        ClusterError::Unreachable {
            server: self.server(),
            why,
        }
    }

    fn server(&self) -> String {
        format!("{}:{}", self.account.host, self.account.port)
    }
}

/// Parses the answer to a request.
pub(super) fn parse<T: DeserializeOwned>(rule: &Rule, bytes: &[u8]) -> Result<T, ClusterError> {
    serde_json::from_slice(bytes).map_err(|error| ClusterError::Unexpected {
        request: rule.request(),
        // The parser's message quotes values, and one may be a password.
        why: format!(
            "{} at line {}, column {}",
            match error.classify() {
                Category::Data => "a field has another type",
                Category::Eof => "it is truncated",
                Category::Syntax | Category::Io => "it is not JSON",
            },
            error.line(),
            error.column()
        ),
    })
}

/// The beginning of a failure's body. Errors are ignored: the status matters more.
async fn read_failure(mut response: Response) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < FAILURE_LIMIT
        && let Ok(Some(chunk)) = response.chunk().await
    {
        bytes.extend_from_slice(&chunk);
    }
    bytes
}

/// The pauses between attempts, spread because many agents of a site may have started at the same moment.
pub(super) fn backoff() -> Backoff {
    Backoff::new(FIRST_PAUSE, LONGEST_PAUSE, 0.5..1.5)
}

/// The message of a `Status`, or the body itself, without the token: a server may repeat what it was sent.
fn message(bytes: &[u8], status: StatusCode, token: &SecretString) -> String {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    let text = match serde_json::from_slice::<Status>(bytes) {
        Ok(status) => status.message,
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    };
    let text = match token.expose_secret() {
        "" => text,
        token => text.replace(token, "…"),
    };
    match excerpt(&text) {
        text if text.is_empty() => status
            .canonical_reason()
            .unwrap_or("no reason is given")
            .to_owned(),
        text => text,
    }
}

/// Whether the server's certificate is not trusted and will not be. A wrong date may be the node's clock, which is set soon.
fn is_distrust(why: &CertificateError) -> bool {
    !matches!(
        why,
        CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }
            | CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
    )
}
