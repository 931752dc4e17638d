//! Measures how fast each registry sends, and decides when a connection leaves one source for another.
//! `response_monitor` decides how often sources are compared.
//!
//! A source is slow only in comparison with another source of the same content. So a slow link, a limit on the rate or many
//! parallel connections make no source slow. Connections share the link; therefore sources are compared by what all
//! connections would receive together if each were as fast ([`Speed::link`]).
//!
//! ```text
//! the current source sends r       another source, later in the order      another source, earlier in the order
//! ────────────────────────────     ───────────────────────────────────     ────────────────────────────────────
//! it is known to send s            leave for it if s > LEAVE_FACTOR × r    return to it if s × KEEP_FACTOR > r
//! its speed is unknown or old      try it if r < SLOW, or if some other registry sends more than LEAVE_FACTOR × r;
//!                                  once in VALID_FOR for all connections together
//! ```
//!
//! The factors differ, so connections do not alternate between sources: if the new source turns out less than
//! [`KEEP_FACTOR`] times as fast, the connection returns, and then leaves only for one [`LEAVE_FACTOR`] times as fast.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::rate_limit::Rate;

/// A connection leaves its source for one that is so many times as fast. A busy link makes smaller differences by chance.
const LEAVE_FACTOR: u64 = 4;

/// A source that was tried instead of a preferred one has to be so many times as fast to be kept.
const KEEP_FACTOR: u64 = 2;

/// In bytes a second, for all connections together: below this, a source of unknown speed is worth a try. On a link that is
/// as slow itself, that costs a request in [`VALID_FOR`].
const SLOW: u64 = 64 << 10;

/// A measurement older than this no longer counts.
const VALID_FOR: Duration = Duration::from_secs(10 * 60);

/// For so long an unreachable registry is tried after one that answers. It may only be starting.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// The bytes from which a rate can be computed, unless they took long.
pub(super) const MIN_SAMPLE: u64 = 256 << 10;

/// A new measurement counts for one part of so many in the average.
const AVERAGE_OVER: u64 = 4;

/// Bytes that one connection received in some time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) bytes: u64,
    pub(super) took: Duration,
    /// The most connections that used the link at the same time.
    pub(super) connections: usize,
}

/// The speeds of all registries, whatever they are asked for.
#[derive(Debug)]
pub(super) struct MirrorSpeeds {
    /// [`SLOW`], or less under a limit on the rate.
    slow: u64,
    by_domain: Mutex<HashMap<String, Speed>>,
    /// Responses that are being received.
    active: AtomicUsize,
}

/// The speed of one registry, in bytes a second.
#[derive(Clone, Copy, Debug, Default)]
struct Speed {
    /// One connection, averaged over some answers.
    connection: u64,
    /// All connections together, if each were as fast as this one was last.
    link: u64,
    /// Until when these count.
    valid_until: Option<Instant>,
    /// Until when no connection leaves its source only to try this registry.
    probed_until: Option<Instant>,
}

impl Speed {
    fn valid(self) -> Option<Self> {
        is_future(self.valid_until).then_some(self)
    }
}

fn is_future(moment: Option<Instant>) -> bool {
    moment.is_some_and(|moment| Instant::now() < moment)
}

/// Another source of the same content.
#[derive(Clone, Debug)]
pub(super) struct Alternative {
    /// The registry.
    pub(super) domain: String,
    /// It precedes the current source in the order of preference.
    pub(super) is_preferred: bool,
}

/// A response that is being received, counted until it is dropped.
#[derive(Debug)]
pub(super) struct ActiveResponse(Arc<MirrorSpeeds>);

impl Drop for ActiveResponse {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl MirrorSpeeds {
    /// `limit` is the lowest limit on the rate, if there is one; it makes no source slow.
    pub(super) fn new(limit: Option<Rate>) -> Self {
        let limit = limit.map_or(u64::MAX, |limit| limit.bytes() as u64);
        Self {
            slow: SLOW.min(limit / LEAVE_FACTOR),
            by_domain: Mutex::default(),
            active: AtomicUsize::default(),
        }
    }

    /// Counts a response as one that uses the link.
    pub(super) fn begin_response(self: &Arc<Self>) -> ActiveResponse {
        self.active.fetch_add(1, Ordering::Relaxed);
        ActiveResponse(Arc::clone(self))
    }

    /// What one connection to the registry receives in a second; 0 if that is unknown.
    pub(super) fn bytes_per_second(&self, domain: &str) -> u64 {
        self.of(domain).valid().map_or(0, |speed| speed.connection)
    }

