//! Uploads to a registry that fails, refuses, redirects, breaks off or goes silent.

use std::io::Read as _;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use serde_json::json;
use spoke_precache::cancel::Cancel;
use spoke_precache::oci::{Digest, OCI_IMAGE_INDEX_MEDIA_TYPE};
use spoke_precache::registry::{Kind, RegistrySettings, Upload};

use crate::fake::{Fake, Seen};
use crate::uploads::file;
use crate::{Log, insecure, noise, reference, registries, settings};

/// Accepts all uploads, unless `fault` answers.
fn accept_uploads(fake: &Fake, fault: impl Fn(&Seen) -> Option<Response> + Send + Sync + 'static) {
    fake.fault(move |seen| {
        if let Some(response) = fault(seen) {
            return Some(response);
        }
        let created = |location: &str| Some((StatusCode::CREATED, [("Location", location)]).into_response());
        match seen.method {
            Method::POST if seen.path.ends_with("/blobs/uploads/") => {
                let location = [("Location", "/v2/elsewhere?state=a%2Fb")];
                Some((StatusCode::ACCEPTED, location).into_response())
            }
            Method::PUT if seen.path == "/v2/elsewhere" => {
                let digest = Digest::of(&seen.body).to_string().replace(':', "%3A");
                let expected = format!("state=a%2Fb&digest={digest}");
                match seen.query == expected {
                    true => created("/v2/team/a/blobs/x"),
                    false => Some((StatusCode::BAD_REQUEST, seen.query.clone()).into_response()),
                }
            }
            Method::PUT if seen.path.contains("/manifests/") => created("/v2/x"),
            _ => None,
        }
    });
}

fn upload(fake: &Fake, settings: RegistrySettings) -> (Upload, Arc<Log>) {
    let (registries, log) = registries(settings);
    let repository = reference(&format!("{}/team/a", fake.host()));
    (registries.upload(&repository).unwrap(), log)
}

