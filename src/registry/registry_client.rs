//! Sends requests to one registry: finds out its scheme and how to log in, and retries once with a fresh login after a 401.
//!
//! There is no ping of `/v2/`. A request is sent in the way that was accepted last; a 401 states how to log in, and the
//! request is sent once more. So a token that expired in the middle of a run, or that the registry forgot, costs one request.
//!
//! The first request to a registry is sent alone, and the others wait until it is answered or has failed: they then know how
//! to log in, and by HTTP/2 they share its connection instead of opening one each (blobs excepted, see `blob_connection`).

use std::sync::{Mutex, OnceLock, PoisonError};

use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderValue, LOCATION};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use tokio::sync::MutexGuard;

use crate::cancel::Cancel;

use super::auth_challenge::Challenge;
use super::bearer_token::{TokenRequest, Tokens, basic};
use super::blob_connection::BlobConnection;
use super::error::RegistryError;
use super::error_response::{error_response, login_refused};
use super::http_client::{self, HttpClient, SendError};
use super::login::Credential;
use super::registry_request::{Address, RegistryRequest};
use super::upload_body::RequestBody;

/// The host of Docker Hub's API, which is not the host in the names of its images.
const DOCKER_HUB: &str = "registry-1.docker.io";

/// More redirects of an upload than any registry needs.
const MAX_UPLOAD_REDIRECTS: usize = 5;

/// The requests to one registry.
#[derive(Debug)]
pub(super) struct RegistryClient {
    /// `host[:port]`
    host: String,
    insecure: bool,
    http: HttpClient,
    /// Set by the first answer; always HTTPS unless `insecure`.
    scheme: OnceLock<&'static str>,
    challenge: Mutex<Option<Challenge>>,
    tokens: Tokens,
    /// Whether the first request was sent; locked until it is answered.
    has_begun: tokio::sync::Mutex<bool>,
}

impl RegistryClient {
    pub(super) fn new(domain: &str, insecure: bool, http: HttpClient) -> Self {
        Self {
            host: match domain {
                "docker.io" => DOCKER_HUB.into(),
                other => other.into(),
            },
            insecure,
            http,
            scheme: OnceLock::new(),
            challenge: Mutex::default(),
            tokens: Tokens::default(),
            has_begun: tokio::sync::Mutex::default(),
        }
    }

    /// Sends the request, and logs in if the registry requires it. Returns every answer except 401 and 403; these two are
    /// errors unless they are answers of another host after a redirect, which our credentials are not sent to.
    pub(super) async fn get(
        &self,
        get: &RegistryRequest<'_>,
        cancel: &Cancel,
    ) -> Result<Response, RegistryError> {
        let first_request = self.begin_first_request(cancel).await?;
        self.send_with_login(get, &self.http.following, first_request, cancel)
            .await
    }

    /// The same for a body that may be large, which gets a connection of its own.
    pub(super) async fn get_on_own_connection(
        &self,
        get: &RegistryRequest<'_>,
        cancel: &Cancel,
    ) -> Result<(Response, Option<BlobConnection>), RegistryError> {
        // The first answer shows whether the registry speaks HTTP/2.
        let first_request = self.begin_first_request(cancel).await?;
        let connection = self.http.blob_connection(&get.what)?;
        let client = connection
            .as_ref()
            .map_or(&self.http.following, BlobConnection::client);
        let response = self.send_with_login(get, client, first_request, cancel).await?;
        Ok((response, connection))
    }

    /// The same for a request with a body, or one that prepares an upload. Redirects are followed here, because a body can be
    /// sent again only by who made it, and our credentials go to no other host.
    pub(super) async fn push(
        &self,
        mut request: RegistryRequest<'_>,
        cancel: &Cancel,
    ) -> Result<Response, RegistryError> {
        for _ in 0..MAX_UPLOAD_REDIRECTS {
            let first_request = self.begin_first_request(cancel).await?;
            let client = self.http.uploading(&request.what)?;
            let response = self
                .send_with_login(&request, client, first_request, cancel)
                .await?;
            match response.status() {
                StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => {
                    request.address = Address::Url(self.location(&response, &request.what)?);
                }
                status if status.is_success() => return Ok(response),
                _ => return Err(self.error_response(response, &request, cancel).await),
            }
        }
        Err(RegistryError::Location {
            what: request.what,
            why: format!("more than {MAX_UPLOAD_REDIRECTS} redirects"),
        })
    }

