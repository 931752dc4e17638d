//! Bearer tokens: asking for them, keeping them, and whom not to tell the password.
//!
//! # Design
//!
//! A token is kept per server, service and scope, behind a lock of its own that is held while it is asked for: of many
//! workers that need the same token one asks and the rest wait. A worker whose token was rejected says which one
//! that was, so that a token that someone else just renewed is not renewed again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Response, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tokio::time::Instant;

use crate::cancel::Cancel;

use super::auth_challenge::TokenServer;
use super::credentials::Credential;
use super::error::RegistryError;
use super::error_response::failure;
use super::http_client::{self, Http};
use super::watchdog::Watch;

/// Tokens of real registries have a few kilobytes.
const MAX_TOKEN_ANSWER: u64 = 1 << 20;

/// A token goes along with every request, so one of this length costs more than most manifests.
const MAX_TOKEN: usize = 64 << 10;

/// The least life of a token, as the distribution spec has it for servers that do not say.
const MIN_TOKEN_LIFE: Duration = Duration::from_secs(60);

/// A token is not used for the last moments of its life: the request has a way to go, and clocks differ.
const TOKEN_MARGIN: Duration = Duration::from_secs(5);

/// All tokens for one registry.
#[derive(Debug, Default)]
pub(super) struct Tokens(Mutex<HashMap<Key, Arc<tokio::sync::Mutex<Option<Token>>>>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    realm: String,
    service: Option<String>,
    scope: String,
}

#[derive(Clone, Debug)]
struct Token {
    authorization: HeaderValue,
    expires: Instant,
}

/// Who asks for what.
pub(super) struct TokenRequest<'a> {
    pub(super) server: &'a TokenServer,
    /// `repository:<path>:pull`
    pub(super) scope: String,
    pub(super) credential: Option<&'a Credential>,
    /// The registry itself is reached by HTTPS and must be.
    pub(super) https_only: bool,
    /// The request that needs the token, for messages.
    pub(super) what: &'a str,
    pub(super) watch: &'a Watch,
}

impl Tokens {
    /// The `Authorization` header to send: kept, or asked for anew if there is none, it has expired, or it is
    /// `rejected`.
    pub(super) async fn authorization(
        &self,
        http: &Http,
        request: &TokenRequest<'_>,
        rejected: Option<&HeaderValue>,
        cancel: &Cancel,
    ) -> Result<HeaderValue, RegistryError> {
        let key = Key {
            realm: request.server.realm.to_string(),
            service: request.server.service.clone(),
            scope: request.scope.clone(),
        };
        let cell = self.cell(key);
        let mut kept = tokio::select! {
            stopped = cancel.stopped() => return Err(stopped.into()),
            kept = cell.lock() => kept,
        };
        if let Some(token) = &*kept
            && token.expires > Instant::now()
            && rejected != Some(&token.authorization)
        {
            return Ok(token.authorization.clone());
        }
        let token = request.send(http, cancel).await?;
        Ok(kept.insert(token).authorization.clone())
    }

    /// Where the token of this key is kept. Those of another server go: the registry names this one now, and one that
    /// names another each time would fill the memory.
    fn cell(&self, key: Key) -> Arc<tokio::sync::Mutex<Option<Token>>> {
        let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cells.retain(|old, _| (&old.realm, &old.service) == (&key.realm, &key.service));
        cells.entry(key).or_default().clone()
    }
}

/// What a token server answers. Both names are in use.
#[derive(Deserialize)]
struct Answer {
    token: Option<SecretString>,
    access_token: Option<SecretString>,
    /// In seconds.
    expires_in: Option<f64>,
}

