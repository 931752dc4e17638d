//! Downloads by HTTP/2: connections for blobs, and streams and connections that end.
//!
//! The server is the crate `h2` over TLS. It takes a [`Step`] for each request from a list, and answers correctly after the end
//! of the list.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{Request, Response};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use spoke_precache::cancel::Cancel;
use spoke_precache::oci::{Digest, Platform};
use spoke_precache::registry::RegistrySettings;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, mpsc};
use tokio_rustls::TlsAcceptor;

use crate::tls::Certificates;
use crate::{Log, fetcher, noise, reference, registries, request, settings};

const SIZE: usize = 60_000;
const CUT: usize = 20_000;

/// So many blobs are fetched at a time.
const PLACES: usize = 4;

/// So long what was sent needs to arrive, before a reset that would overtake it.
const ARRIVAL: Duration = Duration::from_millis(50);

/// What is done to a request, and to its connection.
#[derive(Clone, Copy, Debug)]
enum Step {
    Serve,
    /// The same, but the end comes only when [`PLACES`] requests are this far.
    Meet,
    /// RST_STREAM after [`CUT`] bytes.
    Reset(Reason),
    /// GOAWAY with this stream as the last, which is served to its end.
    GoAway,
    /// GOAWAY after [`CUT`] bytes, and nothing more of any stream.
    Abort,
    /// The connection is closed after [`CUT`] bytes, without a word.
    Close,
    /// [`CUT`] bytes, and then nobody reads the connection any more; the kernel still acknowledges.
    Hang,
}

/// What the rest of a connection does.
enum Rest {
    Abort,
    Close,
    Hang,
}

#[derive(Clone)]
struct Shelf {
    bytes: Arc<Vec<Bytes>>,
    steps: Arc<Mutex<VecDeque<Step>>>,
    /// Where each request began.
    starts: Arc<Mutex<Vec<usize>>>,
    connections: Arc<AtomicUsize>,
    met: Arc<Barrier>,
}

struct Server {
    host: String,
    shelf: Shelf,
    certificates: Certificates,
}

impl Server {
    async fn start(blobs: usize, steps: &[Step]) -> Self {
        let certificates = Certificates::new();
        certificates.self_signed("own", "-addext subjectAltName=IP:127.0.0.1");
        let chain = CertificateDer::pem_file_iter(certificates.path("own.crt")).unwrap();
        let key = PrivateKeyDer::from_pem_file(certificates.path("own.key")).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain.collect::<Result<_, _>>().unwrap(), key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let shelf = Shelf {
            bytes: Arc::new((0..blobs as u64).map(|seed| noise(SIZE, seed)).collect()),
            steps: Arc::new(Mutex::new(steps.iter().copied().collect())),
            starts: Arc::default(),
            connections: Arc::default(),
            met: Arc::new(Barrier::new(PLACES)),
        };
        let served = shelf.clone();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::spawn(connection(acceptor.clone(), tcp, served.clone()));
            }
        });
        Self {
            host,
            shelf,
            certificates,
        }
    }

    fn settings(&self) -> RegistrySettings {
        RegistrySettings {
            ca_certificates: vec![self.certificates.pem("own.crt")],
            ..settings("")
        }
    }

    /// Fetches all blobs at once, and says what was told of it.
    async fn fetch(&self) -> Arc<Log> {
        let dir = tempfile::tempdir().unwrap();
        let (fetcher, log) = fetcher(self.settings(), dir.path());
        let (cancel, from) = (Cancel::default(), [format!("{}/a:1", self.host)]);
        let blobs = self.shelf.bytes.iter();
        let all = blobs.map(|blob| fetcher.fetch(request(blob, &from), &cancel));
        for (blob, bytes) in futures::future::join_all(all)
            .await
            .iter()
            .zip(&*self.shelf.bytes)
        {
            let blob = blob.as_ref().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(crate::blobs::text(blob), *bytes);
        }
        log
    }

    fn starts(&self) -> Vec<usize> {
        self.shelf.starts.lock().unwrap().clone()
    }

    fn connections(&self) -> usize {
        self.shelf.connections.load(Ordering::SeqCst)
    }
}

/// Nobody waits for it: a client that goes away is what the tests are about.
async fn connection(acceptor: TlsAcceptor, tcp: TcpStream, shelf: Shelf) -> Option<()> {
    let tls = acceptor.accept(tcp).await.ok()?;
    shelf.connections.fetch_add(1, Ordering::SeqCst);
    let mut connection = h2::server::handshake(tls).await.ok()?;
    let (tell, mut told) = mpsc::channel(16);
    loop {
        tokio::select! {
            biased;
            rest = told.recv() => match rest? {
                Rest::Abort => connection.abrupt_shutdown(Reason::INTERNAL_ERROR),
                Rest::Close => return None,
                Rest::Hang => std::future::pending().await,
            },
            accepted = connection.accept() => {
                let (request, respond) = accepted?.ok()?;
                let step = shelf.steps.lock().unwrap().pop_front().unwrap_or(Step::Serve);
                if let Step::GoAway = step {
                    connection.graceful_shutdown();
                }
                tokio::spawn(answer(shelf.clone(), request, respond, step, tell.clone()));
            }
        }
    }
}

