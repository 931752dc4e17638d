//! The limit by itself, with the clock stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures::future::join_all;
use rand::RngExt as _;

use super::*;

fn limit(rate: &str) -> Arc<Limit> {
    at(rate, "2026-01-01T12:00:00Z", TimeZone::UTC)
}

/// A limit whose day begins at `start` and goes on with tokio's clock.
fn at(rate: &str, start: &str, zone: TimeZone) -> Arc<Limit> {
    let (start, began) = (start.parse::<Timestamp>().expect("a time"), Instant::now());
    let settings = LimitSettings {
        rate: rate.parse().expect("a rate"),
        zone,
        zone_name: "the test's".to_owned(),
    };
    Arc::new(Limit::by(settings, Box::new(move || start + began.elapsed())))
}

/// What came and when.
type Arrivals = Arc<Mutex<Vec<(Instant, f64)>>>;

/// A connection that always has something to read, up to `most` bytes at a time, until `end`.
async fn read(limit: Arc<Limit>, most: usize, end: Instant, arrivals: Arrivals) -> f64 {
    let mut sum = 0.0;
    while Instant::now() < end {
        let turn = limit.turn_to_read(Duration::ZERO).await;
        let bytes = rand::rng().random_range(1..=most.min(turn.quantum)) as f64;
        turn.charge(bytes);
        sum += bytes;
        arrivals.lock().expect("no panic").push((Instant::now(), bytes));
    }
    sum
}

