//! Downloads over connections that end or hang in every way of TCP and TLS.
//!
//! A [`Script`] answers each request of each connection with bytes of the test, because no HTTP server sends wrong lengths or
//! resets on purpose.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use spoke_precache::cancel::Cancel;
use spoke_precache::fetch::FetchError;
use spoke_precache::registry::{Kind, RegistrySettings};

use crate::fake::Fake;
use crate::{Log, fetcher, insecure, noise, request, settings};

const SIZE: usize = 60_000;

/// How a connection ends after its answer.
#[derive(Clone, Copy, Debug)]
enum End {
    Fin,
    Rst,
    /// Stays open and silent.
    Hang,
}

/// The bytes that answer a request, and the end.
type Answer = (Vec<u8>, End);

/// Answers one request on each connection.
struct Script {
    host: String,
    /// `Range` of each request.
    ranges: Arc<Mutex<Vec<Option<String>>>>,
}

impl Script {
    fn start(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let (seen, mut answers) = (ranges.clone(), VecDeque::from(answers));
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                // The ClientHello of TLS is not a request.
                let Some(head) = head_of(&mut connection) else {
                    continue;
                };
                let range = head.lines().find_map(|line| line.strip_prefix("range: "));
                seen.lock().unwrap().push(range.map(str::to_owned));
                let Some((bytes, end)) = answers.pop_front() else {
                    continue;
                };
                // The client may close the connection first.
                let _ = connection.write_all(&bytes);
                match end {
                    End::Fin => {}
                    End::Rst => {
                        // A reset overtakes what the client has not read.
                        std::thread::sleep(Duration::from_millis(50));
                        reset(&connection);
                    }
                    End::Hang => held.push(connection),
                }
            }
        });
        Self { host, ranges }
    }

    fn ranges(&self) -> Vec<Option<String>> {
        self.ranges.lock().unwrap().clone()
    }

    async fn fetch(&self, bytes: &Bytes) -> (Result<(), FetchError>, Arc<Log>) {
        fetch(settings(&insecure(&[&self.host])), &self.host, bytes).await
    }
}

async fn fetch(settings: RegistrySettings, host: &str, bytes: &Bytes) -> (Result<(), FetchError>, Arc<Log>) {
    let dir = tempfile::tempdir().unwrap();
    let (fetcher, log) = fetcher(settings, dir.path());
    let wanted = request(bytes, &[format!("{host}/a:1")]);
    let result = fetcher.fetch(wanted, &Cancel::default()).await;
    (result.map(|_| ()), log)
}

/// The head of an HTTP request, in lower case.
fn head_of(connection: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        connection.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
        if head[0] == 0x16 {
            return None;
        }
    }
    Some(String::from_utf8_lossy(&head).to_lowercase())
}

/// Makes closing send RST instead of FIN.
fn reset(connection: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(connection, Some(Duration::ZERO)).unwrap();
}

fn whole(bytes: &Bytes, length: usize) -> Vec<u8> {
    answer("200 OK", length, "", bytes)
}

fn rest(bytes: &Bytes, from: usize) -> Vec<u8> {
    let (length, last) = (bytes.len() - from, bytes.len() - 1);
    let range = format!("Content-Range: bytes {from}-{last}/{}\r\n", bytes.len());
    answer("206 Partial Content", length, &range, &bytes[from..])
}

fn answer(status: &str, length: usize, header: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{header}\r\n");
    [head.as_bytes(), body].concat()
}

