//! Serves a registry in this process, on loopback, with plain HTTP: correct unless a test scripts a fault.
//!
//! # Design
//! [`Registry::start`] gives a server a thread and a runtime of its own, so that tests may block. Handlers read the
//! shared [`Content`], ask [`faults`] what to do to this request, and note what they did in the [`log`]. Several
//! registries may share one content: mirrors, or the host that blobs are redirected to. Dropping one ends its server
//! and every connection.
//!
//! A sibling of module `image` in whatever crate includes it; holds nothing that only tests have.

mod auth;
mod body;
mod content;
pub(crate) mod faults;
pub(crate) mod log;
mod serve;

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::image::release::{COMPONENTS, RELEASE, Release};
use crate::image::{Image, Images, List};

pub(crate) use auth::Auth;
use content::Content;
use faults::Fault;
use log::{Access, Log};

/// A running registry.
pub(crate) struct Registry {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What handlers and the test both hold.
struct Shared {
    content: Arc<Mutex<Content>>,
    faults: Mutex<Vec<Fault>>,
    log: Log,
    auth: Mutex<Option<Auth>>,
    address: SocketAddr,
}

/// A test that failed with the lock held has printed it already; others may continue.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// An empty registry on a free port.
    pub(crate) fn start() -> Self {
        Self::serving(Arc::default())
    }

    /// Another server for the same content, with a log and faults of its own.
    pub(crate) fn twin(&self) -> Self {
        Self::serving(self.shared.content.clone())
    }

    /// An empty registry that serves who connects to `listener`, which may belong to another network namespace.
    pub(crate) fn on(listener: TcpListener) -> Self {
        Self::listening(listener, Arc::default())
    }

    fn serving(content: Arc<Mutex<Content>>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free loopback port");
        Self::listening(listener, content)
    }

    fn listening(listener: TcpListener, content: Arc<Mutex<Content>>) -> Self {
        listener
            .set_nonblocking(true)
            .expect("a listener can be made non-blocking");
        let address = listener.local_addr().expect("a bound listener has an address");
        let shared = Arc::new(Shared {
            content,
            faults: Mutex::default(),
            log: Log::default(),
            auth: Mutex::default(),
            address,
        });
        let (stop, stopped) = oneshot::channel();
        let served = shared.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener =
                    tokio::net::TcpListener::from_std(listener).expect("the listener is non-blocking");
                tokio::select! {
                    served = serve::serve(listener, served) => served.expect("accepting connections"),
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

    /// `127.0.0.1:port`, as references begin.
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    /// `127.0.0.1:port/repository:latest`
    pub(crate) fn tagged(&self, repository: &str) -> String {
        format!("{}/{repository}:latest", self.host())
    }

    /// `127.0.0.1:port/repository@digest`
    pub(crate) fn at(&self, repository: &str, digest: &str) -> String {
        format!("{}/{repository}@{digest}", self.host())
    }

    /// The content, to be changed at will.
    pub(crate) fn content(&self) -> MutexGuard<'_, Content> {
        lock(&self.shared.content)
    }

    /// Stores an image in `repository` under its digest, and under `tag` if there is one.
    pub(crate) fn push(&self, repository: &str, tag: Option<&str>, image: &Image) {
        self.content().push(repository, tag, image);
    }

    /// Stores a list and its instances.
    pub(crate) fn push_list(&self, repository: &str, tag: Option<&str>, list: &List) {
        self.content().push_list(repository, tag, list);
    }

    /// Stores every image and list under its name, tagged `latest`.
    pub(crate) fn push_all(&self, images: &Images) {
        for image in &images.images {
            self.push(&image.name, Some("latest"), image);
        }
        for list in &images.lists {
            self.push_list(&list.name, Some("latest"), list);
        }
    }

    /// Stores a release that was built for [`Self::host`].
    pub(crate) fn push_release(&self, release: &Release) {
        self.push(RELEASE, Some("4.99.0"), &release.release);
        for (_, image) in &release.components {
            self.push(COMPONENTS, None, image);
        }
    }

    /// From now on, does `fault` to the requests that it matches. Of several, the first that matches acts.
    pub(crate) fn fault(&self, fault: Fault) {
        lock(&self.shared.faults).push(fault);
    }

    /// How often each fault acted so far, in the order in which they were asked for.
    pub(crate) fn acts(&self) -> Vec<u64> {
        lock(&self.shared.faults).iter().map(|fault| fault.acts).collect()
    }

    /// Behaves again.
    pub(crate) fn end_faults(&self) {
        lock(&self.shared.faults).clear();
    }

    /// Asks for credentials from now on.
    pub(crate) fn require(&self, auth: Auth) {
        *lock(&self.shared.auth) = Some(auth);
    }

    /// Every token that was given out is worth nothing from now on.
    pub(crate) fn revoke_tokens(&self) {
        if let Some(auth) = lock(&self.shared.auth).as_mut() {
            auth.revoke();
        }
    }

    /// Everything asked so far, in the order of arrival.
    pub(crate) fn log(&self) -> Vec<Access> {
        self.shared.log.entries()
    }

    /// Forgets what was asked so far.
    pub(crate) fn clear_log(&self) {
        self.shared.log.clear();
    }

    /// How often the layer or delta with this digest was requested.
    pub(crate) fn requests_of(&self, digest: &str) -> usize {
        let requests = self.layer_requests();
        let of_blob = requests.iter().filter(|access| access.path.ends_with(digest));
        of_blob.count()
    }

    /// Requests for blobs so far, configs not counted.
    pub(crate) fn layer_requests(&self) -> Vec<Access> {
        let configs = self.content().configs();
        let blobs = self
            .log()
            .into_iter()
            .filter(|access| access.path.contains("/blobs/"));
        blobs
            .filter(|access| !configs.iter().any(|digest| access.path.ends_with(digest)))
            .collect()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A server that panicked has printed it; another panic here would abort the test binary.
            let _ = thread.join();
        }
    }
}
