//! Fakes the cluster's API: stores objects, serves them by HTTPS to clients with the token, fails on command.
//!
//! It knows what the API server does that matters here: merge patches with their uids and versions, server-side apply, names
//! that are taken, `Status` for errors.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, Response, Uri, header::HeaderMap};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use spoke_precache::cluster::{RULES, RuleScope, ServiceAccount};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::api_faults::{Action, Fault, choose};
use crate::network::certificates::Authority;

/// What the token file holds at first; found in nothing that is written anywhere.
pub(super) const TOKEN: &str = "planted-token-of-the-service-account";
/// What it holds after the kubelet has written it anew.
pub(super) const NEXT_TOKEN: &str = "planted-token-the-next-one";

pub(super) const NAMESPACE: &str = "openshift-talo-pre-cache";
pub(super) const POD: &str = "pre-cache-7xk2p";
pub(super) const NODE: &str = "sno-1.example.com";
pub(super) const JOB_PATH: &str = "/apis/batch/v1/namespaces/openshift-talo-pre-cache/jobs/pre-cache";
pub(super) const POD_PATH: &str = "/api/v1/namespaces/openshift-talo-pre-cache/pods/pre-cache-7xk2p";
pub(super) const CONFIGZ_PATH: &str = "/api/v1/nodes/sno-1.example.com/proxy/configz";
pub(super) const PROXY_PATH: &str = "/apis/config.openshift.io/v1/proxies/cluster";
pub(super) const IMAGE_PATH: &str = "/apis/config.openshift.io/v1/images/cluster";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/openshift-talo-pre-cache/events/";

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) body: String,
    pub(super) at: Instant,
}

/// The server, and a service account for it.
pub(super) struct ApiDouble {
    address: SocketAddr,
    shared: Arc<Shared>,
    account: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    objects: Mutex<BTreeMap<String, Value>>,
    faults: Mutex<Vec<Fault>>,
    log: Mutex<Vec<Asked>>,
    /// Answers whose client was gone.
    late: Mutex<Vec<u16>>,
    /// Writes so far: the next `resourceVersion`.
    writes: AtomicU64,
    /// Whose bearer is let in.
    token: Mutex<String>,
    /// Where the kubelet writes the next token when this one was refused.
    rotates: Mutex<Option<PathBuf>>,
}

