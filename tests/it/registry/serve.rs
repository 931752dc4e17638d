//! Serves the HTTP side of the fake registry: routes, ranges, errors.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use serde_json::json;
use tokio::net::TcpListener;

use super::faults::{self, Action, Fault};
use super::{Shared, body, lock};

pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) -> io::Result<()> {
    let router = Router::new().fallback(handle).with_state(shared);
    axum::serve(listener, router).await
}

/// The response before faults.
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    blob: Bytes,
    /// Whether a range of it may be asked for.
    ranges: bool,
}

impl Answer {
    fn new(status: u16, content_type: &str, bytes: impl Into<Bytes>) -> Self {
        let headers = vec![("Content-Type".to_owned(), content_type.to_owned())];
        Self {
            status,
            headers,
            blob: bytes.into(),
            ranges: false,
        }
    }

    fn error(status: u16, code: &str) -> Self {
        let document =
            json!({"errors": [{"code": code, "message": format!("the fake registry says {status}")}]});
        Self::new(status, "application/json", document.to_string())
    }

    fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

async fn handle(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let (parts, _) = request.into_parts();
    let path = parts.uri.path();
    let fault = faults::choose(&mut lock(&shared.faults), path);
    let action = fault.as_ref().map_or(Action::None, |fault| fault.action.clone());
    let answer = match &action {
        Action::Status(401) => {
            Answer::error(401, "UNAUTHORIZED").with("WWW-Authenticate", r#"Basic realm="fake""#)
        }
        Action::Status(status) => Answer::error(*status, error_code(*status)),
        Action::Redirect(base) => {
            let query = parts.uri.path_and_query().map_or(path, |both| both.as_str());
            Answer::new(307, "text/plain", Bytes::new()).with("Location", format!("{base}{query}"))
        }
        Action::Replace(bytes) => Answer::new(200, "application/octet-stream", bytes.clone()),
        _ => refused(&shared, &parts).unwrap_or_else(|| answer(&shared, path)),
    };
    respond(&shared, &parts, answer, fault, action)
}

fn error_code(status: u16) -> &'static str {
    match status {
        401 => "UNAUTHORIZED",
        403 => "DENIED",
        404 => "MANIFEST_UNKNOWN",
        429 => "TOOMANYREQUESTS",
        _ => "UNKNOWN",
    }
}

/// The response to a client without the right credentials; also the token endpoint.
fn refused(shared: &Shared, parts: &Parts) -> Option<Answer> {
    let mut auth = lock(&shared.auth);
    let auth = auth.as_mut()?;
    let authorization = parts
        .headers
        .get("authorization")
        .and_then(|value| value.to_str().ok());
    if parts.uri.path() == "/token" {
        return Some(match auth.token(authorization) {
            Some(token) => {
                let document = json!({"token": token, "access_token": token, "expires_in": 300});
                Answer::new(200, "application/json", document.to_string())
            }
            None => Answer::error(401, "UNAUTHORIZED"),
        });
    }
    let challenge = auth.challenge(authorization, parts.uri.path(), &shared.address.to_string())?;
    Some(Answer::error(401, "UNAUTHORIZED").with("WWW-Authenticate", challenge))
}

fn answer(shared: &Shared, path: &str) -> Answer {
    let Some(rest) = path.strip_prefix("/v2/") else {
        return Answer::error(404, "UNSUPPORTED");
    };
    let content = lock(&shared.content);
    if rest.is_empty() {
        return Answer::new(200, "application/json", "{}");
    }
    if let Some(repository) = rest.strip_suffix("/tags/list") {
        let document = json!({"name": repository, "tags": content.tags(repository)});
        return Answer::new(200, "application/json", document.to_string());
    }
    if let Some((repository, name)) = rest.split_once("/manifests/") {
        let Some((media_type, bytes)) = content.manifest(repository, name) else {
            return Answer::error(404, "MANIFEST_UNKNOWN");
        };
        let digest = crate::image::sha256(&bytes);
        return Answer::new(200, &media_type, bytes).with("Docker-Content-Digest", digest);
    }
    if let Some((repository, digest)) = rest.split_once("/blobs/") {
        let Some(blob) = content.blob(repository, digest) else {
            return Answer::error(404, "BLOB_UNKNOWN");
        };
        let empty = Answer::new(200, "application/octet-stream", Bytes::new());
        return Answer {
            blob,
            ranges: true,
            ..empty
        }
        .with("Docker-Content-Digest", digest)
        .with("Accept-Ranges", "bytes");
    }
    Answer::error(404, "UNSUPPORTED")
}

fn respond(
    shared: &Shared,
    parts: &Parts,
    mut answer: Answer,
    fault: Option<Fault>,
    action: Action,
) -> Response<Body> {
    let length = answer.blob.len() as u64;
    let (mut start, mut end) = (0, length);
    let range = parts.headers.get("range").and_then(|value| value.to_str().ok());
    if let Some(range) = range.filter(|_| answer.ranges && !matches!(action, Action::IgnoreRange)) {
        let asked = parse_range(range, length).filter(|_| !matches!(action, Action::RefuseRange));
        match asked {
            None => {
                answer =
                    Answer::error(416, "RANGE_INVALID").with("Content-Range", format!("bytes */{length}"));
                (start, end) = (0, answer.blob.len() as u64);
            }
            Some((first, after)) => {
                answer.status = 206;
                (start, end) = (first, after);
                if let Action::ShiftRange(by) = action {
                    (start, end) = ((first + by).min(length), (after + by).min(length));
                }
                let last = end.saturating_sub(1);
                answer = answer.with("Content-Range", format!("bytes {start}-{last}/{length}"));
            }
        }
    }
    for (name, value) in fault.map(|fault| fault.headers).unwrap_or_default() {
        answer
            .headers
            .retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
        answer.headers.push((name, value));
    }
    let mut response = Response::builder().status(StatusCode::from_u16(answer.status).expect("a status"));
    for (name, value) in &answer.headers {
        response = response.header(name, value);
    }
    response = response.header("Content-Length", end - start);
    let sent = shared.log.note(parts, answer.status);
    let body = match parts.method.as_str() {
        "HEAD" => Body::empty(),
        _ => body::body(answer.blob, start, end, action, sent),
    };
    response.body(body).expect("headers of fixtures are valid")
}

/// `bytes=a-b`, `bytes=a-`, `bytes=-n` as (first, one after the last); none if nothing of it is there.
fn parse_range(range: &str, length: u64) -> Option<(u64, u64)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        let count: u64 = last.parse().ok()?;
        return Some((length.saturating_sub(count), length));
    }
    let first: u64 = first.parse().ok()?;
    let after = if last.is_empty() {
        length
    } else {
        last.parse::<u64>().ok()? + 1
    };
    (first < length && first < after).then_some((first, after.min(length)))
}
