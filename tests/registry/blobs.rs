//! Downloads single blobs from a registry that fails in many ways.

use std::collections::HashMap;
use std::io::Read as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use proptest::prelude::*;
use spoke_precache::cancel::{Cancel, StopReason};
use spoke_precache::fetch::{BlobRequest, FetchError};
use spoke_precache::registry::Kind;
use spoke_precache::spool::{Spool, VerifiedBlob};

use crate::fake::{Fake, Seen, cut_body, serve};
use crate::{fetcher, insecure, noise, request, settings};

const KIND: &str = "application/octet-stream";

pub(crate) fn text(blob: &VerifiedBlob) -> Vec<u8> {
    let mut bytes = Vec::new();
    blob.open().unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// A registry with one blob, and a spool.
pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) bytes: Bytes,
    pub(crate) fake: Fake,
}

impl World {
    pub(crate) async fn new(length: usize) -> Self {
        let (bytes, fake) = (noise(length, 7), Fake::start().await);
        fake.put_blob("a", &bytes);
        Self {
            dir: tempfile::tempdir().unwrap(),
            bytes,
            fake,
        }
    }

    pub(crate) fn from(&self) -> Vec<String> {
        vec![format!("{}/a:1", self.fake.host())]
    }

    pub(crate) async fn fetch(&self) -> (Result<VerifiedBlob, FetchError>, std::sync::Arc<crate::Log>) {
        let (fetcher, log) = fetcher(settings(&insecure(&[&self.fake.host()])), self.dir.path());
        let request = request(&self.bytes, &self.from());
        (fetcher.fetch(request, &Cancel::default()).await, log)
    }

    pub(crate) fn starts(&self) -> Vec<Option<usize>> {
        self.fake.seen("/blobs/").iter().map(Seen::range_start).collect()
    }
}