impl Shared {
    /// An object as it is after a write.
    fn written(&self, mut object: Value) -> Value {
        let version = self.writes.fetch_add(1, Ordering::Relaxed);
        object["metadata"]["resourceVersion"] = version.to_string().into();
        object
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ApiDouble {
    /// With our pod and a Job that began now and has four hours.
    pub(super) fn start() -> Self {
        Self::on(Ipv4Addr::LOCALHOST.into())
    }

    pub(super) fn on(address: IpAddr) -> Self {
        let authority = Authority::new("kube-apiserver");
        let account = TempDir::new().expect("a temporary directory");
        for (name, text) in [
            ("token", TOKEN),
            ("namespace", NAMESPACE),
            ("ca.crt", &authority.pem()),
        ] {
            fs::write(account.path().join(name), text).expect("writing a service account");
        }
        let tls = tls_config(&authority, "api", &format!("IP:{address}"));
        let listener = TcpListener::bind((address, 0)).expect("a free loopback port");
        listener.set_nonblocking(true).expect("a listener");
        let address = listener.local_addr().expect("a bound listener has an address");
        let shared = Arc::new(Shared {
            objects: Mutex::default(),
            faults: Mutex::default(),
            log: Mutex::default(),
            late: Mutex::default(),
            writes: AtomicU64::default(),
            token: Mutex::new(TOKEN.to_owned()),
            rotates: Mutex::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let router = Router::new().fallback(handle).with_state(shared.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = Tls {
                    tcp: tokio::net::TcpListener::from_std(listener).expect("the listener is non-blocking"),
                    acceptor: TlsAcceptor::from(Arc::new(tls)),
                };
                tokio::select! {
                    served = async { axum::serve(listener, router).await } => served.expect("accepting connections"),
                    _ = stopped => {}
                }
            });
        });
        let double = Self {
            address,
            shared,
            account,
            stop: Some(stop),
            thread: Some(thread),
        };
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "pre-cache", "uid": "job-uid", "controller": true});
        double.put(
            POD_PATH,
            json!({"metadata": {"name": POD, "ownerReferences": [owner]}}),
        );
        double.put_job(&jiff::Timestamp::now().to_string(), Some(14400));
        double
    }

    /// The Job, with an annotation of another program.
    pub(super) fn put_job(&self, start: &str, deadline: Option<u32>) {
        let metadata = json!({"name": "pre-cache", "uid": "job-uid", "annotations": {"other": "kept"}});
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata,
            "spec": {"activeDeadlineSeconds": deadline}, "status": {"startTime": start, "active": 1},
        });
        self.put(JOB_PATH, job);
    }

    pub(super) fn put(&self, path: &str, object: Value) {
        lock(&self.shared.objects).insert(path.to_owned(), self.shared.written(object));
    }

    pub(super) fn object(&self, path: &str) -> Value {
        lock(&self.shared.objects).get(path).cloned().unwrap_or_default()
    }

    pub(super) fn fault(&self, fault: Fault) {
        lock(&self.shared.faults).push(fault);
    }

    /// From now on it does as it should.
    pub(super) fn end_faults(&self) {
        lock(&self.shared.faults).clear();
    }

    /// The service account trusts another authority.
    pub(super) fn is_not_trusted(&self) {
        let other = Authority::new("somebody-else").pem();
        fs::write(self.account.path().join("ca.crt"), other).expect("writing a service account");
    }

    /// The statuses of what was done late.
    pub(super) fn late(&self) -> Vec<u16> {
        lock(&self.shared.late).clone()
    }

    /// The token that the pod has is refused from now on; the kubelet writes the next one right after.
    pub(super) fn rotate(&self) {
        *lock(&self.shared.token) = NEXT_TOKEN.to_owned();
        *lock(&self.shared.rotates) = Some(self.account.path().join("token"));
    }

    pub(super) fn log(&self) -> Vec<Asked> {
        lock(&self.shared.log).clone()
    }

    /// Requests that wrote the Job.
    pub(super) fn patches(&self) -> Vec<Asked> {
        let is_patch = |asked: &Asked| asked.method == Method::PATCH && asked.path == JOB_PATH;
        self.log().into_iter().filter(is_patch).collect()
    }

    /// The Job's annotation of this name.
    pub(super) fn annotation(&self, name: &str) -> String {
        let annotation = &self.object(JOB_PATH)["metadata"]["annotations"][name];
        annotation.as_str().unwrap_or_default().to_owned()
    }

    pub(super) fn status(&self) -> Value {
        serde_json::from_str(&self.annotation("spoke-precache.io/status")).unwrap_or_default()
    }

    /// All events, by time.
    pub(super) fn events(&self) -> Vec<Value> {
        let objects = lock(&self.shared.objects);
        let events = objects.iter().filter(|(path, _)| path.starts_with(EVENTS));
        let mut events: Vec<Value> = events.map(|(_, event)| event.clone()).collect();
        events.sort_by_key(|event| event["eventTime"].to_string());
        events
    }

    /// What a pod's environment has, as words for `env`.
    pub(super) fn environment(&self) -> Vec<String> {
        vec![
            "env".to_owned(),
            "-u".to_owned(),
            "SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD".to_owned(),
            format!("KUBERNETES_SERVICE_HOST={}", self.address.ip()),
            format!("KUBERNETES_SERVICE_PORT={}", self.address.port()),
            format!("SPOKE_PRECACHE_SERVICE_ACCOUNT={}", self.account.path().display()),
            "SPOKE_PRECACHE_CLUSTER_PATIENCE=1s".to_owned(),
            format!("HOSTNAME={POD}"),
            format!("NODE_NAME={NODE}"),
        ]
    }

    /// The service account as the program finds it.
    pub(super) fn service_account(&self) -> ServiceAccount {
        ServiceAccount {
            host: self.address.ip().to_string(),
            port: self.address.port(),
            dir: self.account.path().to_owned(),
            pod: Some(POD.to_owned()),
            node: Some(NODE.to_owned()),
            index: None,
        }
    }

    /// Everything that was asked is in the list that the roles are made from.
    #[track_caller]
    pub(super) fn is_allowed(&self) {
        for asked in self.log() {
            let verb = match asked.method {
                Method::PATCH => "patch",
                Method::POST => "create",
                Method::DELETE => "delete",
                _ => "get",
            };
            let allowed = RULES.iter().any(|rule| {
                let group = match rule.group {
                    "" => format!("/api/{}/", rule.version),
                    group => format!("/apis/{group}/{}/", rule.version),
                };
                let place = match rule.scope {
                    RuleScope::Cluster => String::new(),
                    RuleScope::Own => format!("namespaces/{NAMESPACE}/"),
                    RuleScope::Namespace(namespace) | RuleScope::OptionalNamespace(namespace) => {
                        format!("namespaces/{namespace}/")
                    }
                };
                let rest = asked.path.strip_prefix(&format!("{group}{place}"));
                let mut parts = rest.unwrap_or_default().split('/');
                let plural = parts.next().unwrap_or_default();
                let resource = match parts.nth(1) {
                    Some(subresource) => format!("{plural}/{subresource}"),
                    None => plural.to_owned(),
                };
                let is_list = verb == "get" && !rest.unwrap_or_default().contains('/');
                let verb = if is_list { "list" } else { verb };
                rule.verb == verb && rule.resource == resource
            });
            assert!(allowed, "no rule allows {asked:?}");
        }
    }
}

