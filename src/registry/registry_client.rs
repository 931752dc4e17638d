//! One registry: its scheme, how it wants us to log in, requests with the right credentials.
//!
//! There is no ping. A request is sent as it was last welcome; a 401 teaches how to log in, and the request is sent once
//! more. So a token that expired in the middle of a run, or that the registry forgot, costs one request.
//!
//! The first request of all goes alone, and the others wait until it is answered or has failed: they then know how to log
//! in, and by HTTP/2 they take its connection instead of one each, blobs excepted (`lane`).

use std::sync::{Mutex, OnceLock, PoisonError};

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};
use tokio::sync::MutexGuard;

use crate::cancel::Cancel;
use crate::oci::Reference;

use super::auth_challenge::Challenge;
use super::bearer_token::{TokenRequest, Tokens, basic};
use super::blob_connection::BlobConnection;
use super::credentials::Credential;
use super::error::RegistryError;
use super::error_response::failure;
use super::http_client::{self, Http};
use super::watchdog::Watch;

/// Docker Hub's API does not live where its images' names point.
const DOCKER_HUB: &str = "registry-1.docker.io";

#[derive(Debug)]
pub(super) struct Client {
    /// `host[:port]`
    host: String,
    insecure: bool,
    http: Http,
    /// Settled by the first answer; always HTTPS unless insecure.
    scheme: OnceLock<&'static str>,
    challenge: Mutex<Option<Challenge>>,
    tokens: Tokens,
    /// Whether there was a first request; locked while it is on its way.
    has_begun: tokio::sync::Mutex<bool>,
}

/// A request for something below `/v2/<repository>/`.
pub(super) struct Get<'a> {
    /// Whose repository, and in messages.
    pub(super) reference: &'a Reference,
    /// `manifests/<tag or digest>`, `blobs/<digest>`
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) credential: Option<&'a Credential>,
    /// The thing and the registry, for messages.
    pub(super) what: &'a str,
    pub(super) watch: &'a Watch,
}

