//! Logs in with passwords and tokens, and checks which host gets which secret.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde_json::json;
use spoke_precache::cancel::Cancel;
use spoke_precache::fetch::{FetchError, Fetcher};
use spoke_precache::oci::Digest;
use spoke_precache::registry::{Kind, RegistryError, RegistrySettings};

use crate::fake::{Fake, Seen, serve};
use crate::{fetcher, insecure, noise, request, settings};

const PASSWORD: &str = "hunter2";

/// A registry whose repository `team/a` holds a blob for those who have the latest token of the user.
struct World {
    dir: tempfile::TempDir,
    bytes: Bytes,
    fake: Fake,
    /// Tokens handed out; only the last is good.
    tokens: Arc<AtomicUsize>,
}

fn authorization(seen: &Seen) -> String {
    seen.header(header::AUTHORIZATION).unwrap_or_default()
}

fn basic() -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("user:{PASSWORD}")))
}

impl World {
    async fn with_tokens() -> Self {
        let (bytes, fake, tokens) = (
            noise(50_000, 7),
            Fake::start().await,
            Arc::new(AtomicUsize::new(0)),
        );
        fake.put_blob("team/a", &bytes);
        let (host, count) = (fake.host(), tokens.clone());
        fake.fault(move |seen| {
            if seen.path == "/token" {
                let form = String::from_utf8_lossy(&seen.body);
                let is_user = authorization(seen) == basic() && seen.query.contains("account=user")
                    || form.contains("grant_type=refresh_token&") && form.contains("refresh_token=hunter2&");
                if !is_user {
                    let body = r#"{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}"#;
                    return Some((StatusCode::UNAUTHORIZED, body).into_response());
                }
                let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                return Some(
                    json!({"token": format!("t{number}"), "expires_in": 1})
                        .to_string()
                        .into_response(),
                );
            }
            let good = format!("Bearer t{}", count.load(Ordering::SeqCst));
            (authorization(seen) != good).then(|| {
                challenge(&format!(
                    "Bearer realm=\"http://{host}/token\",service=\"fake\",scope=\"repository:team/a:pull\""
                ))
            })
        });
        Self {
            dir: tempfile::tempdir().unwrap(),
            bytes,
            fake,
            tokens,
        }
    }

    fn settings(&self, auths: &serde_json::Value) -> RegistrySettings {
        let path = self.dir.path().join("auth.json");
        std::fs::write(&path, json!({ "auths": auths }).to_string()).unwrap();
        RegistrySettings {
            auth_files: vec![path],
            ..settings(&insecure(&[&self.fake.host()]))
        }
    }

    fn spool(&self) -> PathBuf {
        self.dir.path().join("spool")
    }

    fn fetcher(&self, auths: &serde_json::Value) -> Fetcher {
        fetcher(self.settings(auths), &self.spool()).0
    }

    async fn fetch(&self, fetcher: &Fetcher) -> Result<(), FetchError> {
        let wanted = request(&self.bytes, &[format!("{}/team/a:1", self.fake.host())]);
        let blob = fetcher.fetch(wanted, &Cancel::default()).await?;
        blob.remove()?;
        Ok(())
    }

    fn user(&self) -> serde_json::Value {
        json!({ format!("{}/team", self.fake.host()): {"username": "user", "password": PASSWORD} })
    }
}

fn challenge(text: &str) -> Response {
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, text)]).into_response()
}

