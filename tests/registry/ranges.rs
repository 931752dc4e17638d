//! Resumes blobs by ranges while something changes in between: ETags, sizes, redirects, tokens, encodings.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use bytes::Bytes;
use spoke_precache::registry::Kind;

use crate::blobs::{World, text};
use crate::fake::{Fake, Seen, cut_body, serve};
use crate::noise;

const KIND: &str = "application/octet-stream";
const SIZE: usize = 50_000;
const CUT: usize = 16_384;

/// A world whose registry breaks off the first answer after [`CUT`] bytes and then does what `then` says, which may decline.
/// It gets the number of the request, from 1.
async fn broken_off(
    then: impl Fn(usize, &Seen, &Bytes) -> Option<Response> + Send + Sync + 'static,
) -> World {
    let world = World::new(SIZE).await;
    let (bytes, count) = (world.bytes.clone(), AtomicUsize::new(0));
    world.fake.fault(move |seen| {
        if !seen.path.contains("/blobs/") {
            return None;
        }
        match count.fetch_add(1, Ordering::SeqCst) {
            0 => Some(with_etag(serve(seen, KIND, &bytes, CUT), "\"one\"")),
            number => then(number, seen, &bytes),
        }
    });
    world
}

fn with_etag(mut response: Response, etag: &'static str) -> Response {
    let value = header::HeaderValue::from_static(etag);
    response.headers_mut().insert(header::ETAG, value);
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_ranges_is_skipped_up_to_the_offset() {
    let world = broken_off(|_, _, bytes| {
        let headers = [(header::ACCEPT_RANGES, "none")];
        Some((headers, bytes.clone()).into_response())
    })
    .await;
    let (result, log) = world.fetch().await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert_eq!(world.starts(), [None, Some(CUT)]);
    assert_eq!(log.received(), SIZE as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_are_requested_without_accept_ranges() {
    let world = broken_off(|_, _, _| None).await;
    let (result, _) = world.fetch().await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert_eq!(world.starts(), [None, Some(CUT)]);
}

/// One refusal is not the last word: after the next break there is more to lose.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_refused_one_range_is_asked_for_the_next() {
    let world = broken_off(|number, seen, bytes| match number {
        1 => Some(StatusCode::RANGE_NOT_SATISFIABLE.into_response()),
        2 => Some(serve(seen, KIND, bytes, 2 * CUT)),
        _ => None,
    })
    .await;
    let (result, _) = world.fetch().await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert_eq!(world.starts(), [None, Some(CUT), None, Some(2 * CUT)]);
}

/// The digest names the content; an ETag is the registry's affair, and differs between the hosts of one CDN.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_etag_is_ignored() {
    let world = broken_off(|_, seen, bytes| {
        assert_eq!(seen.header(header::IF_RANGE), None);
        Some(with_etag(serve(seen, KIND, bytes, usize::MAX), "\"two\""))
    })
    .await;
    let (result, _) = world.fetch().await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert_eq!(world.starts(), [None, Some(CUT)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_change_during_a_download_cost_the_blob_once_more() {
    let world = broken_off(|number, seen, _| {
        (number == 1).then(|| with_etag(serve(seen, KIND, &noise(SIZE, 99), usize::MAX), "\"two\""))
    })
    .await;
    let (result, log) = world.fetch().await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert_eq!(world.starts(), [None, Some(CUT), None]);
    assert_eq!(log.received(), 2 * SIZE as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_size_that_changes_during_a_download_is_reported() {
    for whole in [false, true] {
        let world = broken_off(move |_, seen, _| {
            let longer = noise(SIZE + 1, 7);
            Some(match whole {
                true => longer.into_response(),
                false => serve(seen, KIND, &longer, usize::MAX),
            })
        })
        .await;
        let error = world.fetch().await.0.unwrap_err();
        assert_eq!(error.kind(), Kind::DigestMismatch, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("has 50001 bytes where the manifest states 50000"),
            "{text}"
        );
        let partial = format!("{}.partial", spoke_precache::oci::Digest::of(&world.bytes));
        let kept = std::fs::metadata(world.dir.path().join(partial)).unwrap().len();
        assert_eq!(kept, CUT as u64, "what came is kept for a better registry");
    }
}

/// A proxy's page in the place of a blob, or a bit that flipped, is not the end of the run.
#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_content_once_is_an_accident_and_twice_is_not() {
    for wrong in [noise(SIZE, 98), Bytes::from_static(b"<html>Please log in")] {
        for times in [1, 2] {
            let world = World::new(SIZE).await;
            let (answer, count) = (wrong.clone(), AtomicUsize::new(0));
            world.fake.fault(move |_| {
                (count.fetch_add(1, Ordering::SeqCst) < times).then(|| answer.clone().into_response())
            });
            let (result, _) = world.fetch().await;
            // Once more to see whether the length is the manifest's fault.
            let asked = if wrong.len() != SIZE && times == 2 { 3 } else { 2 };
            assert_eq!(world.starts(), vec![None; asked]);
            match times {
                1 => assert_eq!(text(&result.unwrap()), world.bytes),
                _ => assert_eq!(result.unwrap_err().kind(), Kind::DigestMismatch),
            }
        }
    }
}

/// Each URL works once and for one request; the one after is refused as a CDN does it.
#[tokio::test(flavor = "multi_thread")]
async fn each_range_follows_the_redirect_anew_because_its_url_expires() {
    let (world, cdn) = (World::new(SIZE).await, Fake::start().await);
    let (host, handed_out) = (cdn.host(), AtomicUsize::new(0));
    world.fake.fault(move |seen| {
        let number = handed_out.fetch_add(1, Ordering::SeqCst);
        Some(Redirect::temporary(&format!("http://{host}{}?signature={number}", seen.path)).into_response())
    });
    let (bytes, used) = (world.bytes.clone(), AtomicUsize::new(0));
    cdn.fault(move |seen| {
        let number: usize = seen.query.strip_prefix("signature=")?.parse().ok()?;
        // One expired before it was used.
        if number != used.fetch_add(1, Ordering::SeqCst) || number == 2 {
            return Some((StatusCode::FORBIDDEN, "<Code>AccessDenied</Code>").into_response());
        }
        Some(serve(seen, KIND, &bytes, CUT))
    });
    let (result, log) = world.fetch().await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    let starts: Vec<_> = cdn.seen("").iter().map(Seen::range_start).collect();
    let at = |pieces| Some(pieces * CUT);
    assert_eq!(starts, [None, at(1), at(2), at(2), at(3)]);
    assert_eq!(world.starts(), starts, "asked anew at the registry each time");
    assert_eq!(log.received(), SIZE as u64);
}

/// Such as a registry that was restarted with another key, in the middle of a large blob.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_expires_between_ranges_is_renewed() {
    let world = World::new(SIZE).await;
    let (host, bytes, tokens, cut) = (
        world.fake.host(),
        world.bytes.clone(),
        AtomicUsize::new(0),
        AtomicBool::new(false),
    );
    world.fake.fault(move |seen| {
        if seen.path == "/token" {
            let number = tokens.fetch_add(1, Ordering::SeqCst) + 1;
            return Some(format!(r#"{{"token": "t{number}"}}"#).into_response());
        }
        let good = format!("Bearer t{}", tokens.load(Ordering::SeqCst));
        let is_cut = cut.load(Ordering::SeqCst);
        if seen.header(header::AUTHORIZATION) != Some(good) || is_cut && tokens.load(Ordering::SeqCst) == 1 {
            let challenge = format!("Bearer realm=\"http://{host}/token\"");
            let headers = [(header::WWW_AUTHENTICATE, challenge)];
            return Some((StatusCode::UNAUTHORIZED, headers).into_response());
        }
        (!cut.swap(true, Ordering::SeqCst)).then(|| serve(seen, KIND, &bytes, CUT))
    });
    let (result, log) = world.fetch().await;
    assert_eq!(text(&result.unwrap()), world.bytes);
    assert_eq!(world.fake.seen("/token").len(), 2);
    assert_eq!(world.starts(), [None, None, Some(CUT), Some(CUT)]);
    assert_eq!(log.retries().len(), 1, "only the cut: {:?}", log.retries());
}

/// The bytes of a layer are a gzip, so nginx and GCS may say so in the wrong place.
#[tokio::test(flavor = "multi_thread")]
async fn a_content_encoding_header_alone_changes_nothing() {
    let world = World::new(SIZE).await;
    let bytes = world.bytes.clone();
    world.fake.fault(move |seen| {
        assert_eq!(seen.header(header::ACCEPT_ENCODING).as_deref(), Some("identity"));
        let mut response = serve(seen, KIND, &bytes, usize::MAX);
        let gzip = header::HeaderValue::from_static("gzip");
        response.headers_mut().insert(header::CONTENT_ENCODING, gzip);
        Some(response)
    });
    assert_eq!(text(&world.fetch().await.0.unwrap()), world.bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encoding_that_was_not_requested_is_never_stored() {
    for chunked in [false, true] {
        let world = World::new(SIZE).await;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&world.bytes).unwrap();
        let encoded = Bytes::from(encoder.finish().unwrap());
        world.fake.fault(move |_| {
            let headers = [(header::CONTENT_ENCODING, "gzip")];
            Some(match chunked {
                true => (headers, cut_body(encoded.clone(), usize::MAX)).into_response(),
                false => (headers, encoded.clone()).into_response(),
            })
        });
        let error = world.fetch().await.0.unwrap_err();
        assert_eq!(error.kind(), Kind::DigestMismatch, "{error}");
    }
}