/// The most that came in any span of time beyond the rate's share of it, in seconds at the rate.
fn burst(arrivals: &[(Instant, f64)], rate: f64) -> f64 {
    let Some((began, _)) = arrivals.first() else {
        return 0.0;
    };
    // Excess before each arrival, at its lowest so far, against that after it.
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

/// Who reads as fast as bytes come, and these come more slowly, never waits; what was not used is not made up for.
#[tokio::test(start_paused = true)]
async fn unused_time_is_no_credit() {
    let limit = limit("8Mbit");
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let asked = Instant::now();
        limit.turn_to_read(Duration::ZERO).await.charge(5000.0);
        assert_eq!(asked.elapsed(), Duration::ZERO);
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let (began, arrivals) = (Instant::now(), Arrivals::default());
    let sum = read(limit, 5000, began + Duration::from_secs(1), arrivals.clone()).await;
    assert!(sum < 1_060_000.0, "{sum}");
    assert!(burst(&arrivals.lock().expect("no panic"), 1e6) < 0.1);
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_or_stalls_holds_nothing() {
    let limit = limit("8Mbit");
    let end = Instant::now() + Duration::from_secs(10);
    let arrivals = Arrivals::default();
    // One that found nothing to read, and one that is dropped while it waits.
    drop(limit.turn_to_read(Duration::ZERO).await);
    let gone = limit.clone();
    let gone = tokio::time::timeout(Duration::from_secs(2), read(gone, 5000, end, Arrivals::default()));
    let (_, sum) = tokio::join!(gone, read(limit.clone(), 5000, end, arrivals.clone()));
    // A half for two seconds and all for eight.
    assert!((8.8e6..9.2e6).contains(&sum), "{sum}");
}

/// The rate changes within a second of its border, for those too who wait already.
#[tokio::test(start_paused = true)]
async fn the_time_of_day_changes_the_rate_in_the_middle() {
    let zone = TimeZone::fixed(jiff::tz::offset(2));
    let limit = at(
        "22:00-22:01=80Mbit,22:01-23:00=unlimited,else=800kbit",
        "2026-01-01T19:59:50Z",
        zone,
    );
    assert_eq!(
        limit.told(),
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
    // Ten minutes' worth of debt goes with the limit.
    limit.turn_to_read(Duration::ZERO).await.charge(6e9);
    let asked = Instant::now();
    limit.turn_to_read(Duration::ZERO).await;
    assert!(asked.elapsed() < Duration::from_secs(7), "{:?}", asked.elapsed());
    assert_eq!(limit.state().rate, None);
}

/// So many as a tenth of a second has first windows for; more when the rate rises, and in the order in which they ask.
#[tokio::test(start_paused = true)]
async fn few_blobs_travel_at_a_low_rate() {
    for (rate, most) in [("64kbit", 2), ("20Mbit", 3), ("100Mbit", 19)] {
        assert_eq!(limit(rate).most_turns(), most, "{rate}");
    }
    assert_eq!(limit("unlimited").most_turns(), usize::MAX);
    let limit = at(
        "12:01-13:00=20Mbit,else=1Mbit",
        "2026-01-01T12:00:00Z",
        TimeZone::UTC,
    );
    let order = AtomicI64::new(0);
    let turn = |number: i64| {
        let (limit, order) = (&limit, &order);
        async move {
            let turn = limit.turn().await;
            assert_eq!(order.fetch_add(1, Ordering::Relaxed), number);
            (turn, Instant::now())
        }
    };
    let began = Instant::now();
    let (first, second) = (turn(0).await, turn(1).await);
    let (mut third, mut fourth) = (Box::pin(turn(2)), Box::pin(turn(3)));
    assert!(futures::poll!(&mut third).is_pending() && futures::poll!(&mut fourth).is_pending());
    drop(second);
    let (third, second) = (third.await, began.elapsed());
    assert_eq!(second, Duration::ZERO);
    let (_fourth, at) = fourth.await;
    let waited = at - began;
    assert!((60..63).contains(&waited.as_secs()), "{waited:?}");
    drop((first, third));
    assert_eq!(*limit.turns.borrow(), 1);
}

/// Anything else would be a limit on those who gave none.
#[tokio::test(start_paused = true)]
async fn without_a_limit_nobody_waits() {
    let limit = Arc::new(Limit::new(LimitSettings::default()));
    assert!(!limit.is_any());
    limit.turn_to_read(Duration::ZERO).await.charge(1e15);
    let asked = Instant::now();
    assert_eq!(limit.turn_to_read(Duration::ZERO).await.quantum, MOST_QUANTUM);
    assert_eq!(asked.elapsed(), Duration::ZERO);
    assert_eq!((limit.window(LOOK), limit.slack()), (None, Duration::ZERO));
    let turns: Vec<_> = join_all((0..100).map(|_| limit.turn())).await;
    assert_eq!(turns.len(), 100);
}

/// All together have what comes in a round trip and in the time ahead of it.
#[tokio::test(start_paused = true)]
async fn windows_are_shared_by_those_who_bring_something() {
    let limit = limit("8Mbit");
    let round_trip = Duration::from_millis(170);
    let window = || (limit.window(round_trip).expect("a limit") - PACKET).round();
    assert_eq!(window(), 200_000.0);
    limit.busy();
    assert_eq!(window(), 200_000.0);
    limit.busy();
    assert_eq!(window(), 100_000.0);
    limit.idle();
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

/// What comes now says something of the link, and of what comes after the next border.
#[test]
fn what_is_left_is_reckoned_across_the_borders_of_the_day() {
    let settings = LimitSettings {
        rate: "22:00-04:00=50Mbit,else=5Mbit".parse().expect("rates"),
        ..LimitSettings::default()
    };
    let rest = |megabytes: u64, rate: u64, now: &str| {
        let now = format!("2026-01-01T{now}:00Z").parse().expect("a time");
        let rest = settings.rest(megabytes * 1_000_000, rate, now);
        rest.as_secs_f64().round() as u64
    };
    // 600 kB are 4.8 Mbit, and with headers the limit: 2.16 GB in an hour, and ten times as much in the next ones.
    assert_eq!(rest(1080, 600_000, "21:00"), 1800);
    assert_eq!(rest(4320, 600_000, "21:00"), 3600 + 360);
    // The other way around the last hour brings 21.6 GB.
    assert_eq!(rest(21_600 + 2_160, 6_000_000, "03:00"), 3600 + 3600);
    // A slow link stays one.
    assert_eq!(rest(4320, 200_000, "21:00"), 21_600);
    // Right after the border the rate is still the one before it.
    assert_eq!(rest(6250, 600_000, "22:00"), 10_417);
    assert_eq!(rest(625, 6_000_000, "04:00"), 1000);
    assert!(settings.rest(u64::MAX, 1, Timestamp::UNIX_EPOCH) > DAY);
}
