//! The API: one request at a time, tried again as a busy API server needs it, and never for longer than the caller has time.
//!
//! reqwest and not the `kube` crate: that one with the types of `k8s-openapi` makes the binary 5.1 MB larger (10.8 for 5.7),
//! takes 206 s to compile on two cores and brings 21 crates, for ten requests.

use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Method, Response, StatusCode, Url, redirect};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tokio::time::{Instant, sleep, timeout_at};

use super::rbac::{PATCH_PINS, Rule};
use super::{ClusterError, ServiceAccount};
use crate::report::Printable;

/// How long a connection may take. The API server of a single node is on that node, but on few cores that may all be busy.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long one answer may take, if the caller has the time. The API server itself gives up on etcd after 10 s or so.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// How long after it was in trouble what a server forbids is asked again: one that has just started may answer before it has
/// read its rules of RBAC, and allows the same some seconds later.
const RULES_LOAD: Duration = Duration::from_secs(30);

/// Larger than what etcd takes for one object (1.5 MiB).
const ANSWER_LIMIT: usize = 4 << 20;

/// What is read of a failure: its `Status` has a few hundred bytes.
const FAILURE_LIMIT: usize = 64 << 10;

/// The wait after the first failure; doubles each time, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// A server that is well again is not left waiting for long.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// However long a server says it does not want to be asked: one that is well again must hear of this run.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// However long the caller has: no instant is so far away that it cannot be counted.
const LONGEST_EFFORT: Duration = Duration::from_secs(24 * 3600);

/// What of others' words is repeated, in characters.
const SAID_LIMIT: usize = 300;

/// How others see who wrote a field (`metadata.managedFields`).
pub(super) const FIELD_MANAGER: &str = "spoke-precache";

/// How hard to try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Nothing takes longer.
    pub(super) until: Instant,
    /// Whether to wait for a busy server. Who asks again soon anyway does not; with a token that was replaced it is tried
    /// again at once in either case.
    pub(super) waits: bool,
}

impl Effort {
    /// Again and again for `patience`.
    pub(super) fn patient(patience: Duration) -> Self {
        Self {
            until: Instant::now() + patience.min(LONGEST_EFFORT),
            waits: true,
        }
    }