impl ApiDouble {
    /// Closes the listener.
    pub(super) fn close(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed it.
            let _ = thread.join();
        }
    }
}

impl Drop for ApiDouble {
    fn drop(&mut self) {
        self.close();
    }
}

/// Of a server with a certificate of `authority` for `subjects`.
pub(super) fn tls_config(authority: &Authority, name: &str, subjects: &str) -> rustls::ServerConfig {
    let certificate = authority.certificate(name, subjects);
    let chain: Vec<_> = CertificateDer::pem_file_iter(&certificate.chain)
        .expect("a certificate")
        .collect::<Result<_, _>>()
        .expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(&certificate.key).expect("a key");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate and its key")
}

struct Tls {
    tcp: tokio::net::TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            if let Ok((stream, address)) = self.tcp.accept().await
                && let Ok(stream) = self.acceptor.accept(stream).await
            {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}

async fn handle(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let path = uri.path().to_owned();
    let body = String::from_utf8_lossy(&body).into_owned();
    let bearer = headers
        .get("authorization")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let action = choose(&mut lock(&shared.faults), &format!("{method} {path}"));
    let note = || {
        lock(&shared.log).push(Asked {
            method: method.clone(),
            path: path.clone(),
            query: uri.query().unwrap_or_default().to_owned(),
            body: body.clone(),
            at: Instant::now(),
        });
    };
    if let Some(Action::Hang | Action::Late(_)) = action {
        note();
    }
    if let Some(Action::Late(by)) = action {
        tokio::spawn(async move {
            tokio::time::sleep(by).await;
            let (status, _) = answer(&shared, &method, &path, &headers, &body);
            lock(&shared.late).push(status);
        });
        return std::future::pending().await;
    }
    if let Some(Action::Hang) = action {
        return std::future::pending().await;
    }
    let (status, document) = match action {
        // An echo of what it was sent, as a proxy's debugging page has it.
        Some(Action::Status(status, _)) => (
            status,
            failure(status, &format!("told to fail, was sent {bearer}")),
        ),
        Some(Action::Echo) => (200, json!(bearer)),
        Some(Action::Nonsense) => (200, json!(["nonsense"])),
        Some(Action::Redirect(_)) => (307, failure(307, "elsewhere")),
        _ if bearer != format!("Bearer {}", *lock(&shared.token)) => {
            if let Some(path) = lock(&shared.rotates).take() {
                fs::write(path, NEXT_TOKEN).expect("writing a token");
            }
            (401, failure(401, "Unauthorized"))
        }
        _ => {
            let (status, document) = answer(&shared, &method, &path, &headers, &body);
            (status, page(document, uri.query().unwrap_or_default()))
        }
    };
    note();
    let mut response = Response::builder()
        .status(status)
        .header("Content-Type", "application/json");
    if let Some(Action::Status(_, Some(seconds))) = action {
        response = response.header("Retry-After", seconds);
    }
    if let Some(Action::Redirect(to)) = action {
        response = response.header("Location", format!("https://{to}{path}"));
    }
    let body = match action {
        Some(Action::Half) => Body::from(r#"{"kind": "Pod", "meta"#),
        Some(Action::Long(bytes)) => {
            let chunk = Bytes::from(vec![b' '; 1 << 16]);
            let chunks = std::iter::repeat_n(chunk.clone(), bytes / chunk.len()).map(Ok::<_, io::Error>);
            Body::from_stream(futures::stream::iter(chunks))
        }
        Some(Action::Reset) => {
            let half = [Ok(Bytes::from("{")), Err(io::Error::other("told to fail"))];
            Body::from_stream(futures::stream::iter(half))
        }
        _ => Body::from(document.to_string()),
    };
    response.body(body).expect("a response")
}

fn failure(code: u16, message: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "message": message})
}