    /// How many responses use the link now.
    pub(super) fn connections(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Records a sample of the registry. Returns what all connections would receive in a second at this speed.
    pub(super) fn record(&self, domain: &str, sample: Sample) -> u64 {
        let connection = (sample.bytes as f64 / sample.took.as_secs_f64().max(1e-6)) as u64;
        let link = connection.saturating_mul(sample.connections.max(1) as u64);
        let mut all = self.all();
        let speed = all.entry(domain.to_owned()).or_default();
        speed.connection = match speed.valid() {
            // A collapsed speed is not averaged: ranges would be too large for long.
            Some(old) if old.connection > 0 && connection > old.connection / LEAVE_FACTOR => {
                old.connection / AVERAGE_OVER * (AVERAGE_OVER - 1) + connection / AVERAGE_OVER
            }
            _ => connection,
        };
        speed.connection = speed.connection.max(1);
        (speed.link, speed.valid_until) = (link, Some(Instant::now() + VALID_FOR));
        link
    }

    /// Records that the registry sent nothing: other registries are asked first for a while.
    pub(super) fn unreachable(&self, domain: &str) {
        let mut all = self.all();
        let speed = all.entry(domain.to_owned()).or_default();
        (speed.connection, speed.link) = (0, 0);
        speed.valid_until = Some(Instant::now() + AFTER_FAILURE);
        speed.probed_until = Some(Instant::now() + VALID_FOR);
    }

    /// Records that a connection leaves its source to try this registry. Not every [`RegistryError::Slow`] has that
    /// consequence: a range of a blob only ends.
    ///
    /// [`RegistryError::Slow`]: super::RegistryError::Slow
    pub(super) fn probed(&self, domain: &str) {
        let mut all = self.all();
        all.entry(domain.to_owned()).or_default().probed_until = Some(Instant::now() + VALID_FOR);
    }

    /// Whether the link is so slow that a source of unknown speed is worth a try.
    pub(super) fn is_slow(&self, link: u64) -> bool {
        link < self.slow
    }

    /// The alternative for which a connection leaves the registry, whose last sample showed `link`.
    pub(super) fn faster(&self, domain: &str, link: u64, alternatives: &[Alternative]) -> Option<String> {
        let all = self.all();
        let others = all.iter().filter(|(other, _)| other.as_str() != domain);
        let elsewhere = others.filter_map(|(_, speed)| speed.valid()).map(|it| it.link);
        let is_slow = self.is_slow(link)
            || elsewhere
                .max()
                .is_some_and(|best| best > link.saturating_mul(LEAVE_FACTOR));
        for other in alternatives.iter().filter(|other| other.domain != domain) {
            let speed = all.get(&other.domain).copied().unwrap_or_default();
            let is_faster = match (speed.valid(), other.is_preferred) {
                (Some(speed), true) => speed.link.saturating_mul(KEEP_FACTOR) > link,
                (Some(speed), false) => speed.link > link.saturating_mul(LEAVE_FACTOR),
                (None, _) => is_slow && !is_future(speed.probed_until),
            };
            if is_faster {
                return Some(other.domain.clone());
            }
        }
        None
    }

    /// Which of these registries, in the order of preference, to ask first: one that is much slower than a later one is
    /// skipped.
    pub(super) fn first_not_slow<'a>(&self, domains: impl Iterator<Item = &'a str>) -> Option<usize> {
        let link = |domain: &str| self.of(domain).valid().map(|speed| speed.link);
        let links: Vec<Option<u64>> = domains.map(link).collect();
        let best = links.iter().flatten().max().copied().unwrap_or_default();
        let is_slow = |link: &Option<u64>| link.is_some_and(|link| best > link.saturating_mul(LEAVE_FACTOR));
        links.iter().position(|link| !is_slow(link))
    }