    /// Once.
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

/// A way to the API.
#[derive(Debug)]
pub struct Api {
    pub(super) account: ServiceAccount,
    /// Of our pod.
    pub(super) namespace: String,
    base: Url,
    client: Client,
    /// When the server was busy or out of reach last.
    trouble: Mutex<Option<Instant>>,
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
            return Err(unusable(
                "there is no certificate of an authority in it".to_owned(),
            ));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            // The token is for this server alone.
            .redirect(redirect::Policy::none())
            .https_only(true)
            // A connection that has gone dead ends with its request. HTTP/2 would use it for the next ones too, for as long as
            // TCP has hope.
            .http1_only()
            .no_proxy()
            .retry(reqwest::retry::never())
            .user_agent(concat!("spoke-precache/", env!("CARGO_PKG_VERSION")))
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
            trouble: Mutex::default(),
        })
    }

    /// The object `name`, as far as `T` has its fields.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        rule: &Rule,
        name: &str,
        effort: Effort,
    ) -> Result<T, ClusterError> {
        let path = rule.path(&self.namespace, name)?;
        self.get_at(rule, &path, effort).await
    }

    /// The same, from below an object.
    pub(super) async fn get_at<T: DeserializeOwned>(
        &self,
        rule: &Rule,
        path: &str,
        effort: Effort,
    ) -> Result<T, ClusterError> {
        let bytes = self.call(rule, path, None, effort).await?;
        serde_json::from_slice(&bytes).map_err(|error| ClusterError::Unexpected {
            question: rule.question(),
            // Its own words quote values, and one may be a password.
            why: format!(
                "{} at line {}, column {}",
                match error.classify() {
                    Category::Data => "a field has another type",
                    Category::Eof => "it is cut off",
                    Category::Syntax | Category::Io => "it is no JSON",
                },
                error.line(),
                error.column()
            ),
        })
    }

    /// Sends `body` to the object `name`, or to all of them if it has no name.
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

    /// Removes the object `name`. Says whether there was one.
    pub(super) async fn delete(&self, rule: &Rule, name: &str, effort: Effort) -> Result<bool, ClusterError> {
        let path = rule.path(&self.namespace, name)?;
        match self.call(rule, &path, None, effort).await {
            Ok(_) => Ok(true),
            Err(ClusterError::Missing { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The one loop.
    async fn call(
        &self,
        rule: &Rule,
        path: &str,
        body: Option<&Body>,
        effort: Effort,
    ) -> Result<Bytes, ClusterError> {
        // A token, and the server's words of it.
        let mut rejected: Option<(SecretString, String)> = None;
        let mut failures = 0;
        loop {
            let token = self.account.token()?;
            if let Some((rejected, said)) = &rejected
                && rejected.expose_secret() == token.expose_secret()
            {
                // The kubelet has not written another one.
                return Err(ClusterError::Unauthorized { said: said.clone() });
            }
            let once = self.once(rule, path, body, &token);
            let error = match timeout_at(effort.until, once).await {
                Ok(Ok(bytes)) => return Ok(bytes),
                // It came with an earlier try, whose answer did not.
                Ok(Err(error)) if rule.verb == "create" && error.is_conflict() => return Ok(Bytes::new()),
                Ok(Err(error)) => error,
                Err(_elapsed) => self.unreachable("no answer in time".to_owned()),
            };
            if error.may_pass() && !error.is_conflict() {
                *self.trouble() = Some(Instant::now());
            }
            let wait = match &error {
                ClusterError::Unauthorized { said } if rejected.is_none() => {
                    rejected = Some((token, said.clone()));
                    Duration::ZERO
                }
                error if effort.waits && (error.may_pass() || self.may_be_allowed_soon(error)) => {
                    failures += 1;
                    // A server that says 0 is not asked without pause.
                    error.retry_after().unwrap_or_default().max(pause(failures))
                }
                _ => return Err(error),
            };
            if Instant::now() + wait >= effort.until {
                return Err(error);
            }
            tracing::debug!("{error}; asking again in {wait:?}");
            sleep(wait).await;
        }
    }

    /// Whether this is a refusal by a server that has just come up.
    fn may_be_allowed_soon(&self, error: &ClusterError) -> bool {
        let is_new = self.trouble().is_some_and(|last| last.elapsed() < RULES_LOAD);
        matches!(error, ClusterError::Forbidden { .. }) && is_new
    }

    fn trouble(&self) -> MutexGuard<'_, Option<Instant>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn once(
        &self,
        rule: &Rule,
        path: &str,
        body: Option<&Body>,
        token: &SecretString,
    ) -> Result<Bytes, ClusterError> {
        let mut url = self.base.clone();
        url.set_path(path);
        let method = match rule.verb {
            "patch" => Method::PATCH,
            "create" => Method::POST,
            "delete" => Method::DELETE,
            _ => Method::GET,
        };
        if *rule == PATCH_PINS {
            // What an earlier run pinned is replaced, whoever changed it since.
            url.set_query(Some(&format!("fieldManager={FIELD_MANAGER}&force=true")));
        } else if body.is_some() {
            url.set_query(Some(&format!("fieldManager={FIELD_MANAGER}")));
        }
        let bearer = HeaderValue::try_from(format!("Bearer {}", token.expose_secret()));
        let mut bearer = bearer.map_err(|_| ClusterError::Unauthorized {
            said: "its file holds what no token can".to_owned(),
        })?;
        bearer.set_sensitive(true);
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
        let response = response.map_err(|error| self.failure(&error))?;
        let (status, wait) = (response.status(), retry_after(&response));
        if status.is_success() {
            return self.bytes(response, rule).await;
        }
        let said = said(&beginning(response).await, status, token);
        let question = rule.question();
        Err(match status {
            StatusCode::UNAUTHORIZED => ClusterError::Unauthorized { said },
            StatusCode::FORBIDDEN => ClusterError::Forbidden { question, said },
            StatusCode::NOT_FOUND => ClusterError::Missing {
                path: path.to_owned(),
            },
            _ => ClusterError::Status {
                status: status.as_u16(),
                question,
                said,
                retry_after: wait,
            },
        })
    }

    async fn bytes(&self, mut response: Response, rule: &Rule) -> Result<Bytes, ClusterError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failure(&error))? {
            if bytes.len() + chunk.len() > ANSWER_LIMIT {
                return Err(ClusterError::Unexpected {
                    question: rule.question(),
                    why: format!("it is longer than {ANSWER_LIMIT} bytes"),
                });
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.into())
    }

    fn failure(&self, error: &reqwest::Error) -> ClusterError {
        let why = reason(error);
        match is_distrust(error) {
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

/// What there is of a failure's body, up to a limit. Its status counts, whatever becomes of the rest.
async fn beginning(mut response: Response) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < FAILURE_LIMIT
        && let Ok(Some(chunk)) = response.chunk().await
    {
        bytes.extend_from_slice(&chunk);
    }
    bytes
}

/// How long to wait after so many failures. Many agents of a site may have started at the same moment.
pub(super) fn pause(failures: u32) -> Duration {
    let pause = FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(16));
    pause.min(LONGEST_PAUSE).mul_f64(rand::random_range(0.5..1.5))
}

/// In seconds; API servers send no dates.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = Duration::from_secs(seconds.parse::<u32>().ok()?.into());
    Some(wait.min(LONGEST_WAIT))
}

/// The server's words: the message of a `Status`, or the body itself. A strange server may repeat what it was sent.
fn said(bytes: &[u8], status: StatusCode, token: &SecretString) -> String {
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
    match brief(&text) {
        text if text.is_empty() => status
            .canonical_reason()
            .unwrap_or("no reason is given")
            .to_owned(),
        text => text,
    }
}

/// The innermost reason; the outer ones repeat the URL.
fn reason(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let mut innermost: &dyn Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    // A certificate may have a thousand names.
    brief(&innermost.to_string())
}

/// Whether the server's certificate is not to be trusted and will not be; a clock that is not set yet soon is.
fn is_distrust(error: &reqwest::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(it) = cause {
        if let Some(rustls::Error::InvalidCertificate(why)) = it.downcast_ref() {
            return !matches!(
                why,
                CertificateError::NotValidYet
                    | CertificateError::NotValidYetContext { .. }
                    | CertificateError::Expired
                    | CertificateError::ExpiredContext { .. }
            );
        }
        // `io::Error` hides what it wraps from `source`.
        cause = match it.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => it.source(),
        };
    }
    false
}

fn brief(text: &str) -> String {
    Printable(text).to_string().chars().take(SAID_LIMIT).collect()
}