    /// The URL in `Location` (RFC 9110, 10.2.2): absolute, or relative to the URL that was requested.
    pub(super) fn location(&self, response: &Response, what: &str) -> Result<Url, RegistryError> {
        let refuse = |why: &str| RegistryError::Location {
            what: what.to_owned(),
            why: why.to_owned(),
        };
        let location = response.headers().get(LOCATION);
        let location = location.ok_or_else(|| refuse("the registry names no URL for it"))?;
        let location = location
            .to_str()
            .ok()
            .and_then(|text| response.url().join(text).ok());
        match location {
            Some(url) if url.scheme() == "https" || (url.scheme() == "http" && self.insecure) => Ok(url),
            Some(url) if url.scheme() == "http" => Err(refuse(
                "the registry names a URL with plain HTTP for it, although it is reached by HTTPS\n\
                 hint: let the proxy in front of the registry send `X-Forwarded-Proto: https`, or configure the registry's \
                 external URL",
            )),
            _ => Err(refuse("the registry names an unusable URL for it")),
        }
    }

    async fn send_with_login(
        &self,
        get: &RegistryRequest<'_>,
        client: &reqwest::Client,
        mut first_request: Option<MutexGuard<'_, bool>>,
        cancel: &Cancel,
    ) -> Result<Response, RegistryError> {
        let mut rejected: Option<HeaderValue> = None;
        loop {
            let challenge = self.known_challenge();
            let authorization = match &challenge {
                Some(challenge) if self.is_ours(&get.address) => {
                    self.authorize(challenge, get, rejected.as_ref(), cancel).await?
                }
                _ => None,
            };
            let response = self.send(get, client, authorization.as_ref(), cancel).await?;
            self.http.learn_version(&response);
            let from_here = !self.is_redirected(&response);
            let presented = get.credential.as_ref().filter(|_| authorization.is_some());
            if response.status() == StatusCode::FORBIDDEN && from_here {
                return Err(login_refused(response, presented, &get.what, &get.watchdog, cancel).await);
            }
            if response.status() != StatusCode::UNAUTHORIZED || !from_here {
                return Ok(response);
            }
            let has_password = get.credential.as_ref().is_some_and(Credential::has_password);
            let challenged = Challenge::first(response.headers(), has_password);
            let challenged = challenged.map_err(|why| RegistryError::Challenge {
                what: http_client::describe(&get.what, &response),
                why,
            })?;
            let is_answerable = match challenged {
                Challenge::Bearer(_) => true,
                // The same password again would be refused again.
                Challenge::Basic => challenge.as_ref() != Some(&challenged) && has_password,
            };
            if rejected.is_some() || !is_answerable {
                return Err(login_refused(response, presented, &get.what, &get.watchdog, cancel).await);
            }
            self.set_challenge(challenged);
            drop(first_request.take());
            // An anonymous request counts as a rejection too: one answer to a 401, not two.
            rejected = Some(authorization.unwrap_or_else(|| HeaderValue::from_static("none")));
        }
    }