impl Client {
    pub(super) fn new(domain: &str, insecure: bool, http: Http) -> Self {
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

    /// Sends the request, logging in if need be. Whatever is answered but 401 and 403 is returned; these two are
    /// errors unless they come from behind a redirect, where our credentials do not go.
    pub(super) async fn get(&self, get: &Get<'_>, cancel: &Cancel) -> Result<Response, RegistryError> {
        let first_turn = self.take_first_turn(cancel).await?;
        self.ask(get, &self.http.following, first_turn, cancel).await
    }

    /// The same for a body that may be large, which is to come over a connection of its own.
    pub(super) async fn get_on_lane(
        &self,
        get: &Get<'_>,
        cancel: &Cancel,
    ) -> Result<(Response, Option<BlobConnection>), RegistryError> {
        // Only then it is known whether there are lanes.
        let first_turn = self.take_first_turn(cancel).await?;
        let lane = self.http.lane(get.what)?;
        let by = lane.as_ref().map_or(&self.http.following, BlobConnection::client);
        let response = self.ask(get, by, first_turn, cancel).await?;
        Ok((response, lane))
    }

    async fn ask(
        &self,
        get: &Get<'_>,
        by: &reqwest::Client,
        mut first_turn: Option<MutexGuard<'_, bool>>,
        cancel: &Cancel,
    ) -> Result<Response, RegistryError> {
        let mut rejected: Option<HeaderValue> = None;
        loop {
            let challenge = self.known_challenge();
            let authorization = match &challenge {
                Some(challenge) => self.authorize(challenge, get, rejected.as_ref(), cancel).await?,
                None => None,
            };
            let response = self.send(get, by, authorization.as_ref(), cancel).await?;
            self.http.learn(&response);
            let from_here = !self.is_elsewhere(&response);
            let presented = get.credential.filter(|_| authorization.is_some());
            if response.status() == StatusCode::FORBIDDEN && from_here {
                return Err(failure(response, true, presented, get.what, get.watch, cancel).await);
            }
            if response.status() != StatusCode::UNAUTHORIZED || !from_here {
                return Ok(response);
            }
            let has_password = get.credential.is_some_and(Credential::has_password);
            let learnt = Challenge::first(response.headers(), has_password);
            let learnt = learnt.map_err(|why| RegistryError::Challenge {
                what: http_client::asked(get.what, &response),
                why,
            })?;
            let is_worth_it = match learnt {
                Challenge::Bearer(_) => true,
                // The same password again would be refused again.
                Challenge::Basic => challenge.as_ref() != Some(&learnt) && has_password,
            };
            if rejected.is_some() || !is_worth_it {
                return Err(failure(response, true, presented, get.what, get.watch, cancel).await);
            }
            self.learn(learnt);
            drop(first_turn.take());
            // An anonymous request counts as a rejection too: one answer to a 401, not two.
            rejected = Some(authorization.unwrap_or_else(|| HeaderValue::from_static("none")));
        }
    }

    /// For the first request, what the others wait for; they do not wait for each other.
    async fn take_first_turn(&self, cancel: &Cancel) -> Result<Option<MutexGuard<'_, bool>>, RegistryError> {
        let mut has_begun = tokio::select! {
            biased;
            stopped = cancel.stopped() => return Err(stopped.into()),
            turn = self.has_begun.lock() => turn,
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

    fn learn(&self, challenge: Challenge) {
        *self.challenge.lock().unwrap_or_else(PoisonError::into_inner) = Some(challenge);
    }

    async fn authorize(
        &self,
        challenge: &Challenge,
        get: &Get<'_>,
        rejected: Option<&HeaderValue>,
        cancel: &Cancel,
    ) -> Result<Option<HeaderValue>, RegistryError> {
        match challenge {
            Challenge::Basic => Ok(get.credential.filter(|it| it.has_password()).map(basic)),
            Challenge::Bearer(server) => {
                let request = TokenRequest {
                    server,
                    scope: format!("repository:{}:pull", get.reference.path()),
                    credential: get.credential,
                    https_only: !self.insecure,
                    what: get.what,
                    watch: get.watch,
                };
                let tokens = &self.tokens;
                tokens
                    .authorization(&self.http, &request, rejected, cancel)
                    .await
                    .map(Some)
            }
        }
    }

    /// HTTPS first. An insecure registry that cannot be reached so is tried by HTTP, as containers/image does, and
    /// the scheme that brought an answer is kept.
    async fn send(
        &self,
        get: &Get<'_>,
        by: &reqwest::Client,
        authorization: Option<&HeaderValue>,
        cancel: &Cancel,
    ) -> Result<Response, RegistryError> {
        let request = |scheme: &str| {
            let url = format!(
                "{scheme}://{}/v2/{}/{}",
                self.host,
                get.reference.path(),
                get.path
            );
            let request = by.get(url).headers(get.headers.clone());
            match authorization {
                Some(value) => request.header(AUTHORIZATION, value),
                None => request,
            }
        };
        if let Some(scheme) = self.scheme.get() {
            let sent = self.http.send(request(scheme), get.what, get.watch, cancel).await;
            return sent.map_err(|failed| failed.error);
        }
        let over_tls = match self
            .http
            .send(request("https"), get.what, get.watch, cancel)
            .await
        {
            Ok(response) => {
                self.scheme.get_or_init(|| "https");
                return Ok(response);
            }
            Err(failed) if !(self.insecure && failed.unconnected) => return Err(failed.error),
            Err(failed) => failed.error,
        };
        match self.http.send(request("http"), get.what, get.watch, cancel).await {
            Ok(response) => {
                self.scheme.get_or_init(|| "http");
                Ok(response)
            }
            Err(failed) => {
                tracing::debug!("before plain HTTP: {over_tls}");
                Err(failed.error)
            }
        }
    }

    /// Whether the answer comes from another host than the registry.
    fn is_elsewhere(&self, response: &Response) -> bool {
        let url = response.url();
        let ours = reqwest::Url::parse(&format!("{}://{}", url.scheme(), self.host));
        !ours.is_ok_and(|ours| {
            ours.host() == url.host() && ours.port_or_known_default() == url.port_or_known_default()
        })
    }

    /// The error that an answer without success stands for.
    pub(super) async fn refusal(&self, response: Response, get: &Get<'_>, cancel: &Cancel) -> RegistryError {
        let redirected = self.is_elsewhere(&response);
        let mut error = failure(response, false, None, get.what, get.watch, cancel).await;
        if let RegistryError::Status { redirected: from, .. } = &mut error {
            *from = redirected;
        }
        error
    }
}