async fn answer(
    shelf: Shelf,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    step: Step,
    tell: mpsc::Sender<Rest>,
) -> Option<()> {
    let path = request.uri().path();
    let digest = |bytes: &&Bytes| path.ends_with(&Digest::of(bytes).to_string());
    let bytes = shelf.bytes.iter().find(digest)?;
    let range = request.headers().get("range").and_then(|it| it.to_str().ok());
    let start = range.and_then(|it| it.strip_prefix("bytes=")?.split('-').next()?.parse().ok());
    shelf.starts.lock().unwrap().push(start.unwrap_or(0));
    let response = match start {
        None => Response::builder().status(200),
        Some(start) => Response::builder()
            .status(206)
            .header("content-range", format!("bytes {start}-{}/{SIZE}", SIZE - 1)),
    };
    let rest = bytes.slice(start.unwrap_or(0)..);
    let response = response.header("content-length", rest.len()).body(()).unwrap();
    let mut body = respond.send_response(response, false).ok()?;
    if let Step::Serve | Step::GoAway | Step::Meet = step {
        // In two pieces, so that whatever is to overtake it can.
        body.send_data(rest.slice(..rest.len() / 2), false).ok()?;
        match step {
            Step::Meet => {
                shelf.met.wait().await;
            }
            _ => tokio::time::sleep(ARRIVAL / 2).await,
        }
        return body.send_data(rest.slice(rest.len() / 2..), true).ok();
    }
    body.send_data(rest.slice(..CUT.min(rest.len() - 1)), false)
        .ok()?;
    tokio::time::sleep(ARRIVAL).await;
    match step {
        Step::Reset(reason) => body.send_reset(reason),
        Step::Abort => tell.send(Rest::Abort).await.ok()?,
        Step::Close => tell.send(Rest::Close).await.ok()?,
        Step::Hang => {
            tell.send(Rest::Hang).await.ok()?;
            std::future::pending::<()>().await;
        }
        Step::Serve | Step::GoAway | Step::Meet => {}
    }
    Some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_stream_is_resumed_over_the_same_connection() {
    for reason in [
        Reason::INTERNAL_ERROR,
        Reason::REFUSED_STREAM,
        Reason::CANCEL,
        Reason::NO_ERROR,
        Reason::ENHANCE_YOUR_CALM,
    ] {
        let server = Server::start(1, &[Step::Reset(reason)]).await;
        let log = server.fetch().await;
        assert_eq!(server.starts(), [0, CUT], "{reason}");
        assert_eq!(log.received(), SIZE as u64, "{reason}");
        assert_eq!(server.connections(), 1, "{reason}");
    }
}

/// A long link that loses packets is not filled by one connection.
#[tokio::test(flavor = "multi_thread")]
async fn each_blob_has_its_own_connection_and_passes_it_to_the_next() {
    let server = Server::start(3 * PLACES, &[Step::Meet; 3 * PLACES]).await;
    let log = server.fetch().await;
    assert_eq!(log.received(), 3 * PLACES as u64 * SIZE as u64);
    assert_eq!(server.connections(), PLACES);
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_and_configs_share_a_connection() {
    let server = Server::start(PLACES, &[Step::Meet; PLACES]).await;
    let (registries, _) = registries(server.settings());
    let manifests = server.shelf.bytes.iter().map(|bytes| {
        let name = format!("{}/a@{}", server.host, Digest::of(bytes));
        let (registries, cancel) = (&registries, Cancel::default());
        async move {
            registries
                .resolve(&reference(&name), &Platform::of_this_node(), &|_| None, &cancel)
                .await
        }
    });
    for resolved in futures::future::join_all(manifests).await {
        resolved.expect_err("noise is no manifest");
    }
    assert_eq!(server.starts().len(), PLACES);
    assert_eq!(server.connections(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graceful_goaway_lets_running_streams_end() {
    let server = Server::start(4, &[Step::Serve, Step::GoAway]).await;
    let log = server.fetch().await;
    assert_eq!(log.received(), 4 * SIZE as u64);
    assert!(
        server.starts().iter().all(|start| *start == 0),
        "{:?}",
        server.starts()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_abrupt_end_of_the_connection_every_blob_is_resumed() {
    for step in [Step::Abort, Step::Close] {
        let server = Server::start(4, &[step, Step::Serve, step, Step::Reset(Reason::CANCEL), step]).await;
        let log = server.fetch().await;
        assert_eq!(log.received(), 4 * SIZE as u64, "{step:?}: no byte counts twice");
        assert!(server.connections() > 1, "{step:?}");
    }
}

/// The kernel of whatever is between us still acknowledges, so TCP does not notice. Without a ping every request would go
/// over that connection for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_server_hangs_is_closed() {
    let server = Server::start(1, &[Step::Hang]).await;
    let log = server.fetch().await;
    assert_eq!(server.connections(), 2, "{:?}", log.retries());
    assert_eq!(log.received(), SIZE as u64);
    assert_eq!(server.starts().last(), Some(&CUT));
}
