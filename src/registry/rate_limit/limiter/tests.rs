//! Tests the rate limiter with paused time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures::future::join_all;
use rand::RngExt as _;

use super::*;

fn limit(rate: &str) -> Arc<RateLimiter> {
    at(rate, "2026-01-01T12:00:00Z", TimeZone::UTC)
}

/// A limit whose day begins at `start` and goes on with tokio's clock.
fn at(rate: &str, start: &str, zone: TimeZone) -> Arc<RateLimiter> {
    let (start, began) = (start.parse::<Timestamp>().expect("a time"), Instant::now());
    let settings = LimitSettings {
        rate: rate.parse().expect("a rate"),
        zone,
        zone_name: "the test's".to_owned(),
    };
    Arc::new(RateLimiter::with_clock(
        settings,
        Box::new(move || start + began.elapsed()),
    ))
}

/// The bytes read, and when.
type Arrivals = Arc<Mutex<Vec<(Instant, f64)>>>;

/// A connection that always has data to read, up to `most` bytes at a time, until `end`.
async fn read(limit: Arc<RateLimiter>, most: usize, end: Instant, arrivals: Arrivals) -> f64 {
    let mut sum = 0.0;
    while Instant::now() < end {
        let permit = limit.read_permit(Duration::ZERO).await;
        let bytes = rand::rng().random_range(1..=most.min(permit.quantum)) as f64;
        permit.charge(bytes);
        sum += bytes;
        arrivals.lock().expect("no panic").push((Instant::now(), bytes));
    }
    sum
}

/// The largest excess over the rate in any span of time, in seconds at the rate.
fn burst(arrivals: &[(Instant, f64)], rate: f64) -> f64 {
    let Some((began, _)) = arrivals.first() else {
        return 0.0;
    };
    // Compares the lowest excess before each arrival with the excess after it.
    let (mut sum, mut lowest, mut most) = (0.0, f64::INFINITY, 0.0f64);
    for (at, bytes) in arrivals {
        let due = at.duration_since(*began).as_secs_f64() * rate;
        lowest = lowest.min(sum - due);
        sum += bytes;
        most = most.max(sum - due - lowest);
    }
    most / rate
}

#[tokio::test(start_paused = true)]
async fn the_average_is_held_and_bursts_are_short() {
    for (rate, connections, most) in [
        ("20Mbit", 1, 60_000),
        ("20Mbit", 8, 10_000),
        ("20Mbit", 40, 1500),
        ("5Mbit", 3, 10_000),
        ("1Gbit", 8, 400_000),
        ("100kbit", 2, 500),
    ] {
        let limit = limit(rate);
        let bytes = limit.state().rate.expect("a limit").bytes();
        let (began, arrivals) = (Instant::now(), Arrivals::default());
        let end = began + Duration::from_secs(30);
        let all = (0..connections).map(|_| read(limit.clone(), most, end, arrivals.clone()));
        let sums = join_all(all).await;
        let arrivals = arrivals.lock().expect("no panic");
        let average = sums.iter().sum::<f64>() / 30.0 / bytes;
        assert!(
            (0.97..=1.03).contains(&average),
            "{rate} by {connections}: {average}"
        );
        let burst = burst(&arrivals, bytes);
        assert!(burst <= BURST.as_secs_f64(), "{rate} by {connections}: {burst} s");
        let (least, most) = sums.iter().fold((f64::INFINITY, 0.0f64), |(least, most), sum| {
            (least.min(*sum), most.max(*sum))
        });
        assert!(
            most < 1.5 * least,
            "{rate} by {connections}: from {least} to {most} each"
        );
    }
}