    fn of(&self, domain: &str) -> Speed {
        self.all().get(domain).copied().unwrap_or_default()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Speed>> {
        self.by_domain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MIB: u64 = 1 << 20;

    fn other(domain: &str, is_preferred: bool) -> [Alternative; 1] {
        let domain = domain.to_owned();
        [Alternative { domain, is_preferred }]
    }

    fn leaves(speeds: &MirrorSpeeds, domain: &str, link: u64, others: &[Alternative]) -> bool {
        speeds.faster(domain, link, others).is_some()
    }

    fn record(speeds: &MirrorSpeeds, domain: &str, bytes: u64, connections: usize) -> u64 {
        let sample = Sample {
            bytes,
            took: SECOND,
            connections,
        };
        speeds.record(domain, sample)
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_is_slow_only_beside_another_one() {
        let speeds = MirrorSpeeds::new(None);
        let (origin, mirror) = (other("origin", false), other("mirror", true));
        assert!(!leaves(&speeds, "mirror", 1, &[]));
        assert!(
            !leaves(&speeds, "mirror", SLOW, &origin),
            "slow, but no source is known to be faster"
        );
        record(&speeds, "origin", MIB, 1);
        assert!(leaves(&speeds, "mirror", MIB / 5, &origin));
        assert!(!leaves(&speeds, "mirror", MIB / 3, &origin));
        assert!(!leaves(&speeds, "origin", MIB, &mirror));
        record(&speeds, "mirror", MIB / 3, 1);
        assert!(
            !leaves(&speeds, "origin", MIB, &mirror),
            "three times as fast as the mirror"
        );
        assert!(
            leaves(&speeds, "origin", MIB / 2, &mirror),
            "not worth leaving the mirror"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_of_unknown_speed_is_tried_by_one_connection() {
        let speeds = MirrorSpeeds::new(None);
        let origin = other("origin", false);
        assert!(leaves(&speeds, "mirror", 1, &origin));
        assert!(
            leaves(&speeds, "mirror", 1, &origin),
            "no connection has left for it"
        );
        speeds.probed("origin");
        assert!(!leaves(&speeds, "mirror", 1, &origin), "it is being tried");
        record(&speeds, "mirror", 10, 1);
        record(&speeds, "origin", 12, 1);
        assert!(
            leaves(&speeds, "origin", 12, &other("mirror", true)),
            "no faster, so it returns"
        );
        for _ in 0..10 {
            assert!(!leaves(&speeds, "mirror", 10, &origin), "and stays there");
        }
        tokio::time::sleep(VALID_FOR).await;
        assert!(
            leaves(&speeds, "mirror", 10, &origin),
            "until something may have changed"
        );

        let speeds = MirrorSpeeds::new(None);
        record(&speeds, "elsewhere", MIB, 1);
        assert!(
            leaves(&speeds, "mirror", MIB / 5, &origin),
            "far slower than another registry"
        );
        speeds.unreachable("origin");
        assert!(
            !leaves(&speeds, "mirror", MIB / 5, &origin),
            "it could not be reached"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_share_a_link_are_not_slow() {
        let speeds = Arc::new(MirrorSpeeds::new(None));
        assert_eq!(record(&speeds, "origin", MIB, 1), MIB);
        let active: Vec<ActiveResponse> = (0..8).map(|_| speeds.begin_response()).collect();
        let link = record(&speeds, "mirror", MIB / 8, speeds.connections());
        assert_eq!((speeds.bytes_per_second("mirror"), link), (MIB / 8, MIB));
        assert!(!leaves(&speeds, "mirror", link, &other("origin", false)));
        drop(active);
        assert_eq!(speeds.connections(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_source_that_is_not_much_slower_is_asked_first() {
        let speeds = MirrorSpeeds::new(None);
        let order = ["mirror", "second", "origin"];
        let first = |speeds: &MirrorSpeeds| speeds.first_not_slow(order.into_iter());
        assert_eq!(first(&speeds), Some(0));
        record(&speeds, "origin", MIB, 1);
        assert_eq!(first(&speeds), Some(0), "the mirror is unknown");
        record(&speeds, "mirror", 1, 1);
        assert_eq!(first(&speeds), Some(1), "so is the second");
        record(&speeds, "second", 1, 1);
        assert_eq!(first(&speeds), Some(2));
        tokio::time::sleep(VALID_FOR).await;
        assert_eq!(first(&speeds), Some(0));
        record(&speeds, "origin", MIB, 1);
        speeds.unreachable("mirror");
        assert_eq!(first(&speeds), Some(1));
        tokio::time::sleep(AFTER_FAILURE).await;
        assert_eq!(first(&speeds), Some(0), "it may be back");
        assert_eq!(speeds.first_not_slow(std::iter::empty()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_speed_is_an_average_until_it_collapses() {
        let speeds = MirrorSpeeds::new(None);
        assert_eq!(speeds.bytes_per_second("a"), 0);
        speeds.unreachable("a");
        for (bytes, expected) in [(400, 400), (800, 500), (10, 10)] {
            record(&speeds, "a", bytes, 1);
            assert_eq!(speeds.bytes_per_second("a"), expected);
        }
        assert_eq!(speeds.bytes_per_second("b"), 0, "each has its own");
    }
}
