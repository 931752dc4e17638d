//! Downloads one large blob in ranges by several parallel connections.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use spoke_precache::cancel::{Cancel, StopReason};
use spoke_precache::fetch::{BlobRequest, FetchError};
use spoke_precache::registry::{Kind, RegistrySettings};
use spoke_precache::spool::{Spool, VerifiedBlob};

use crate::blobs::{World, text};
use crate::fake::{Seen, serve, serve_slowly};
use crate::{Log, fetcher, insecure, noise, request, settings};

const KIND: &str = "application/octet-stream";
const MIB: usize = 1 << 20;
const SIZE: usize = 24 * MIB;

/// The size of blobs in repositories `other-<seed>`.
const OTHER: usize = 4 * MIB;

/// Each connection sends 3 MiB a second: one needs eight seconds.
const PAUSE: Duration = Duration::from_millis(20);

/// A registry with slow connections. `instead` may replace an answer; it gets the number of the request, from 1.
async fn slow(instead: impl Fn(usize, &Seen, &Bytes) -> Option<Response> + Send + Sync + 'static) -> World {
    let world = World::new(SIZE).await;
    let (bytes, count) = (world.bytes.clone(), AtomicUsize::new(0));
    world.fake.fault(move |seen| {
        if let Some(seed) = seen
            .path
            .strip_prefix("/v2/other-")
            .and_then(|rest| rest.split('/').next())
        {
            let other = noise(OTHER, seed.parse().unwrap());
            return Some(serve_slowly(seen, KIND, &other, PAUSE));
        }
        let number = 1 + count.fetch_add(1, Ordering::SeqCst);
        Some(instead(number, seen, &bytes).unwrap_or_else(|| serve_slowly(seen, KIND, &bytes, PAUSE)))
    });
    world
}

/// Long timeouts, because a busy machine makes pauses that the registry does not cause.
fn patient(world: &World) -> RegistrySettings {
    RegistrySettings {
        idle_timeout: Duration::from_secs(20),
        give_up_after: Some(Duration::from_secs(20)),
        ..settings(&insecure(&[&world.fake.host()]))
    }
}

async fn fetch(world: &World) -> (Result<VerifiedBlob, FetchError>, Arc<Log>) {
    let (fetcher, log) = fetcher(patient(world), world.dir.path());
    let request = request(&world.bytes, &world.from());
    (fetcher.fetch(request, &Cancel::default()).await, log)
}

/// The requested ranges, by first byte.
fn ranges(world: &World) -> Vec<Range<usize>> {
    let seen = world.fake.seen("/blobs/");
    let mut ranges: Vec<_> = seen.iter().map(|seen| seen.range().unwrap_or(0..SIZE)).collect();
    ranges.sort_by_key(|range| range.start);
    ranges
}

fn cover(ranges: &[Range<usize>]) -> bool {
    let ends = std::iter::once(0).chain(ranges.iter().map(|range| range.end));
    ends.zip(ranges).all(|(end, range)| end == range.start)
        && ranges.last().is_some_and(|last| last.end == SIZE)
}