/// A reader that follows data slower than the limit never waits, and unused time is not made up for later.
#[tokio::test(start_paused = true)]
async fn unused_time_is_not_made_up_for() {
    let limit = limit("8Mbit");
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let asked = Instant::now();
        limit.read_permit(Duration::ZERO).await.charge(5000.0);
        assert_eq!(asked.elapsed(), Duration::ZERO);
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let (began, arrivals) = (Instant::now(), Arrivals::default());
    let sum = read(limit, 5000, began + Duration::from_secs(1), arrivals.clone()).await;
    assert!(sum < 1_060_000.0, "{sum}");
    assert!(burst(&arrivals.lock().expect("no panic"), 1e6) < 0.1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_or_stalled_reader_blocks_no_other() {
    let limit = limit("8Mbit");
    let end = Instant::now() + Duration::from_secs(10);
    let arrivals = Arrivals::default();
    // One reader finds no data, another one is dropped while it waits.
    drop(limit.read_permit(Duration::ZERO).await);
    let gone = limit.clone();
    let gone = tokio::time::timeout(Duration::from_secs(2), read(gone, 5000, end, Arrivals::default()));
    let (_, sum) = tokio::join!(gone, read(limit.clone(), 5000, end, arrivals.clone()));
    // Half of the rate for two seconds, all of it for eight.
    assert!((8.8e6..9.2e6).contains(&sum), "{sum}");
}

/// The rate changes within a second of the boundary, also for readers that wait already.
#[tokio::test(start_paused = true)]
async fn the_rate_changes_with_the_time_of_day_during_a_transfer() {
    let zone = TimeZone::fixed(jiff::tz::offset(2));
    let limit = at(
        "22:00-22:01=80Mbit,22:01-23:00=unlimited,else=800kbit",
        "2026-01-01T19:59:50Z",
        zone,
    );
    assert_eq!(
        limit.description(),
        "--limit-rate: 800 kbit/s until 22:00 (the test's), then 80 Mbit/s"
    );
    let began = Instant::now();
    let arrivals = Arrivals::default();
    read(
        limit.clone(),
        1000,
        began + Duration::from_secs(65),
        arrivals.clone(),
    )
    .await;
    let sum = |from: u64, to: u64| {
        let span = began + Duration::from_secs(from)..began + Duration::from_secs(to);
        let arrivals = arrivals.lock().expect("no panic");
        arrivals
            .iter()
            .filter(|(at, _)| span.contains(at))
            .map(|(_, bytes)| bytes)
            .sum::<f64>()
    };
    assert!((0.97..1.03).contains(&(sum(0, 10) / 1e6)), "{}", sum(0, 10));
    assert!((0.97..1.03).contains(&(sum(11, 65) / 540e6)), "{}", sum(11, 65));
    // Ten minutes of debt end with the limit.
    limit.read_permit(Duration::ZERO).await.charge(6e9);
    let asked = Instant::now();
    limit.read_permit(Duration::ZERO).await;
    assert!(asked.elapsed() < Duration::from_secs(7), "{:?}", asked.elapsed());
    assert_eq!(limit.state().rate, None);
}

/// As many blobs as 100 ms at the rate hold initial windows; more when the rate rises, in the order of the calls.
#[tokio::test(start_paused = true)]
async fn a_low_rate_transfers_few_blobs_at_a_time() {
    for (rate, most) in [("64kbit", 2), ("20Mbit", 3), ("100Mbit", 19)] {
        assert_eq!(limit(rate).max_transfers(), most, "{rate}");
    }
    assert_eq!(limit("unlimited").max_transfers(), usize::MAX);
    let limit = at(
        "12:01-13:00=20Mbit,else=1Mbit",
        "2026-01-01T12:00:00Z",
        TimeZone::UTC,
    );
    let order = AtomicI64::new(0);
    let permit = |number: i64| {
        let (limit, order) = (&limit, &order);
        async move {
            let permit = limit.transfer_permit().await;
            assert_eq!(order.fetch_add(1, Ordering::Relaxed), number);
            (permit, Instant::now())
        }
    };
    let began = Instant::now();
    let (first, second) = (permit(0).await, permit(1).await);
    let (mut third, mut fourth) = (Box::pin(permit(2)), Box::pin(permit(3)));
    assert!(futures::poll!(&mut third).is_pending() && futures::poll!(&mut fourth).is_pending());
    drop(second);
    let (third, second) = (third.await, began.elapsed());
    assert_eq!(second, Duration::ZERO);
    let (_fourth, at) = fourth.await;
    let waited = at - began;
    assert!((60..63).contains(&waited.as_secs()), "{waited:?}");
    drop((first, third));
    assert_eq!(*limit.transfers.borrow(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_no_read_waits() {
    let limit = Arc::new(RateLimiter::new(LimitSettings::default()));
    assert!(!limit.is_limited());
    limit.read_permit(Duration::ZERO).await.charge(1e15);
    let asked = Instant::now();
    assert_eq!(limit.read_permit(Duration::ZERO).await.quantum, MAX_QUANTUM);
    assert_eq!(asked.elapsed(), Duration::ZERO);
    assert_eq!((limit.window(CLOCK_CHECK), limit.slack()), (None, Duration::ZERO));
    let permits: Vec<_> = join_all((0..100).map(|_| limit.transfer_permit())).await;
    assert_eq!(permits.len(), 100);
}

/// All windows together hold what the rate delivers in a round trip and in [`READ_AHEAD`].
#[tokio::test(start_paused = true)]
async fn active_connections_share_the_windows() {
    let limit = limit("8Mbit");
    let round_trip = Duration::from_millis(170);
    let window = || (limit.window(round_trip).expect("a limit") - PACKET).round();
    assert_eq!(window(), 200_000.0);
    limit.set_busy();
    assert_eq!(window(), 200_000.0);
    limit.set_busy();
    assert_eq!(window(), 100_000.0);
    limit.set_idle();
    assert_eq!(window(), 200_000.0);
    for (rate, largest) in [
        ("22:00-04:00=16Mbit,else=8Mbit", Some(400_000.0)),
        ("22:00-04:00=unlimited,else=8Mbit", None),
        ("22:00-04:00=8Mbit", None),
    ] {
        let limit = at(rate, "2026-01-01T12:00:00Z", TimeZone::UTC);
        assert_eq!(
            limit
                .largest_window(round_trip)
                .map(|bytes| (bytes - PACKET).round()),
            largest,
            "{rate}"
        );
    }
}

/// The current rate says how fast the link is, and so how long the rest takes after the next change.
#[test]
fn the_estimate_follows_the_schedule_of_the_day() {
    let settings = LimitSettings {
        rate: "22:00-04:00=50Mbit,else=5Mbit".parse().expect("rates"),
        ..LimitSettings::default()
    };
    let rest = |megabytes: u64, rate: u64, now: &str| {
        let now = format!("2026-01-01T{now}:00Z").parse().expect("a time");
        let rest = settings.remaining_time(megabytes * 1_000_000, rate, now);
        rest.as_secs_f64().round() as u64
    };
    // 600 kB are 4.8 Mbit, and with headers the limit: 2.16 GB in an hour, and ten times as much in the next ones.
    assert_eq!(rest(1080, 600_000, "21:00"), 1800);
    assert_eq!(rest(4320, 600_000, "21:00"), 3600 + 360);
    // In the other direction the last hour transfers 21.6 GB.
    assert_eq!(rest(21_600 + 2_160, 6_000_000, "03:00"), 3600 + 3600);
    // A slow link stays slow.
    assert_eq!(rest(4320, 200_000, "21:00"), 21_600);
    // Right after the change, the measured rate is still the one before it.
    assert_eq!(rest(6250, 600_000, "22:00"), 10_417);
    assert_eq!(rest(625, 6_000_000, "04:00"), 1000);
    assert!(settings.remaining_time(u64::MAX, 1, Timestamp::UNIX_EPOCH) > DAY);
}