impl TokenRequest<'_> {
    async fn send(&self, http: &Http, cancel: &Cancel) -> Result<Token, RegistryError> {
        let realm = &self.server.realm;
        let host = realm.host_str().unwrap_or_default();
        let what = format!("{} (its token from `{host}`)", self.what);
        let refuse = |why: &str| RegistryError::Challenge {
            what: what.clone(),
            why: why.into(),
        };
        if self.https_only && realm.scheme() != "https" {
            return Err(refuse(
                "the registry wants the credentials sent to a token server by plain HTTP",
            ));
        }
        let asked_at = Instant::now();
        let identity = self
            .credential
            .and_then(|credential| credential.identity_token.as_ref());
        let request = match identity {
            Some(token) => {
                let mut form = vec![
                    ("grant_type", "refresh_token"),
                    ("client_id", "spoke-precache"),
                    ("refresh_token", token.expose_secret()),
                    ("scope", &self.scope),
                ];
                form.extend(self.server.service.as_deref().map(|service| ("service", service)));
                http.direct.post(realm.clone()).form(&form)
            }
            None => {
                let mut query = vec![("scope", self.scope.as_str())];
                query.extend(self.server.service.as_deref().map(|service| ("service", service)));
                let account = self
                    .credential
                    .map(|credential| credential.username.expose_secret());
                query.extend(
                    account
                        .filter(|name| !name.is_empty())
                        .map(|name| ("account", name)),
                );
                let request = http.following.get(realm.clone()).query(&query);
                // containers/image shows half a credential to nobody here, though it does to a registry.
                let whole = self.credential.filter(|it| {
                    !it.username.expose_secret().is_empty() && !it.password.expose_secret().is_empty()
                });
                match whole {
                    Some(credential) => request.header(AUTHORIZATION, basic(credential)),
                    None => request,
                }
            }
        };
        let response = http
            .send(request, &what, self.watch, cancel)
            .await
            .map_err(|failed| failed.error)?;
        let response = self.admit(response, &what, cancel).await?;
        let body = http_client::body(response, MAX_TOKEN_ANSWER, &what, self.watch, cancel).await?;
        let unreadable = || refuse("the token server's answer holds no token");
        // serde's own message would quote the token.
        let answer: Answer = serde_json::from_slice(&body).map_err(|_| unreadable())?;
        let given = |token: Option<SecretString>| token.filter(|token| !token.expose_secret().is_empty());
        let token = given(answer.token)
            .or_else(|| given(answer.access_token))
            .ok_or_else(unreadable)?;
        let length = token.expose_secret().len();
        if length > MAX_TOKEN {
            return Err(refuse(&format!(
                "the token has {length} bytes, more than {MAX_TOKEN}"
            )));
        }
        let mut authorization =
            HeaderValue::try_from(format!("Bearer {}", token.expose_secret())).map_err(|_| unreadable())?;
        authorization.set_sensitive(true);
        let life = answer
            .expires_in
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let life = life.unwrap_or_default().max(MIN_TOKEN_LIFE) - TOKEN_MARGIN;
        Ok(Token {
            authorization,
            // A life that overflows the clock is as good as none.
            expires: asked_at.checked_add(life).unwrap_or(asked_at + MIN_TOKEN_LIFE),
        })
    }

    async fn admit(
        &self,
        response: Response,
        what: &str,
        cancel: &Cancel,
    ) -> Result<Response, RegistryError> {
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        // A bad refresh token is 400 by OAuth2 (RFC 6749, 5.2).
        let is_refused = matches!(response.status().as_u16(), 400 | 401 | 403);
        Err(failure(response, is_refused, self.credential, what, self.watch, cancel).await)
    }
}

/// `Authorization` with user and password.
pub(super) fn basic(credential: &Credential) -> HeaderValue {
    let (user, password) = (
        credential.username.expose_secret(),
        credential.password.expose_secret(),
    );
    let encoded = BASE64_STANDARD.encode(format!("{user}:{password}"));
    let mut value = HeaderValue::try_from(format!("Basic {encoded}")).expect("base64 is ASCII");
    value.set_sensitive(true);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_server_that_is_not_named_any_more_are_dropped() {
        let tokens = Tokens::default();
        let key = |realm: &str, scope: &str| Key {
            realm: realm.into(),
            service: None,
            scope: scope.into(),
        };
        let kept = || tokens.0.lock().expect("no panic").len();
        tokens.cell(key("https://one/", "a"));
        tokens.cell(key("https://one/", "b"));
        assert_eq!(kept(), 2);
        for number in 0..100 {
            tokens.cell(key(&format!("https://{number}/"), "a"));
        }
        assert_eq!(kept(), 1);
    }
}