fn names(world: &World) -> Vec<String> {
    let names = std::fs::read_dir(world.dir.path()).unwrap();
    let names = names.map(|item| item.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name != "lock" && !name.ends_with(".journal"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_slots_download_ranges_and_every_byte_is_requested_once() {
    let world = slow(|_, _, _| None).await;
    let (result, log) = fetch(&world).await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    let ranges = ranges(&world);
    assert!(ranges.len() > 4 && cover(&ranges), "{ranges:?}");
    assert_eq!(log.received(), SIZE as u64);
    assert_eq!(names(&world).len(), 1, "{:?}", names(&world));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_blob_is_requested_as_a_whole() {
    let world = World::new(3 * MIB).await;
    let (bytes, pause) = (world.bytes.clone(), PAUSE);
    world
        .fake
        .fault(move |seen| Some(serve_slowly(seen, KIND, &bytes, pause)));
    let (result, _) = fetch(&world).await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert_eq!(world.starts(), [None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_ranges_the_first_answer_has_the_whole_blob() {
    let world = slow(|_, _, bytes| Some(bytes.clone().into_response())).await;
    let (result, log) = fetch(&world).await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert_eq!((world.starts().len(), log.received()), (1, SIZE as u64));
}

/// A registry that refuses parallel connections gets fewer, and the download does not fail.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_that_fail_are_downloaded_by_the_first_connection() {
    for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::OK] {
        let under_way = Arc::new(AtomicUsize::new(0));
        let world = slow(move |_, seen, bytes| {
            let range = seen.range()?;
            let (start, end) = (range.start, range.end);
            let follows = under_way.compare_exchange(start, end, Ordering::SeqCst, Ordering::SeqCst);
            match status {
                _ if follows.is_ok() => None,
                StatusCode::OK => Some(bytes.clone().into_response()),
                status => Some(status.into_response()),
            }
        })
        .await;
        let (result, log) = fetch(&world).await;
        assert_eq!(text(&result.unwrap()), world.bytes, "{status}");
        assert_eq!(log.received(), SIZE as u64);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_breaks_off_is_resumed_where_it_ended() {
    let world =
        slow(|number, seen, bytes| (number % 3 == 0).then(|| serve(seen, KIND, bytes, MIB / 2))).await;
    let (result, log) = fetch(&world).await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert_eq!(log.received(), SIZE as u64, "nothing twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_of_a_stopped_run_are_not_requested_again() {
    let world = slow(|_, _, _| None).await;
    let mut received = 0;
    for _ in 0..2 {
        let (fetcher, log) = fetcher(patient(&world), world.dir.path());
        let cancel = Cancel::default();
        let fetch = fetcher.fetch(request(&world.bytes, &world.from()), &cancel);
        let stop = async {
            // By then there are parallel ranges.
            let begun = world.fake.seen("/blobs/").len();
            while world.fake.seen("/blobs/").len() < begun + 4 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
            cancel.stop(StopReason::Deadline);
        };
        let (result, ()) = tokio::join!(fetch, stop);
        assert!(result.is_err());
        received += log.received();
        let left = names(&world);
        assert!(left.iter().any(|name| name.contains(".from-")), "{left:?}");
        drop(fetcher);
        // The writing threads keep it locked for a moment.
        while Spool::open(world.dir.path()).is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert!(received < SIZE as u64);
    let (result, log) = fetch(&world).await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    received += log.received();
    assert_eq!(received, SIZE as u64);
    assert_eq!(names(&world).len(), 1, "{:?}", names(&world));
}

/// After that each source has to send all of it, so that the source of a wrong digest is known.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_ranges_cost_the_blob_once_more_and_then_it_is_downloaded_whole() {
    let world =
        slow(|number, seen, _| (number == 3).then(|| serve(seen, KIND, &noise(SIZE, 98), usize::MAX))).await;
    let (result, log) = fetch(&world).await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert!(world.starts().contains(&None), "{:?}", world.starts());
    assert_eq!(log.received(), 2 * SIZE as u64);

    let world = slow(|_, seen, _| Some(serve(seen, KIND, &noise(SIZE, 98), usize::MAX))).await;
    let (result, _) = fetch(&world).await;
    assert_eq!(result.unwrap_err().kind(), Kind::DigestMismatch);
    assert!(world.starts().iter().skip(1).any(Option::is_none));
}

/// It releases them at the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_blob_gets_its_reserved_connections_although_others_wait() {
    let world = slow(|_, _, _| None).await;
    let (fetcher, log) = fetcher(patient(&world), world.dir.path());
    let large = BlobRequest {
        connections: 3,
        ..request(&world.bytes, &world.from())
    };
    let cancel = Cancel::default();
    let other = async |seed: u64| {
        let from = format!("{}/other-{seed}:1", world.fake.host());
        let wait = Duration::from_millis(if seed < 5 { 0 } else { 600 });
        tokio::time::sleep(wait).await;
        fetcher
            .fetch(request(&noise(OTHER, seed), &[from]), &cancel)
            .await
    };
    let large = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        fetcher.fetch(large, &cancel).await
    };
    let (large, others) = tokio::join!(large, futures::future::join_all((1..=10).map(other)));
    assert_eq!(text(&large.unwrap()), world.bytes);
    assert!(others.iter().all(Result::is_ok));
    assert_eq!(log.received(), (SIZE + 10 * OTHER) as u64);
    let seen = world.fake.seen("/blobs/");
    let is_large: Vec<bool> = seen.iter().map(|seen| seen.path.contains("/a/")).collect();
    let before = is_large.iter().rposition(|is_large| !is_large).unwrap_or(0);
    let large = is_large[..before].iter().filter(|is_large| **is_large).count();
    assert!(
        large >= 4,
        "{is_large:?}: its reserved slots download it, not only those that are idle at the end"
    );
}