fn cut_at_random(size: usize, cuts: Vec<usize>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::new(size).await;
        let (bytes, left, count) = (world.bytes.clone(), Mutex::new(cuts), AtomicUsize::new(0));
        world.fake.fault(move |seen| {
            count.fetch_add(1, Ordering::Relaxed);
            let cut = left.lock().unwrap().pop()?;
            Some(serve(seen, KIND, &bytes, cut))
        });
        let (result, log) = world.fetch().await;
        assert_eq!(text(&result.unwrap()), world.bytes);
        assert_eq!(log.received(), world.bytes.len() as u64, "no byte counts twice");
        let starts: Vec<usize> = world
            .starts()
            .into_iter()
            .map(Option::unwrap_or_default)
            .collect();
        assert!(
            starts.is_sorted(),
            "what was had is not asked for again: {starts:?}"
        );
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Wherever the connection breaks, the right bytes come together in the end, and each counts once.
    #[test]
    fn any_cuts_end_with_the_right_bytes(size in 1_usize..400_000, cuts in prop::collection::vec(0_usize..200_000, 0..4)) {
        cut_at_random(size, cuts);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_download_is_resumed_by_a_range() {
    let world = World::new(100_000).await;
    let (bytes, first) = (world.bytes.clone(), AtomicUsize::new(0));
    world
        .fake
        .fault(move |seen| match first.fetch_add(1, Ordering::Relaxed) {
            0 => Some(serve(seen, KIND, &bytes, 65_536)),
            _ => None,
        });
    let (result, log) = world.fetch().await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    let seen = world.fake.seen("/blobs/");
    assert_eq!(seen.len(), 2);
    let range = seen[1].header(header::RANGE).unwrap();
    assert!(
        range.ends_with("-99999") && seen[1].range_start().unwrap() > 0,
        "{range}"
    );
    assert_eq!(log.retries().len(), 1, "{:?}", log.retries());
}

/// First breaks off after `cut` bytes, then answers ranges by `answer`, which may decline.
async fn with_odd_ranges(
    answer: impl Fn(&Seen, &Bytes) -> Option<Response> + Send + Sync + 'static,
) -> (World, std::sync::Arc<crate::Log>) {
    let world = World::new(50_000).await;
    let (bytes, first) = (world.bytes.clone(), AtomicUsize::new(0));
    world
        .fake
        .fault(move |seen| match first.fetch_add(1, Ordering::Relaxed) {
            0 => Some(serve(seen, KIND, &bytes, 16_384)),
            _ => answer(seen, &bytes),
        });
    let (result, log) = world.fetch().await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert_eq!(log.received(), 50_000);
    (world, log)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_200_instead_of_a_206_is_skipped_up_to_the_offset() {
    let (world, _) = with_odd_ranges(|_, bytes| Some(Bytes::clone(bytes).into_response())).await;
    assert_eq!(world.starts().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_416_and_a_wrong_206_lead_to_a_request_without_range() {
    let (world, _) = with_odd_ranges(|seen, _| {
        seen.range_start()?;
        Some(StatusCode::RANGE_NOT_SATISFIABLE.into_response())
    })
    .await;
    assert_eq!(world.starts().last().unwrap(), &None);

    let (world, log) = with_odd_ranges(|seen, bytes| {
        seen.range_start()?;
        let headers = [(header::CONTENT_RANGE, "bytes 40000-49999/50000")];
        Some((StatusCode::PARTIAL_CONTENT, headers, bytes.slice(40_000..)).into_response())
    })
    .await;
    assert_eq!(world.starts().last().unwrap(), &None);
    assert!(
        log.retries()
            .concat()
            .contains("answers with `bytes 40000-49999/50000`"),
        "{:?}",
        log.retries()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_206_that_starts_early_is_skipped_up_to_the_offset() {
    let (world, _) = with_odd_ranges(|seen, bytes| {
        let start = seen.range_start()? - 100;
        let headers = [(header::CONTENT_RANGE, format!("bytes {start}-49999/50000"))];
        Some((StatusCode::PARTIAL_CONTENT, headers, bytes.slice(start..)).into_response())
    })
    .await;
    assert_eq!(world.starts().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_mirror_resumes_where_the_last_one_broke_off() {
    let (bytes, dir) = (noise(200_000, 3), tempfile::tempdir().unwrap());
    let (mirror, origin) = (Fake::start().await, Fake::start().await);
    mirror.put_blob("m/a", &bytes);
    origin.put_blob("a", &bytes);
    let (half, first) = (bytes.clone(), AtomicUsize::new(0));
    mirror.fault(move |seen| match first.fetch_add(1, Ordering::Relaxed) {
        0 => Some(serve(seen, KIND, &half, 131_072)),
        _ => Some(StatusCode::SERVICE_UNAVAILABLE.into_response()),
    });
    let conf = format!(
        "[[registry]]\nlocation = '{}'\ninsecure = true\n[[registry.mirror]]\nlocation = '{}/m'\ninsecure = true",
        origin.host(),
        mirror.host()
    );
    let (fetcher, _) = fetcher(settings(&conf), dir.path());
    let blob = fetcher
        .fetch(
            request(&bytes, &[format!("{}/a:1", origin.host())]),
            &Cancel::default(),
        )
        .await;
    assert_eq!(text(&blob.unwrap()), bytes);
    assert_eq!(mirror.seen("/blobs/").len(), 1);
    assert!(origin.seen("/blobs/")[0].range_start().unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_are_discarded_and_each_source_is_asked_twice() {
    let (bytes, dir) = (noise(30_000, 3), tempfile::tempdir().unwrap());
    let (mirror, origin) = (Fake::start().await, Fake::start().await);
    let digest = origin.put_blob("a", &bytes);
    mirror.put(&format!("/v2/a/blobs/{digest}"), KIND, noise(30_000, 4));
    let conf = format!(
        "[[registry]]\nlocation = '{}'\ninsecure = true\n[[registry.mirror]]\nlocation = '{}'\ninsecure = true",
        origin.host(),
        mirror.host()
    );
    let (fetcher, _) = fetcher(settings(&conf), dir.path());
    let wanted = request(&bytes, &[format!("{}/a:1", origin.host())]);
    let blob = fetcher.fetch(wanted.clone(), &Cancel::default()).await.unwrap();
    assert_eq!(text(&blob), bytes);
    blob.remove().unwrap();

    origin.put(&format!("/v2/a/blobs/{digest}"), KIND, noise(30_000, 5));
    let error = fetcher.fetch(wanted, &Cancel::default()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::DigestMismatch, "{error}");
    assert_eq!(
        (mirror.seen("/blobs/").len(), origin.seen("/blobs/").len()),
        (3, 3)
    );
    assert!(error.to_string().contains(&mirror.host()), "{error}");
}

/// A mirror that gives a wrong beginning and breaks off must not spoil what the next one gives, for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_beginning_is_detected() {
    let (bytes, dir) = (noise(60_000, 3), tempfile::tempdir().unwrap());
    let (mirror, origin) = (Fake::start().await, Fake::start().await);
    origin.put_blob("a", &bytes);
    let wrong = noise(60_000, 4);
    mirror.fault(move |seen| Some(serve(seen, KIND, &wrong, 32_768)));
    let conf = format!(
        "[[registry]]\nlocation = '{}'\ninsecure = true\n[[registry.mirror]]\nlocation = '{}'\ninsecure = true",
        origin.host(),
        mirror.host()
    );
    let (fetcher, _) = fetcher(settings(&conf), dir.path());
    let wanted = request(&bytes, &[format!("{}/a:1", origin.host())]);
    assert_eq!(
        text(&fetcher.fetch(wanted, &Cancel::default()).await.unwrap()),
        bytes
    );
}

/// Once they were wrong together, each has to give all of it; that must not end in taking turns for ever.
#[tokio::test(flavor = "multi_thread")]
async fn two_mirrors_that_were_wrong_together_cost_a_bounded_number_of_bytes() {
    let bytes = noise(200_000, 3);
    let with = async |origins_fault: fn(&Seen, &Bytes, usize) -> Option<Response>| {
        let dir = tempfile::tempdir().unwrap();
        let (mirror, origin) = (Fake::start().await, Fake::start().await);
        origin.put_blob("a", &bytes);
        let (wrong, first) = (noise(200_000, 4), AtomicUsize::new(0));
        // Wrong bytes once, and now and then some: never for long.
        mirror.fault(move |seen| match first.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => Some(serve(seen, KIND, &wrong, 100_000)),
            _ => Some(StatusCode::SERVICE_UNAVAILABLE.into_response()),
        });
        let (right, count) = (bytes.clone(), AtomicUsize::new(0));
        origin.fault(move |seen| origins_fault(seen, &right, count.fetch_add(1, Ordering::Relaxed)));
        let conf = format!(
            "[[registry]]\nlocation = '{}'\ninsecure = true\n[[registry.mirror]]\nlocation = '{}'\ninsecure = true",
            origin.host(),
            mirror.host()
        );
        let (fetcher, log) = fetcher(settings(&conf), dir.path());
        let wanted = request(&bytes, &[format!("{}/a:1", origin.host())]);
        let result = fetcher.fetch(wanted, &Cancel::default()).await;
        (result.map(|blob| text(&blob)), log.received())
    };
    // The one that breaks off and goes on has its turn until it has given all of it.
    let (result, received) = with(|seen, right, _| Some(serve(seen, KIND, right, 100_000))).await;
    assert_eq!(result.unwrap(), bytes);
    assert!(received <= 4 * 200_000, "{received}");
    // Neither ever comes further than half.
    let (result, received) = with(|seen, right, count| match count {
        0 => None,
        count if count % 2 == 1 => Some(serve(seen, KIND, right, 100_000)),
        _ => Some(StatusCode::SERVICE_UNAVAILABLE.into_response()),
    })
    .await;
    let error = result.unwrap_err();
    assert_eq!(error.kind(), Kind::DigestMismatch, "{error}");
    assert!(received <= 5 * 200_000, "{received}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_partial_of_an_earlier_run_is_detected() {
    let world = World::new(60_000).await;
    let digest = spoke_precache::oci::Digest::of(&world.bytes);
    drop(Spool::open(world.dir.path()).unwrap());
    std::fs::write(
        world.dir.path().join(format!("{digest}.partial")),
        noise(20_000, 1),
    )
    .unwrap();
    let (result, _) = world.fetch().await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert_eq!(world.starts(), [Some(20_000), None]);
}

/// A manifest that lies about a blob's size fails alone; those that tell the truth get the blob.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_size_does_not_break_the_blob_for_others() {
    let world = World::new(1000).await;
    let (fetcher, _) = fetcher(settings(&insecure(&[&world.fake.host()])), world.dir.path());
    let right = request(&world.bytes, &world.from());
    for size in [999, 1001] {
        let wrong = BlobRequest {
            size,
            ..right.clone()
        };
        let cancel = Cancel::default();
        let (wrong, right) = tokio::join!(
            fetcher.fetch(wrong, &cancel),
            fetcher.fetch(right.clone(), &cancel)
        );
        // The manifest's fault, for the registry has the digest.
        assert_eq!(wrong.unwrap_err().kind(), Kind::Malformed);
        assert_eq!(text(&right.unwrap()), world.bytes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_length_that_differs_from_the_manifest_is_reported() {
    let world = World::new(1000).await;
    let longer = noise(1001, 7);
    world.fake.fault(move |_| Some(longer.clone().into_response()));
    let (result, _) = world.fetch().await;
    let error = result.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("has 1001 bytes where the manifest states 1000"),
        "{error}"
    );
    assert_eq!(error.kind(), Kind::DigestMismatch);
}

/// Each byte is one that nobody had before, and yet nothing moves.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_sends_a_byte_at_a_time_is_given_up() {
    let world = World::new(100_000).await;
    let bytes = world.bytes.clone();
    world.fake.fault(move |seen| Some(serve(seen, KIND, &bytes, 1)));
    let (result, log) = world.fetch().await;
    let error = result.unwrap_err();
    assert_eq!(error.kind(), Kind::Network);
    assert!(
        error.to_string().starts_with("gave up after 3 seconds"),
        "{error}"
    );
    assert!(log.retries().len() < 20, "{} requests", log.retries().len());
}

/// Without Content-Length, bytes after the blob's end are not read; fewer are fetched again, as far as they go.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_unknown_length_is_read_up_to_the_size() {
    let world = World::new(100_000).await;
    let (bytes, first) = (world.bytes.clone(), AtomicUsize::new(0));
    world
        .fake
        .fault(move |seen| match first.fetch_add(1, Ordering::Relaxed) {
            0 => Some(cut_body(bytes.slice(..50_000), usize::MAX).into_response()),
            _ => {
                let tail = [bytes.slice(seen.range_start()?..), Bytes::from_static(b"garbage")].concat();
                let headers = [(header::CONTENT_RANGE, "bytes 50000-99999/100000")];
                Some(
                    (
                        StatusCode::PARTIAL_CONTENT,
                        headers,
                        cut_body(tail.into(), usize::MAX),
                    )
                        .into_response(),
                )
            }
        });
    let (result, log) = world.fetch().await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert!(
        log.retries()[0].contains("ended 50000 bytes early"),
        "{:?}",
        log.retries()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_in_the_body_or_before_it_is_ended() {
    let world = World::new(40_000).await;
    let (bytes, first) = (world.bytes.clone(), AtomicUsize::new(0));
    world
        .fake
        .fault(move |_| match first.fetch_add(1, Ordering::Relaxed) {
            0 => {
                use futures::StreamExt as _;
                let piece = Ok::<_, std::io::Error>(bytes.slice(..8192));
                let body = futures::stream::iter([piece]).chain(futures::stream::pending());
                Some(
                    Response::builder()
                        .header(header::CONTENT_LENGTH, 40_000)
                        .body(Body::from_stream(body))
                        .unwrap(),
                )
            }
            _ => None,
        });
    let began = Instant::now();
    let (result, log) = world.fetch().await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert!(began.elapsed() < Duration::from_secs(3));
    assert_eq!(world.starts(), [None, Some(8192)], "{:?}", log.retries());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_accepts_and_does_not_answer_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok(connection) = listener.accept().await {
            held.push(connection);
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let (fetcher, log) = fetcher(settings(&insecure(&[&host])), dir.path());
    let began = Instant::now();
    let bytes = noise(10, 1);
    let error = fetcher
        .fetch(request(&bytes, &[format!("{host}/a:1")]), &Cancel::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Network, "{error}");
    assert!(
        error.to_string().starts_with("gave up after 3 seconds"),
        "{error}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(40),
        "{:?}\n{:?}",
        began.elapsed(),
        log.retries()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_for_one_blob_share_one_download() {
    let world = World::new(300_000).await;
    let (fetcher, _) = fetcher(settings(&insecure(&[&world.fake.host()])), world.dir.path());
    let cancel = Cancel::default();
    let all = (0..20).map(|_| fetcher.fetch(request(&world.bytes, &world.from()), &cancel));
    for blob in futures::future::join_all(all).await {
        assert_eq!(blob.unwrap().size(), 300_000);
    }
    assert_eq!(world.starts().len(), 1);
    // And it is still there for who asks later, in this run and in the next.
    fetcher
        .fetch(request(&world.bytes, &world.from()), &cancel)
        .await
        .unwrap();
    drop(fetcher);
    world.fetch().await.0.unwrap();
    assert_eq!(world.starts().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_keeps_the_received_bytes_and_the_next_run_resumes() {
    let world = World::new(100_000).await;
    let (bytes, first) = (world.bytes.clone(), AtomicUsize::new(0));
    world
        .fake
        .fault(move |_| match first.fetch_add(1, Ordering::Relaxed) {
            0 => {
                use futures::StreamExt as _;
                let piece = Ok::<_, std::io::Error>(bytes.slice(..70_000));
                let body = futures::stream::iter([piece]).chain(futures::stream::pending());
                Some(Body::from_stream(body).into_response())
            }
            _ => None,
        });
    let mut settings = settings(&insecure(&[&world.fake.host()]));
    settings.idle_timeout = Duration::from_secs(60);
    let (fetcher, log) = fetcher(settings, world.dir.path());
    let cancel = Cancel::default();
    let stop = async {
        while log.received() < 70_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancel.stop(StopReason::Signal(15));
        Instant::now()
    };
    let (result, stopped) = tokio::join!(fetcher.fetch(request(&world.bytes, &world.from()), &cancel), stop);
    assert_eq!(result.unwrap_err().kind(), Kind::Stopped);
    assert!(
        stopped.elapsed() < Duration::from_millis(500),
        "{:?}",
        stopped.elapsed()
    );
    drop(fetcher);

    assert_eq!(text(&world.fetch().await.0.unwrap()), world.bytes);
    assert_eq!(world.starts(), [None, Some(70_000)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_has_its_own_error() {
    let world = World::new(1_000_000).await;
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
        .arg(world.dir.path())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        crate::notice::print("SKIPPED", "cannot mount a small tmpfs");
        return;
    }
    let (result, _) = world.fetch().await;
    let error = result.unwrap_err();
    let unmounted = std::process::Command::new("umount")
        .arg("-l")
        .arg(world.dir.path())
        .status();
    assert!(unmounted.unwrap().success());
    assert_eq!(error.kind(), Kind::NoSpace, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_throttles_is_asked_again_after_its_retry_after() {
    let world = World::new(1000).await;
    let counts = Mutex::new(HashMap::<String, usize>::new());
    world.fake.fault(move |seen| {
        let mut counts = counts.lock().unwrap();
        let count = counts.entry(seen.path.clone()).or_default();
        *count += 1;
        let body = r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}"#;
        (*count == 1)
            .then(|| (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")], body).into_response())
    });
    let began = Instant::now();
    let (result, log) = world.fetch().await;
    result.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert!(
        log.retries()[0].contains("429: TOOMANYREQUESTS: slow down"),
        "{:?}",
        log.retries()
    );
}