    /// For the first request, the guard that the others wait for; they do not wait for each other.
    async fn begin_first_request(
        &self,
        cancel: &Cancel,
    ) -> Result<Option<MutexGuard<'_, bool>>, RegistryError> {
        let mut has_begun = tokio::select! {
            biased;
            stopped = cancel.stopped() => return Err(stopped.into()),
            guard = self.has_begun.lock() => guard,
        };
        let is_first = !std::mem::replace(&mut *has_begun, true);
        Ok(is_first.then_some(has_begun))
    }

    fn known_challenge(&self) -> Option<Challenge> {
        self.challenge
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set_challenge(&self, challenge: Challenge) {
        *self.challenge.lock().unwrap_or_else(PoisonError::into_inner) = Some(challenge);
    }

    async fn authorize(
        &self,
        challenge: &Challenge,
        get: &RegistryRequest<'_>,
        rejected: Option<&HeaderValue>,
        cancel: &Cancel,
    ) -> Result<Option<HeaderValue>, RegistryError> {
        match challenge {
            Challenge::Basic => {
                let credential = get.credential.as_ref().filter(|it| it.has_password());
                Ok(credential.map(basic))
            }
            Challenge::Bearer(server) => {
                let request = TokenRequest {
                    server,
                    scope: format!("repository:{}:{}", get.reference.path(), get.access.actions()),
                    credential: get.credential.as_ref(),
                    https_only: !self.insecure,
                    what: &get.what,
                    watchdog: &get.watchdog,
                };
                let tokens = &self.tokens;
                tokens
                    .authorization(&self.http, &request, rejected, cancel)
                    .await
                    .map(Some)
            }
        }
    }

    /// Sends the request by HTTPS. An insecure registry that does not answer by HTTPS is asked by HTTP, as containers/image
    /// does (`docker/docker_client.go`, `detectProperties`), and the scheme that was answered is kept.
    async fn send(
        &self,
        get: &RegistryRequest<'_>,
        client: &reqwest::Client,
        authorization: Option<&HeaderValue>,
        cancel: &Cancel,
    ) -> Result<Response, RegistryError> {
        let request = |scheme: &str| {
            let url = match &get.address {
                Address::InRepository(path) => {
                    format!("{scheme}://{}/v2/{}/{path}", self.host, get.reference.path())
                }
                Address::Url(url) => url.to_string(),
            };
            let request = client.request(get.method.clone(), url);
            let request = with_body(
                request.headers(get.headers.clone()),
                &get.body,
                get.method == Method::POST,
            );
            match authorization {
                Some(value) => request.header(AUTHORIZATION, value),
                None => request,
            }
        };
        let is_url = matches!(get.address, Address::Url(_));
        if let Some(scheme) = self.scheme.get().or(is_url.then_some(&"https")) {
            let sent = self.transmit(request(scheme), get, cancel).await;
            return sent.map_err(|failed| failed.error);
        }
        let over_tls = match self.transmit(request("https"), get, cancel).await {
            Ok(response) => {
                self.scheme.get_or_init(|| "https");
                return Ok(response);
            }
            Err(failed) if !(self.insecure && failed.unconnected) => return Err(failed.error),
            Err(failed) => failed.error,
        };
        match self.transmit(request("http"), get, cancel).await {
            Ok(response) => {
                self.scheme.get_or_init(|| "http");
                Ok(response)
            }
            Err(failed) => {
                tracing::debug!("by HTTPS, before the attempt by HTTP: {over_tls}");
                Err(failed.error)
            }
        }
    }

    async fn transmit(
        &self,
        request: RequestBuilder,
        get: &RegistryRequest<'_>,
        cancel: &Cancel,
    ) -> Result<Response, SendError> {
        let (what, watchdog) = (&get.what, &get.watchdog);
        match &get.body {
            RequestBody::None => self.http.send(request, what, watchdog, cancel).await,
            body => self.http.upload(request, body, what, watchdog, cancel).await,
        }
    }

    /// Whether another host than the registry answered, after a redirect.
    fn is_redirected(&self, response: &Response) -> bool {
        !self.is_own(response.url())
    }

    /// Whether the request goes to the registry's own host.
    fn is_ours(&self, address: &Address) -> bool {
        match address {
            Address::InRepository(_) => true,
            Address::Url(url) => self.is_own(url),
        }
    }

    /// Whether our credentials may go to the URL.
    pub(super) fn is_own(&self, url: &Url) -> bool {
        is_at(&self.host, self.insecure, url)
    }

    /// The error for an answer without success.
    pub(super) async fn error_response(
        &self,
        response: Response,
        get: &RegistryRequest<'_>,
        cancel: &Cancel,
    ) -> RegistryError {
        let redirected = self.is_redirected(&response);
        let mut error = error_response(response, &get.what, &get.watchdog, cancel).await;
        if let RegistryError::Status {
            redirected: is_redirected,
            ..
        } = &mut error
        {
            *is_redirected = redirected;
        }
        error
    }
}

/// Whether the URL is at the host, by HTTPS unless the registry is insecure.
fn is_at(host: &str, insecure: bool, url: &Url) -> bool {
    let is_allowed = url.scheme() == "https" || (insecure && url.scheme() == "http");
    let at_host = Url::parse(&format!("{}://{host}", url.scheme()));
    is_allowed
        && at_host.is_ok_and(|at_host| {
            at_host.host() == url.host() && at_host.port_or_known_default() == url.port_or_known_default()
        })
}

/// Registries require the length of a POST, even of an empty one.
fn with_body(request: RequestBuilder, body: &RequestBody, is_post: bool) -> RequestBuilder {
    match body {
        RequestBody::None if is_post => request.header(CONTENT_LENGTH, 0),
        RequestBody::None => request,
        RequestBody::Bytes(bytes) => request.body(bytes.clone()),
        RequestBody::File(file) => request.header(CONTENT_LENGTH, file.size).body(file.stream()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_go_to_the_registrys_own_host_and_by_plain_http_only_if_it_is_insecure() {
        let is_at = |host, insecure, url: &str| is_at(host, insecure, &url.parse().expect("a URL"));
        for insecure in [false, true] {
            assert!(is_at("a.example", insecure, "https://a.example/v2/"));
            assert!(is_at("a.example:443", insecure, "https://a.example/v2/"));
            assert!(is_at("a.example:5000", insecure, "https://a.example:5000/v2/"));
            assert!(!is_at("a.example", insecure, "https://b.example/v2/"));
            assert!(!is_at("a.example", insecure, "https://a.example:5000/v2/"));
            assert!(!is_at("a.example", insecure, "ftp://a.example/v2/"));
            assert_eq!(is_at("a.example", insecure, "http://a.example/v2/"), insecure);
            assert_eq!(
                is_at("a.example:5000", insecure, "http://a.example:5000/v2/"),
                insecure
            );
        }
    }
}
