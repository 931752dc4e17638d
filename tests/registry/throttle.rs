//! Downloads from registries that throttle with `Retry-After` or answer with errors.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use spoke_precache::cancel::Cancel;

use crate::fake::Fake;
use crate::{fetcher, insecure, noise, request, settings};

/// A date as HTTP has it.
fn http_date(at: SystemTime) -> String {
    let at = jiff::Timestamp::try_from(at).unwrap();
    at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// Four workers, twelve blobs: idle workers must not ask either.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_throttles_is_left_alone_by_all_workers() {
    const THROTTLE: Duration = Duration::from_secs(2);
    /// A request may be under way when the answer is sent.
    const UNDER_WAY: Duration = Duration::from_millis(200);
    for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
        let (fake, dir) = (Fake::start().await, tempfile::tempdir().unwrap());
        let blobs: Vec<_> = (0..12).map(|seed| noise(20_000, seed)).collect();
        for blob in &blobs {
            fake.put_blob("a", blob);
        }
        let (asked, refused) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None)));
        let (times, when, count) = (asked.clone(), refused.clone(), AtomicUsize::new(0));
        fake.fault(move |_| {
            times.lock().unwrap().push(Instant::now());
            if count.fetch_add(1, Ordering::SeqCst) != 5 {
                return None;
            }
            *when.lock().unwrap() = Some(Instant::now());
            Some((status, [(header::RETRY_AFTER, "2")]).into_response())
        });
        let (fetcher, _) = fetcher(settings(&insecure(&[&fake.host()])), dir.path());
        let (cancel, from) = (Cancel::default(), [format!("{}/a:1", fake.host())]);
        let all = blobs
            .iter()
            .map(|blob| fetcher.fetch(request(blob, &from), &cancel));
        for blob in futures::future::join_all(all).await {
            blob.unwrap();
        }
        let refused = refused.lock().unwrap().unwrap();
        let asked = asked.lock().unwrap();
        let within = asked
            .iter()
            .map(|at| at.saturating_duration_since(refused))
            .filter(|after| (UNDER_WAY..THROTTLE).contains(after));
        assert_eq!(within.collect::<Vec<_>>(), [], "{status}");
        let after = asked.iter().filter(|at| **at >= refused + THROTTLE).count();
        assert!(after >= 1, "{status}: {} requests", asked.len());
    }
}

/// Every answer is an error of a gateway, of every kind; then all requests succeed.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_errors_is_waited_out_with_growing_pauses() {
    const STORM: Duration = Duration::from_millis(1500);
    let (fake, dir) = (Fake::start().await, tempfile::tempdir().unwrap());
    let blobs: Vec<_> = (0..4).map(|seed| noise(20_000, seed)).collect();
    for blob in &blobs {
        fake.put_blob("a", blob);
    }
    let (began, count) = (Instant::now(), AtomicUsize::new(0));
    fake.fault(move |_| {
        let status = [500, 502, 503, 504, 507, 520, 408, 425, 429];
        let status = status[count.fetch_add(1, Ordering::SeqCst) % status.len()];
        let page = "<html>Bad gateway</html>";
        let is_over = began.elapsed() >= STORM;
        (!is_over).then(|| (StatusCode::from_u16(status).unwrap(), page).into_response())
    });
    let (fetcher, log) = fetcher(settings(&insecure(&[&fake.host()])), dir.path());
    let (cancel, from) = (Cancel::default(), [format!("{}/a:1", fake.host())]);
    let all = blobs
        .iter()
        .map(|blob| fetcher.fetch(request(blob, &from), &cancel));
    for blob in futures::future::join_all(all).await {
        blob.unwrap();
    }
    let asked = fake.seen("").len();
    assert!(asked < 4 * 20, "{asked} requests: {:?}", log.retries());
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_may_be_a_date_and_may_be_nonsense() {
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    let now = SystemTime::now();
    for (value, least) in [
        // A date has whole seconds, so up to one of the three is lost.
        (http_date(now + 3 * second), 2 * second),
        (http_date(now - hour), Duration::ZERO),
        ("Thu, 01 Jan 1970 00:00:00 GMT".to_owned(), Duration::ZERO),
        ("next Tuesday".to_owned(), Duration::ZERO),
        ("-1".to_owned(), Duration::ZERO),
        ("99999999999999999999".to_owned(), Duration::ZERO),
    ] {
        let (fake, dir) = (Fake::start().await, tempfile::tempdir().unwrap());
        let blob = noise(1000, 1);
        fake.put_blob("a", &blob);
        let (header, count) = (value.clone(), AtomicUsize::new(0));
        fake.fault(move |_| {
            let headers = [(header::RETRY_AFTER, header.clone())];
            let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
            is_first.then(|| (StatusCode::SERVICE_UNAVAILABLE, headers).into_response())
        });
        let (fetcher, log) = fetcher(settings(&insecure(&[&fake.host()])), dir.path());
        let (began, clock) = (Instant::now(), SystemTime::now());
        let wanted = request(&blob, &[format!("{}/a:1", fake.host())]);
        fetcher.fetch(wanted, &Cancel::default()).await.unwrap();
        let late = clock.duration_since(now).unwrap_or_default();
        assert!(
            began.elapsed() + late >= least,
            "{value}: {:?}: {:?}",
            began.elapsed(),
            log.retries()
        );
        let most = least + 3 * second;
        assert!(began.elapsed() < most, "{value}: {:?}", began.elapsed());
    }
}
