//! A fake registry on loopback, with content and faults that a test sets.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use spoke_precache::oci::Digest;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: header::HeaderName) -> Option<String> {
        Some(self.headers.get(name)?.to_str().ok()?.to_owned())
    }

    /// `N` of `Range: bytes=N-M`.
    pub(crate) fn range_start(&self) -> Option<usize> {
        Some(self.range()?.start)
    }

    /// `N..M+1` of `Range: bytes=N-M`.
    pub(crate) fn range(&self) -> Option<Range<usize>> {
        let range = self.header(header::RANGE)?;
        let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some(first.parse().ok()?..last.parse::<usize>().ok()? + 1)
    }
}

type Fault = Box<dyn Fn(&Seen) -> Option<Response> + Send + Sync>;

#[derive(Default)]
struct Shelf {
    objects: Mutex<HashMap<String, (String, Bytes)>>,
    seen: Mutex<Vec<Seen>>,
    fault: Mutex<Option<Fault>>,
}

#[derive(Clone)]
pub(crate) struct Fake {
    address: SocketAddr,
    shelf: Arc<Shelf>,
}

impl Fake {
    pub(crate) async fn start() -> Self {
        let shelf = Arc::new(Shelf::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().fallback(answer).with_state(shelf.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, shelf }
    }

    /// `127.0.0.1:<port>`
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    /// Says how some requests are to be answered instead.
    pub(crate) fn fault(&self, fault: impl Fn(&Seen) -> Option<Response> + Send + Sync + 'static) {
        *self.shelf.fault.lock().expect("no panic") = Some(Box::new(fault));
    }

    pub(crate) fn put(&self, path: &str, kind: &str, bytes: impl Into<Bytes>) {
        let object = (kind.to_owned(), bytes.into());
        self.shelf
            .objects
            .lock()
            .expect("no panic")
            .insert(path.into(), object);
    }

    pub(crate) fn put_blob(&self, repository: &str, bytes: &Bytes) -> Digest {
        let digest = Digest::of(bytes);
        let path = format!("/v2/{repository}/blobs/{digest}");
        self.put(&path, "application/octet-stream", bytes.clone());
        digest
    }

    /// All requests whose path contains `part`.
    pub(crate) fn seen(&self, part: &str) -> Vec<Seen> {
        let seen = self.shelf.seen.lock().expect("no panic");
        seen.iter()
            .filter(|seen| seen.path.contains(part))
            .cloned()
            .collect()
    }
}

async fn answer(State(shelf): State<Arc<Shelf>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let seen = Seen {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: head.headers,
        body: axum::body::to_bytes(body, 1 << 20).await.expect("a body"),
    };
    shelf.seen.lock().expect("no panic").push(seen.clone());
    if let Some(response) = shelf
        .fault
        .lock()
        .expect("no panic")
        .as_ref()
        .and_then(|fault| fault(&seen))
    {
        return response;
    }
    let object = shelf.objects.lock().expect("no panic").get(&seen.path).cloned();
    match object {
        None => StatusCode::NOT_FOUND.into_response(),
        Some((kind, bytes)) => serve(&seen, &kind, &bytes, usize::MAX),
    }
}

/// Serves an object as asked, ranges included, but breaks the connection after `cut` bytes of the body.
pub(crate) fn serve(seen: &Seen, kind: &str, bytes: &Bytes, cut: usize) -> Response {
    answer_with(seen, kind, bytes, |rest| cut_body(rest, cut))
}

/// Serves an object as asked, 64 KiB at a time with a pause after each.
pub(crate) fn serve_slowly(seen: &Seen, kind: &str, bytes: &Bytes, pause: Duration) -> Response {
    answer_with(seen, kind, bytes, |rest| slow_body(rest, 64 << 10, pause))
}

/// Serves an object as asked, ten pieces of that length a second.
pub(crate) fn trickle(seen: &Seen, kind: &str, bytes: &Bytes, piece: usize) -> Response {
    answer_with(seen, kind, bytes, |rest| {
        slow_body(rest, piece, Duration::from_millis(100))
    })
}

fn slow_body(rest: Bytes, piece: usize, pause: Duration) -> Body {
    let starts = (0..rest.len()).step_by(piece);
    let pieces = starts.map(move |start| rest.slice(start..rest.len().min(start + piece)));
    Body::from_stream(stream::iter(pieces).then(move |piece| async move {
        tokio::time::sleep(pause).await;
        Ok::<_, std::io::Error>(piece)
    }))
}

fn answer_with(seen: &Seen, kind: &str, bytes: &Bytes, body: impl FnOnce(Bytes) -> Body) -> Response {
    let (range, status) = match seen.range() {
        Some(range) if range.start < bytes.len() => (
            range.start..range.end.min(bytes.len()),
            StatusCode::PARTIAL_CONTENT,
        ),
        Some(_) => return StatusCode::RANGE_NOT_SATISFIABLE.into_response(),
        None => (0..bytes.len(), StatusCode::OK),
    };
    let part = bytes.slice(range.clone());
    let mut response = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, kind)
        .header(header::CONTENT_LENGTH, part.len());
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {}-{}/{}", range.start, range.end - 1, bytes.len());
        response = response.header(header::CONTENT_RANGE, range);
    }
    response.body(body(part)).expect("a response")
}

/// A body in pieces of 8 KiB that ends in an error after `cut` bytes.
pub(crate) fn cut_body(bytes: Bytes, cut: usize) -> Body {
    let whole = bytes.slice(..cut.min(bytes.len()));
    let starts = (0..whole.len()).step_by(8192);
    let pieces = starts.map(move |start| Ok(whole.slice(start..whole.len().min(start + 8192))));
    let end = async move {
        // The server would throw away what it has not sent yet.
        tokio::time::sleep(Duration::from_millis(20)).await;
        Err(std::io::Error::other("cut"))
    };
    let ends = if cut < bytes.len() { vec![end] } else { vec![] };
    Body::from_stream(stream::iter(pieces).chain(stream::iter(ends).then(|end| end)))
}