fn plain(fakes: &[&Fake]) -> RegistrySettings {
    let hosts: Vec<String> = fakes.iter().map(|fake| fake.host()).collect();
    settings(&insecure(&hosts.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// The same, with a password for the first one.
fn with_password(fakes: &[&Fake], dir: &tempfile::TempDir) -> RegistrySettings {
    let path = dir.path().join("auth.json");
    let auths = json!({"auths": {fakes[0].host(): {"username": "user", "password": "hunter2"}}});
    std::fs::write(&path, auths.to_string()).unwrap();
    RegistrySettings {
        auth_files: vec![path],
        ..plain(fakes)
    }
}

fn requires_password(seen: &Seen) -> Option<Response> {
    let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"fake\"")];
    let is_missing = seen.header(header::AUTHORIZATION).is_none();
    is_missing.then(|| (StatusCode::UNAUTHORIZED, challenge).into_response())
}

/// A fault that acts on the first request only.
fn once(fault: impl Fn(&Seen) -> Option<Response> + Send + Sync) -> impl Fn(&Seen) -> Option<Response> {
    let acted = AtomicUsize::new(0);
    move |seen| {
        let response = fault(seen).filter(|_| acted.load(Ordering::SeqCst) == 0)?;
        acted.fetch_add(1, Ordering::SeqCst);
        Some(response)
    }
}

fn log_of(fake: &Fake) -> Vec<String> {
    let seen = fake.seen("");
    seen.iter()
        .map(|seen| format!("{} {}", seen.method, seen.path))
        .collect()
}

async fn put(upload: &Upload, blob: &Bytes) -> Result<(), spoke_precache::registry::RegistryError> {
    let (digest, size, cancel) = (Digest::of(blob), blob.len() as u64, Cancel::default());
    upload.put_blob(digest, size, file(blob), &cancel).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_is_sent_whole_to_the_location_of_the_upload() {
    let fake = Fake::start().await;
    accept_uploads(&fake, |_| None);
    let (upload, log) = upload(&fake, plain(&[&fake]));
    let blob = noise(700_000, 1);
    put(&upload, &blob).await.unwrap();
    let seen = fake.seen("/v2/elsewhere");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].body, blob);
    let header = |name| seen[0].header(name).unwrap_or_default();
    assert_eq!(header(header::CONTENT_LENGTH), "700000");
    assert_eq!(header(header::CONTENT_TYPE), "application/octet-stream");
    let begun = fake.seen("/blobs/uploads/");
    assert_eq!(begun[0].header(header::CONTENT_LENGTH).as_deref(), Some("0"));
    assert_eq!(log.retries(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_fails_once_is_begun_again() {
    for part in ["/blobs/uploads/", "/v2/elsewhere"] {
        let fake = Fake::start().await;
        let unavailable = once(move |seen: &Seen| {
            let is_it = seen.path.ends_with(part);
            is_it.then(|| StatusCode::SERVICE_UNAVAILABLE.into_response())
        });
        accept_uploads(&fake, unavailable);
        let (upload, log) = upload(&fake, plain(&[&fake]));
        put(&upload, &noise(1000, 1)).await.unwrap();
        assert_eq!(log.retries().len(), 1, "{part}");
        let uploads = fake.seen("/blobs/uploads/").len();
        assert_eq!(uploads, 2, "{part}: {:?}", log_of(&fake));
    }
    let fake = Fake::start().await;
    accept_uploads(
        &fake,
        once(|_| Some(StatusCode::SERVICE_UNAVAILABLE.into_response())),
    );
    let (upload, _) = upload(&fake, plain(&[&fake]));
    let index = Bytes::from(r#"{"schemaVersion":2,"manifests":[]}"#);
    let cancel = Cancel::default();
    let put = upload.put_manifest(Some("t"), OCI_IMAGE_INDEX_MEDIA_TYPE, index.clone(), &cancel);
    put.await.unwrap();
    let seen = fake.seen("/v2/team/a/manifests/t");
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1].body, index);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_whose_answer_was_lost_is_not_sent_again() {
    let fake = Fake::start().await;
    let blob = noise(1000, 1);
    fake.put_blob("team/a", &blob);
    let lost = once(|seen: &Seen| {
        let is_it = seen.path == "/v2/elsewhere";
        is_it.then(|| StatusCode::BAD_GATEWAY.into_response())
    });
    accept_uploads(&fake, lost);
    let (upload, _) = upload(&fake, plain(&[&fake]));
    put(&upload, &blob).await.unwrap();
    assert_eq!(fake.seen("/v2/elsewhere").len(), 1);
}

/// A host that reads `length` bytes of each connection, and then closes it or never reads again.
fn unwilling_host(length: usize, closes: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for connection in listener.incoming().flatten() {
            let mut connection = connection;
            let _ = connection.read_exact(&mut vec![0; length]);
            if !closes {
                kept.push(connection);
            }
        }
    });
    host
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_breaks_off_is_begun_again() {
    let (fake, host) = (Fake::start().await, unwilling_host(100_000, true));
    let location = format!("http://{host}/u?x=1");
    let elsewhere = once(move |seen: &Seen| {
        let is_it = seen.path.ends_with("/blobs/uploads/");
        is_it.then(|| (StatusCode::ACCEPTED, [("Location", location.as_str())]).into_response())
    });
    accept_uploads(&fake, elsewhere);
    let settings = RegistrySettings {
        give_up_after: None,
        ..plain(&[&fake])
    };
    let (upload, log) = upload(&fake, settings);
    let blob = noise(1_000_000, 1);
    let result = put(&upload, &blob).await;
    assert_eq!(log.retries().len(), 1, "{result:?} {:?}", log_of(&fake));
    result.unwrap();
    assert_eq!(fake.seen("/v2/elsewhere")[0].body, blob, "from the beginning");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_takes_nothing_ends_the_attempt() {
    let (fake, host) = (Fake::start().await, unwilling_host(1000, false));
    let location = format!("http://{host}/u?x=1");
    accept_uploads(&fake, move |seen| {
        let is_it = seen.path.ends_with("/blobs/uploads/");
        is_it.then(|| (StatusCode::ACCEPTED, [("Location", location.as_str())]).into_response())
    });
    let settings = RegistrySettings {
        give_up_after: Some(Duration::from_millis(800)),
        ..plain(&[&fake])
    };
    let (upload, _) = upload(&fake, settings);
    let error = put(&upload, &noise(50_000_000, 1)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Network);
    let text = error.to_string();
    assert!(text.contains("accepted no bytes for"), "{text}");
    assert!(!text.contains("x=1"), "the URL may be a secret: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_go_to_no_other_host() {
    let (fake, other) = (Fake::start().await, Fake::start().await);
    let dir = tempfile::tempdir().unwrap();
    accept_uploads(&other, |_| None);
    let location = format!("http://{}/v2/elsewhere?state=a%2Fb", other.host());
    // The location of the upload, and a redirect of its beginning.
    let by_location = move |seen: &Seen| {
        requires_password(seen)
            .or_else(|| Some((StatusCode::ACCEPTED, [("Location", location.as_str())]).into_response()))
    };
    accept_uploads(&fake, by_location);
    let settings = with_password(&[&fake, &other], &dir);
    let (by_location, _) = upload(&fake, settings.clone());
    put(&by_location, &noise(1000, 1)).await.unwrap();
    let begin = format!("http://{}/v2/team/a/blobs/uploads/", other.host());
    accept_uploads(&fake, move |seen| {
        requires_password(seen).or_else(|| {
            let location = [("Location", begin.as_str())];
            Some((StatusCode::TEMPORARY_REDIRECT, location).into_response())
        })
    });
    let (by_redirect, _) = upload(&fake, settings);
    put(&by_redirect, &noise(1000, 1)).await.unwrap();
    let seen = other.seen("");
    assert_eq!(seen.len(), 3, "{:?}", log_of(&other));
    assert!(
        seen.iter()
            .all(|seen| seen.header(header::AUTHORIZATION).is_none())
    );
    let to_fake = fake.seen("");
    assert!(
        to_fake
            .iter()
            .any(|seen| seen.header(header::AUTHORIZATION).is_some())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_may_only_pull_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for status in [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN] {
        let fake = Fake::start().await;
        fake.fault(move |seen| {
            let denied = r#"{"errors":[{"code":"DENIED","message":"read only"}]}"#;
            let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"fake\"")];
            requires_password(seen).or_else(|| Some((status, challenge, denied).into_response()))
        });
        let (upload, log) = upload(&fake, with_password(&[&fake], &dir));
        let error = put(&upload, &noise(1000, 1)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unauthorized);
        let text = error.to_string();
        assert!(text.contains("DENIED: read only"), "{text}");
        assert!(
            text.contains("hint: these credentials may only be allowed to pull"),
            "{text}"
        );
        assert!(!text.contains("hunter2"));
        assert_eq!(log.retries(), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_for_uploads_allow_pushes_and_those_for_pulls_do_not() {
    let fake = Fake::start().await;
    let scopes: Arc<Mutex<Vec<String>>> = Arc::default();
    let (host, requested) = (fake.host(), Arc::clone(&scopes));
    accept_uploads(&fake, move |seen| {
        if seen.path == "/token" {
            requested.lock().unwrap().push(seen.query.clone());
            let token = if seen.query.contains("push") {
                "push"
            } else {
                "pull"
            };
            return Some(json!({"token": token}).to_string().into_response());
        }
        let is_read = matches!(seen.method, Method::GET);
        let needed = if is_read { "Bearer pull" } else { "Bearer push" };
        let is_good = seen.header(header::AUTHORIZATION).as_deref() == Some(needed);
        let challenge = format!("Bearer realm=\"http://{host}/token\",service=\"fake\"");
        (!is_good)
            .then(|| (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response())
    });
    let (upload, _) = upload(&fake, plain(&[&fake]));
    assert_eq!(upload.manifest("t", &Cancel::default()).await.unwrap(), None);
    put(&upload, &noise(1000, 1)).await.unwrap();
    let scopes = scopes.lock().unwrap();
    assert_eq!(scopes.len(), 2, "{scopes:?}");
    assert!(
        scopes[0].contains("scope=repository%3Ateam%2Fa%3Apull&"),
        "{scopes:?}"
    );
    assert!(
        scopes[1].contains("scope=repository%3Ateam%2Fa%3Apull%2Cpush&"),
        "{scopes:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn strange_answers_end_an_upload() {
    for (location, why) in [
        (None, "names no URL"),
        (Some("ftp://x/y"), "unusable URL"),
        (Some("/v2/team/a/blobs/uploads/"), "redirects"),
    ] {
        let fake = Fake::start().await;
        let is_redirect = why == "redirects";
        fake.fault(move |_| {
            let status = match is_redirect {
                true => StatusCode::PERMANENT_REDIRECT,
                false => StatusCode::ACCEPTED,
            };
            Some(match location {
                Some(location) => (status, [("Location", location)]).into_response(),
                None => status.into_response(),
            })
        });
        let (upload, log) = upload(&fake, plain(&[&fake]));
        let error = put(&upload, &noise(1000, 1)).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert_eq!(log.retries(), [""; 0]);
    }
}
