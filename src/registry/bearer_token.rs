//! Requests bearer tokens from a registry's token server, and caches them until they expire or are rejected.
//!
//! # Design
//!
//! The protocol is the token authentication of the distribution project (`spec/auth/token.md`, `spec/auth/oauth.md`). A token
//! is cached per server, service and scope, behind a lock of its own that is held while it is requested: of many workers that
//! need the same token one requests it and the others wait. A worker whose token was rejected passes that token along, so
//! that a token that another worker has just renewed is not renewed again.

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
use crate::http::bearer;

use super::auth_challenge::TokenServer;
use super::error::RegistryError;
use super::error_response::{error_response, login_refused};
use super::http_client::{self, HttpClient};
use super::login::Credential;
use super::response_monitor::Watchdog;

/// The longest answer of a token server that is read. Tokens of real registries have a few kilobytes.
const MAX_TOKEN_ANSWER: u64 = 1 << 20;

/// The longest token that is used. It is sent with every request, so a longer one would cost more than most manifests.
const MAX_TOKEN: usize = 64 << 10;

/// The lifetime of a token whose server states none, as the distribution project's token spec has it; also the shortest.
const MIN_TOKEN_LIFETIME: Duration = Duration::from_secs(60);

/// A token is not used this long before it expires: the request takes time to arrive, and clocks differ.
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

/// A token that is needed, and the login for it.
pub(super) struct TokenRequest<'a> {
    pub(super) server: &'a TokenServer,
    /// `repository:<path>:pull`
    pub(super) scope: String,
    pub(super) credential: Option<&'a Credential>,
    /// The registry is only reached by HTTPS, so the token server must be, too.
    pub(super) https_only: bool,
    /// The request that needs the token, for messages.
    pub(super) what: &'a str,
    pub(super) watchdog: &'a Watchdog,
}

impl Tokens {
    /// The `Authorization` header to send: from the cache, or requested anew if there is none, it has expired, or it is the
    /// `rejected` one.
    pub(super) async fn authorization(
        &self,
        http: &HttpClient,
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
        let mut cached = tokio::select! {
            stopped = cancel.stopped() => return Err(stopped.into()),
            cached = cell.lock() => cached,
        };
        if let Some(token) = &*cached
            && token.expires > Instant::now()
            && rejected != Some(&token.authorization)
        {
            return Ok(token.authorization.clone());
        }
        let token = request.send(http, cancel).await?;
        Ok(cached.insert(token).authorization.clone())
    }

    /// Where the token of this key is cached. Tokens of other servers are dropped: the registry names this server now, and a
    /// registry that names another one each time would fill the memory.
    fn cell(&self, key: Key) -> Arc<tokio::sync::Mutex<Option<Token>>> {
        let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cells.retain(|old, _| (&old.realm, &old.service) == (&key.realm, &key.service));
        cells.entry(key).or_default().clone()
    }
}

/// The answer of a token server. `token` and `access_token` are both in use.
#[derive(Deserialize)]
struct Answer {
    token: Option<SecretString>,
    access_token: Option<SecretString>,
    /// In seconds.
    expires_in: Option<f64>,
}

impl TokenRequest<'_> {
    async fn send(&self, http: &HttpClient, cancel: &Cancel) -> Result<Token, RegistryError> {
        let realm = &self.server.realm;
        let host = realm.host_str().unwrap_or_default();
        let what = format!("{} (token from `{host}`)", self.what);
        let refuse = |why: &str| RegistryError::Challenge {
            what: what.clone(),
            why: why.into(),
        };
        if self.https_only && realm.scheme() != "https" {
            return Err(refuse(
                "the registry names a token server by plain HTTP, where the credentials are not sent",
            ));
        }
        let requested_at = Instant::now();
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
                // As containers/image, which sends a user without a password to a registry but not to a token server
                // (`docker/docker_client.go`, `getBearerToken`).
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
            .send(request, &what, self.watchdog, cancel)
            .await
            .map_err(|failed| failed.error)?;
        let response = self.check(response, &what, cancel).await?;
        let body = http_client::body(response, MAX_TOKEN_ANSWER, &what, self.watchdog, cancel).await?;
        let unreadable = || refuse("the token server's answer has no token");
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
        let authorization = bearer(&token).map_err(|_| unreadable())?;
        let lifetime = answer
            .expires_in
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let lifetime = lifetime.unwrap_or_default().max(MIN_TOKEN_LIFETIME) - TOKEN_MARGIN;
        Ok(Token {
            authorization,
            // A lifetime that overflows the clock counts as none.
            expires: requested_at
                .checked_add(lifetime)
                .unwrap_or(requested_at + MIN_TOKEN_LIFETIME),
        })
    }

    async fn check(
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
        Err(match is_refused {
            true => login_refused(response, self.credential, what, self.watchdog, cancel).await,
            false => error_response(response, what, self.watchdog, cancel).await,
        })
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
    fn tokens_of_a_server_that_is_no_longer_named_are_dropped() {
        let tokens = Tokens::default();
        let key = |realm: &str, scope: &str| Key {
            realm: realm.into(),
            service: None,
            scope: scope.into(),
        };
        let cached = || tokens.0.lock().expect("no panic").len();
        tokens.cell(key("https://one/", "a"));
        tokens.cell(key("https://one/", "b"));
        assert_eq!(cached(), 2);
        for number in 0..100 {
            tokens.cell(key(&format!("https://{number}/"), "a"));
        }
        assert_eq!(cached(), 1);
    }
}
