//! Serves a signature store by HTTP, and misbehaves on command.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Response, Uri};
use tokio::sync::oneshot;

/// The answer to a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// 200 and these bytes.
    Signature(Vec<u8>),
    /// An error.
    Status(u16),
    /// None, with an open connection.
    Silence,
    /// 200, and bytes without an end.
    Endless,
}

/// The server. Paths without an answer are 404.
pub(crate) struct SignatureServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    answers: Mutex<HashMap<String, Answer>>,
    asked: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SignatureServer {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free loopback port");
        listener.set_nonblocking(true).expect("a listener");
        let address = listener.local_addr().expect("a bound listener has an address");
        let shared = Arc::<Shared>::default();
        let (stop, stopped) = oneshot::channel();
        let router = Router::new().fallback(handle).with_state(shared.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("it is non-blocking");
                tokio::select! {
                    served = async { axum::serve(listener, router).await } => served.expect("accepting connections"),
                    _ = stopped => {}
                }
            });
        });
        Self {
            address,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// The store's URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/signatures", self.address)
    }

    /// The answer for signature `number` of the release.
    pub(crate) fn put(&self, digest: &str, number: u32, answer: Answer) {
        lock(&self.shared.answers).insert(path(digest, number), answer);
    }

    /// The numbers that were requested for the release.
    pub(crate) fn asked(&self, digest: &str) -> Vec<u32> {
        let asked = lock(&self.shared.asked);
        let number = |path: &String| (1..=20).find(|number| *path == self::path(digest, *number));
        asked
            .iter()
            .map(|path| number(path).unwrap_or_else(|| panic!("{path}")))
            .collect()
    }
}

fn path(digest: &str, number: u32) -> String {
    format!("/signatures/{}/signature-{number}", digest.replace(':', "="))
}

impl Drop for SignatureServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed it.
            let _ = thread.join();
        }
    }
}

async fn handle(State(shared): State<Arc<Shared>>, uri: Uri) -> Response<Body> {
    lock(&shared.asked).push(uri.path().to_owned());
    let answer = lock(&shared.answers).get(uri.path()).cloned();
    let (status, body) = match answer {
        None => (404, Body::from("<html>no such object</html>")),
        Some(Answer::Signature(bytes)) => (200, Body::from(bytes)),
        Some(Answer::Status(status)) => (status, Body::from("told to fail")),
        Some(Answer::Silence) => std::future::pending().await,
        Some(Answer::Endless) => {
            let chunks = std::iter::repeat(Ok::<_, Infallible>(Bytes::from_static(&[0; 4096])));
            (200, Body::from_stream(futures::stream::iter(chunks)))
        }
    };
    let response = Response::builder().status(status).body(body);
    response.expect("a response")
}