fn message(error: &FetchError) -> String {
    assert_eq!(error.kind(), Kind::Unauthorized, "{error}");
    let said = format!("{error} {error:?}");
    assert!(
        !said.contains(PASSWORD) && !said.contains(&basic()["Basic ".len()..]),
        "{said}"
    );
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_requested_once_and_renewed_when_the_registry_forgot_it() {
    let world = World::with_tokens().await;
    let fetcher = world.fetcher(&world.user());
    for _ in 0..3 {
        world.fetch(&fetcher).await.unwrap();
    }
    let asked = world.fake.seen("/token");
    assert_eq!(asked.len(), 1, "min 60 s, whatever `expires_in` says");
    assert!(
        asked[0].query.contains("scope=repository%3Ateam%2Fa%3Apull"),
        "{}",
        asked[0].query
    );
    assert!(asked[0].query.contains("service=fake"));

    world.tokens.fetch_add(1, Ordering::SeqCst);
    world.fetch(&fetcher).await.unwrap();
    assert_eq!(world.fake.seen("/token").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_very_long_token_is_refused() {
    let world = World::with_tokens().await;
    let host = world.fake.host();
    world.fake.fault(move |seen| match seen.path.as_str() {
        "/token" => Some(
            json!({"token": PASSWORD.repeat(20_000)})
                .to_string()
                .into_response(),
        ),
        _ => Some(challenge(&format!("Bearer realm=\"http://{host}/token\""))),
    });
    let error = world.fetch(&world.fetcher(&world.user())).await.unwrap_err();
    let said = message(&error);
    assert!(said.contains("the token has 140000 bytes"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_requests_that_need_a_token_one_requests_it() {
    let world = World::with_tokens().await;
    let fetcher = world.fetcher(&world.user());
    let blobs: Vec<Bytes> = (0..12).map(|seed| noise(1000, seed + 100)).collect();
    for blob in &blobs {
        world.fake.put_blob("team/a", blob);
    }
    let (cancel, from) = (Cancel::default(), [format!("{}/team/a:1", world.fake.host())]);
    let all = blobs
        .iter()
        .map(|blob| fetcher.fetch(request(blob, &from), &cancel));
    for blob in futures::future::join_all(all).await {
        blob.unwrap();
    }
    assert_eq!(world.fake.seen("/token").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_token_is_posted() {
    let world = World::with_tokens().await;
    let auth = BASE64_STANDARD.encode("00000000-0000-0000-0000-000000000000:");
    let auths = json!({ world.fake.host(): {"auth": auth, "identitytoken": PASSWORD} });
    world.fetch(&world.fetcher(&auths)).await.unwrap();
    let asked = world.fake.seen("/token");
    assert_eq!((asked.len(), authorization(&asked[0])), (1, String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_credential_is_named_without_its_content() {
    let world = World::with_tokens().await;
    let auths = json!({ world.fake.host(): {"username": "user", "password": "hunter2x"} });
    let error = world.fetch(&world.fetcher(&auths)).await.unwrap_err();
    let said = message(&error);
    assert_eq!(
        said,
        format!(
            "blob {} from `{host}/team/a` (token from `127.0.0.1`): the registry answers 401 to the credentials \
             under `{host}` of `{}`: UNAUTHORIZED: who are you",
            Digest::of(&world.bytes),
            world.dir.path().join("auth.json").display(),
            host = world.fake.host(),
        )
    );

    let error = world.fetch(&world.fetcher(&json!({}))).await.unwrap_err();
    assert!(
        message(&error).contains("a request without credentials"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_refuses_its_own_token_is_asked_twice_at_most() {
    let world = World::with_tokens().await;
    let host = world.fake.host();
    world.fake.fault(move |seen| match seen.path.as_str() {
        "/token" => Some(json!({"access_token": "t"}).to_string().into_response()),
        _ => Some(challenge(&format!("Bearer realm=\"http://{host}/token\""))),
    });
    let error = world.fetch(&world.fetcher(&world.user())).await.unwrap_err();
    message(&error);
    assert_eq!(world.fake.seen("/v2/").len(), 2);

    world.fake.fault(|_| Some(StatusCode::FORBIDDEN.into_response()));
    message(&world.fetch(&world.fetcher(&world.user())).await.unwrap_err());
    assert_eq!(world.fake.seen("/v2/").len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_sent_after_a_challenge_and_only_to_its_repository() {
    let world = World::with_tokens().await;
    world.fake.put_blob("other", &world.bytes);
    world
        .fake
        .fault(|seen| (authorization(seen) != basic()).then(|| challenge("Basic realm=\"x\"")));
    let fetcher = world.fetcher(&world.user());
    world.fetch(&fetcher).await.unwrap();
    let seen = world.fake.seen("team/a/blobs");
    let sent: Vec<String> = seen.iter().map(authorization).collect();
    assert_eq!(sent, [String::new(), basic()]);

    let wanted = request(&world.bytes, &[format!("{}/other:1", world.fake.host())]);
    message(&fetcher.fetch(wanted, &Cancel::default()).await.unwrap_err());
    assert!(
        world
            .fake
            .seen("other/blobs")
            .iter()
            .all(|seen| authorization(seen).is_empty())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_to_another_host_gets_no_credentials_and_is_followed_anew() {
    let world = World::with_tokens().await;
    let cdn = Fake::start().await;
    let digest = cdn.put_blob("cdn", &world.bytes);
    let (target, requests) = (
        format!("http://{}/v2/cdn/blobs/{digest}", cdn.host()),
        AtomicUsize::new(0),
    );
    world.fake.fault(move |seen| {
        if authorization(seen) != basic() {
            return Some(challenge("Basic realm=\"x\""));
        }
        let number = requests.fetch_add(1, Ordering::SeqCst);
        Some(Redirect::temporary(&format!("{target}?signature={PASSWORD}{number}")).into_response())
    });
    // An expired URL is 403 from the CDN; that says nothing about our password.
    let bytes = world.bytes.clone();
    cdn.fault(move |seen| match seen.query.chars().last() {
        Some('0') => Some(StatusCode::FORBIDDEN.into_response()),
        Some('1') => Some(serve(seen, "", &bytes, 16_384)),
        _ => None,
    });
    world.fetch(&world.fetcher(&world.user())).await.unwrap();
    let seen = cdn.seen("");
    let starts: Vec<_> = seen.iter().map(Seen::range_start).collect();
    assert_eq!(starts, [None, None, Some(16_384)]);
    for request in seen {
        assert_eq!(authorization(&request), "");
        assert_eq!(request.header(header::REFERER), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_url_of_a_failed_redirect_is_not_reported() {
    let world = World::with_tokens().await;
    let target = format!("http://127.0.0.1:1/x?signature={PASSWORD}");
    world
        .fake
        .fault(move |_| Some(Redirect::temporary(&target).into_response()));
    let (fetcher, log) = fetcher(world.settings(&json!({})), &world.spool());
    let error = world.fetch(&fetcher).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Network);
    let said = format!("{error} {error:?} {:?}", log.retries());
    assert!(
        said.contains("Connection refused") && !said.contains(PASSWORD),
        "{said}"
    );

    let endless = format!("http://{}/again", world.fake.host());
    world
        .fake
        .fault(move |_| Some(Redirect::temporary(&endless).into_response()));
    let error = world.fetch(&fetcher).await.unwrap_err();
    assert!(error.to_string().contains("more than 10 redirects"), "{error}");
}

/// As GitLab's: the token server is elsewhere, its URL has a query of its own, and the challenge names neither service nor
/// scope.
#[tokio::test(flavor = "multi_thread")]
async fn the_token_server_may_be_another_host() {
    let world = World::with_tokens().await;
    let server = Fake::start().await;
    server.fault(|seen| {
        let token = json!({"access_token": "from elsewhere", "expires_in": null});
        Some(match authorization(seen) == basic() {
            true => token.to_string().into_response(),
            false => StatusCode::UNAUTHORIZED.into_response(),
        })
    });
    let realm = format!("http://{}/jwt/auth?client=docker", server.host());
    world.fake.fault(move |seen| {
        let is_good = authorization(seen) == "Bearer from elsewhere";
        (!is_good).then(|| challenge(&format!("Bearer realm=\"{realm}\"")))
    });
    world.fetch(&world.fetcher(&world.user())).await.unwrap();
    let asked = server.seen("");
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].path, "/jwt/auth");
    assert_eq!(
        asked[0].query,
        "client=docker&scope=repository%3Ateam%2Fa%3Apull&account=user"
    );
    let sent = world.fake.seen("");
    assert!(
        sent.iter().all(|seen| authorization(seen) != basic()),
        "the password is for the token server"
    );
}

/// Artifactory and Nexus offer both. Who has a password takes what comes first; who has none can only have a token.
#[tokio::test(flavor = "multi_thread")]
async fn of_basic_and_bearer_the_first_answerable_is_used() {
    for offers_basic_first in [true, false] {
        let world = World::with_tokens().await;
        let host = world.fake.host();
        world.fake.fault(move |seen| {
            if seen.path == "/token" {
                return Some(json!({"token": "for anybody"}).to_string().into_response());
            }
            let bearer = format!("Bearer realm=\"http://{host}/token\",service=\"x\"");
            let basic_first = format!("Basic realm=\"x\", {bearer}");
            let bearer_first = format!("{bearer}, Basic realm=\"x\"");
            match authorization(seen).as_str() {
                "Bearer for anybody" => None,
                sent if sent == basic() => None,
                _ if offers_basic_first => Some(challenge(&basic_first)),
                _ => Some(challenge(&bearer_first)),
            }
        });
        world.fetch(&world.fetcher(&json!({}))).await.unwrap();
        assert_eq!(world.fake.seen("/token").len(), 1);
        world.fetch(&world.fetcher(&world.user())).await.unwrap();
        let tokens = world.fake.seen("/token").len();
        assert_eq!(tokens, if offers_basic_first { 1 } else { 2 });
    }
}

/// quay.io gives anybody a token and then answers 401 for a repository that is private or is not there.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_repository_may_be_answered_with_401() {
    let world = World::with_tokens().await;
    let host = world.fake.host();
    world.fake.fault(move |seen| {
        if seen.path == "/v2/auth" {
            return Some(json!({"token": "anonymous"}).to_string().into_response());
        }
        let body = r#"{"errors":[{"code":"UNAUTHORIZED","detail":{},"message":"access to the requested resource is not authorized"}]}"#;
        let realm = format!(
            "Bearer realm=\"http://{host}/v2/auth\",service=\"{host}\",scope=\"repository:team/a:pull\""
        );
        Some((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, realm)], body).into_response())
    });
    let error = world.fetch(&world.fetcher(&json!({}))).await.unwrap_err();
    let said = message(&error);
    assert!(
        said.ends_with(
            "the registry answers 401 to a request without credentials, because no pull secret has any for this repository: UNAUTHORIZED: \
             access to the requested resource is not authorized\nhint: add credentials for this repository to a pull secret, or correct \
             the reference: many registries answer so for a repository that does not exist, too"
        ),
        "{said}"
    );
    assert_eq!(world.fake.seen("/v2/auth").len(), 1);
    assert_eq!(world.fake.seen("/blobs/").len(), 2);
    let error = world.fetch(&world.fetcher(&world.user())).await.unwrap_err();
    assert!(!message(&error).contains("hint"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_pull_secret_is_an_error_from_the_start() {
    let world = World::with_tokens().await;
    let mut settings = world.settings(&json!({}));
    std::fs::write(&settings.auth_files[0], "{\"auths\":\n{\"a\":\"hunter2\"}}").unwrap();
    let new = |settings| spoke_precache::registry::Registries::new(settings, Arc::new(crate::Log::default()));
    let error: RegistryError = new(settings.clone()).unwrap_err();
    assert_eq!(error.kind(), Kind::Unauthorized);
    assert!(error.to_string().contains("at line 2, column"), "{error}");
    settings.auth_files[0].set_file_name("missing");
    assert_eq!(new(settings).unwrap_err().kind(), Kind::Unauthorized);
}