/// The part of a list that a query with `limit` asks for. The token is the index of the next object.
fn page(mut list: Value, query: &str) -> Value {
    let number = |name: &str| {
        let value = query.split('&').find_map(|pair| pair.strip_prefix(name));
        value.and_then(|value| value.parse::<usize>().ok())
    };
    if let (Some(limit), Some(items)) = (number("limit="), list["items"].as_array().cloned()) {
        let first = number("continue=").unwrap_or_default();
        let last = items.len().min(first + limit);
        list["items"] = items[first..last].into();
        if last < items.len() {
            list["metadata"]["continue"] = last.to_string().into();
        }
    }
    list
}

fn answer(shared: &Shared, method: &Method, path: &str, headers: &HeaderMap, body: &str) -> (u16, Value) {
    let mut objects = lock(&shared.objects);
    let media_type = headers
        .get("content-type")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let document: Value = serde_json::from_str(body).unwrap_or_default();
    match (method, media_type) {
        (&Method::GET, _) => match objects.get(path) {
            Some(object) => (200, object.clone()),
            None => (404, failure(404, "not found")),
        },
        (&Method::PATCH, "application/merge-patch+json") => {
            let Some(object) = objects.get_mut(path) else {
                return (404, failure(404, "not found"));
            };
            // 422: `metadata.uid` is immutable. 409: another program wrote the object since.
            for (field, status) in [("uid", 422), ("resourceVersion", 409)] {
                let expected = &document["metadata"][field];
                if !expected.is_null() && *expected != object["metadata"][field] {
                    return (status, failure(status, &format!("the {field} is another one")));
                }
            }
            merge(object, &document);
            *object = shared.written(object.take());
            (200, object.clone())
        }
        (&Method::DELETE, _) => match objects.remove(path) {
            Some(object) => (200, object),
            None => (404, failure(404, "not found")),
        },
        (&Method::PATCH, "application/apply-patch+yaml") => {
            objects.insert(path.to_owned(), document.clone());
            (201, document)
        }
        (&Method::POST, "application/json") => {
            let name = document["metadata"]["name"].as_str().unwrap_or_default();
            let path = format!("{path}/{name}");
            match objects.contains_key(&path) {
                true => (409, failure(409, "it exists already")),
                false => {
                    objects.insert(path, document.clone());
                    (201, document)
                }
            }
        }
        _ => (415, failure(415, "what is this")),
    }
}

/// RFC 7396.
fn merge(object: &mut Value, patch: &Value) {
    match (object, patch) {
        (Value::Object(object), Value::Object(patch)) => {
            for (key, value) in patch {
                match value {
                    Value::Null => drop(object.remove(key)),
                    value => merge(object.entry(key.clone()).or_insert(Value::Null), value),
                }
            }
        }
        (object, Value::Object(patch)) => {
            *object = json!({});
            merge(object, &Value::Object(patch.clone()));
        }
        (object, patch) => *object = patch.clone(),
    }
}