fn asked(from: usize) -> Option<String> {
    Some(format!("bytes={from}-{}", SIZE - 1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_reset_or_closed_early_is_resumed() {
    for end in [End::Rst, End::Fin, End::Hang] {
        let bytes = noise(SIZE, 1);
        let early = whole(&bytes.slice(..20_000), SIZE);
        let script = Script::start(vec![(early, end), (rest(&bytes, 20_000), End::Fin)]);
        let (result, log) = script.fetch(&bytes).await;
        result.unwrap();
        assert_eq!(script.ranges(), [None, asked(20_000)], "{end:?}");
        assert_eq!(log.received(), SIZE as u64, "{end:?}");
    }
}

/// In the status line, in the headers, or before anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_head_is_requested_again() {
    for head in ["", "HTTP/1.", "HTTP/1.1 200 OK\r\nContent-Le"] {
        for end in [End::Rst, End::Fin] {
            let bytes = noise(SIZE, 1);
            let broken = (head.as_bytes().to_vec(), end);
            let script = Script::start(vec![broken, (whole(&bytes, SIZE), End::Fin)]);
            let (result, _) = script.fetch(&bytes).await;
            result.unwrap_or_else(|error| panic!("`{head}`, {end:?}: {error}"));
        }
    }
}

/// The blob is there and right; what comes behind it is the next answer's trouble, and must not become that.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_beyond_content_length_are_ignored() {
    let bytes = noise(SIZE, 1);
    let mut answer = whole(&bytes, SIZE);
    answer.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad");
    let script = Script::start(vec![(answer, End::Hang)]);
    let (result, log) = script.fetch(&bytes).await;
    result.unwrap();
    assert_eq!(log.received(), SIZE as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_content_length_is_reported_or_retried() {
    let bytes = noise(SIZE, 1);
    // It says more than there is and than the manifest says, each time.
    let longer = || (whole(&bytes, SIZE + 7), End::Fin);
    let (result, _) = Script::start(vec![longer(), longer()]).fetch(&bytes).await;
    let error = result.unwrap_err();
    assert_eq!(error.kind(), Kind::DigestMismatch);
    assert!(
        error
            .to_string()
            .contains("has 60007 bytes where the manifest states 60000"),
        "{error}"
    );
    // And a range that says less than it sends: the end is missing, and is asked for.
    let short = answer(
        "206 Partial Content",
        10_000,
        "Content-Range: bytes 20000-59999/60000\r\n",
        &bytes[20_000..],
    );
    let script = Script::start(vec![
        (whole(&bytes.slice(..20_000), SIZE), End::Fin),
        (short, End::Fin),
        (whole(&bytes, SIZE), End::Fin),
    ]);
    script.fetch(&bytes).await.0.unwrap();
    assert_eq!(script.ranges(), [None, asked(20_000), None]);
}

/// The server accepts and reads, but never answers the ClientHello.
#[tokio::test(flavor = "multi_thread")]
async fn a_tls_handshake_that_never_ends_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let (hellos, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let (mut connection, hellos) = (connection.unwrap(), hellos.clone());
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                // Returns when the client closes the connection.
                let _ = connection.read_to_end(&mut bytes);
                let _ = hellos.send(bytes);
            });
        }
    });
    // Not insecure, so plain HTTP is not tried.
    let bytes = noise(SIZE, 1);
    let fetched = fetch(settings(""), &host, &bytes);
    let fetched = tokio::time::timeout(Duration::from_secs(120), fetched).await;
    let (result, log) = fetched.expect("the handshake has a timeout");
    let error = result.unwrap_err();
    assert_eq!(error.kind(), Kind::Network, "{error}");
    assert!(
        error.to_string().contains("timed out"),
        "{error}: {:?}",
        log.retries()
    );
    let hello = received.recv().unwrap();
    assert!(
        hello.starts_with(&[22, 3, 1]),
        "a handshake record of TLS: {hello:?}"
    );
}

/// As when it is restarted, or when its port is not open yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_down_for_a_while_is_waited_for() {
    let bytes = noise(SIZE, 1);
    let address: SocketAddr = {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        taken.local_addr().unwrap()
    };
    let host = address.to_string();
    let (fake, back) = (Fake::start().await, bytes.clone());
    fake.put_blob("a", &back);
    let upstream = fake.host();
    let comes = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        // In front of the registry, under the address that refused so far.
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        while let Ok((mut near, _)) = listener.accept().await {
            let mut far = tokio::net::TcpStream::connect(&upstream).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
    let began = Instant::now();
    let (result, log) = fetch(settings(&insecure(&[&host])), &host, &bytes).await;
    result.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(1400));
    assert!(
        log.retries().iter().all(|why| why.contains("refused")),
        "{:?}",
        log.retries()
    );
    comes.abort();
}
