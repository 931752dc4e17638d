//! How fast each registry sends, as one connection sees it, and when a connection is to be left for another source.
//!
//! A source is slow only in comparison with another source of the same content, so a slow link, a limit on the rate or
//! many connections beside each other make nobody slow. Connections share the link, so rates are compared by what all of
//! them would bring together if each were as fast ([`Known::share`]).
//!
//! ```text
//! the current source brings r       another source, later in the order      another source, earlier in the order
//! ─────────────────────────────     ───────────────────────────────────     ────────────────────────────────────
//! it is known to bring s            leave for it if s > MUCH × r            return to it if s × BETTER > r
//! nobody knows, or not any more     try it if r < LOW, or if some other registry brings more than MUCH × r;
//!                                   once in RECHECK for all connections together
//! ```
//!
//! The factors differ, so nothing goes back and forth: who was left for a source that turns out less than [`BETTER`] times
//! as fast is returned to, and then left only for one that is [`MUCH`] times as fast.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::rate_limit::Rate;

/// A source is left for one that is so many times as fast. Less is what a busy link does to connections by chance.
const MUCH: u64 = 4;

/// A source that was tried instead of a preferred one has to be so many times as fast to be kept.
const BETTER: u64 = 2;

/// In bytes a second, for all connections together: below this, a source that nobody has tried is worth a try. On a link
/// that is as slow itself, that costs a request in [`RECHECK`].
const LOW: u64 = 64 << 10;

/// So old a rate says nothing any more.
const RECHECK: Duration = Duration::from_secs(10 * 60);

/// For so long a registry that could not be reached comes after one that answers. It may only be starting.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// Fewer bytes say nothing of a rate, unless they took long.
pub(super) const TELLING: u64 = 256 << 10;

/// A new figure counts for one part of so many.
const WEIGHT: u64 = 4;

/// By registry, whatever it is asked for.
#[derive(Debug)]
pub(super) struct Rates {
    /// [`LOW`], or less under a limit on the rate.
    low: u64,
    known: Mutex<HashMap<String, Known>>,
    /// Answers on their way.
    busy: AtomicUsize,
}

/// In bytes a second.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// One connection, on average over some answers.
    pace: u64,
    /// All connections, if each were as fast as this one was last.
    share: u64,
    /// Until when these say something.
    until: Option<Instant>,
    /// Until when no connection is left only to try this registry.
    tried_until: Option<Instant>,
}

impl Known {
    fn fresh(self) -> Option<Self> {
        is_to_come(self.until).then_some(self)
    }
}

fn is_to_come(moment: Option<Instant>) -> bool {
    moment.is_some_and(|moment| Instant::now() < moment)
}

/// Another source of what comes.
#[derive(Clone, Debug)]
pub(super) struct Rival {
    /// The registry.
    pub(super) domain: String,
    /// It comes before the current source in the order of preference.
    pub(super) is_preferred: bool,
}

/// An answer on its way, as long as it lives.
#[derive(Debug)]
pub(super) struct Busy(Arc<Rates>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Rates {
    /// Under a limit on the rate, if there is one, which makes nobody slow.
    pub(super) fn new(limit: Option<Rate>) -> Self {
        let limit = limit.map_or(u64::MAX, |limit| limit.bytes() as u64);
        Self {
            low: LOW.min(limit / MUCH),
            known: Mutex::default(),
            busy: AtomicUsize::default(),
        }
    }

    /// Counts an answer as one that uses the link.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// What one connection to the registry brings; 0 if nobody knows.
    pub(super) fn pace(&self, domain: &str) -> u64 {
        self.of(domain).fresh().map_or(0, |known| known.pace)
    }

    /// How many answers use the link now.
    pub(super) fn connections(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    /// Notes what one of so many connections brought, and in which time. Gives what all of them would bring.
    pub(super) fn note(&self, domain: &str, bytes: u64, took: Duration, connections: usize) -> u64 {
        let pace = (bytes as f64 / took.as_secs_f64().max(1e-6)) as u64;
        let share = pace.saturating_mul(connections.max(1) as u64);
        let mut all = self.all();
        let known = all.entry(domain.to_owned()).or_default();
        known.pace = match known.fresh() {
            // What has collapsed is not averaged: claims would be too large for long.
            Some(old) if old.pace > 0 && pace > old.pace / MUCH => {
                old.pace / WEIGHT * (WEIGHT - 1) + pace / WEIGHT
            }
            _ => pace,
        };
        known.pace = known.pace.max(1);
        (known.share, known.until) = (share, Some(Instant::now() + RECHECK));
        share
    }

    /// Notes that nothing came, as slow as can be: whoever can ask another registry first does so for a while.
    pub(super) fn failed(&self, domain: &str) {
        let mut all = self.all();
        let known = all.entry(domain.to_owned()).or_default();
        (known.pace, known.share) = (0, 0);
        known.until = Some(Instant::now() + AFTER_FAILURE);
        known.tried_until = Some(Instant::now() + RECHECK);
    }

    /// Notes that a connection is left for this registry. Not every verdict has that consequence: a piece of a blob only ends.
    pub(super) fn tries(&self, domain: &str) {
        let mut all = self.all();
        all.entry(domain.to_owned()).or_default().tried_until = Some(Instant::now() + RECHECK);
    }

    /// Whether so little comes that another source is worth a try.
    pub(super) fn is_low(&self, share: u64) -> bool {
        share < self.low
    }

    /// For which of the rivals a connection to the registry is to be left, which brought `share` just now.
    pub(super) fn better(&self, domain: &str, share: u64, rivals: &[Rival]) -> Option<String> {
        let all = self.all();
        let others = all.iter().filter(|(other, _)| other.as_str() != domain);
        let elsewhere = others.filter_map(|(_, known)| known.fresh()).map(|it| it.share);
        let is_low = self.is_low(share)
            || elsewhere
                .max()
                .is_some_and(|best| best > share.saturating_mul(MUCH));
        for rival in rivals.iter().filter(|rival| rival.domain != domain) {
            let known = all.get(&rival.domain).copied().unwrap_or_default();
            let is_better = match (known.fresh(), rival.is_preferred) {
                (Some(rival), true) => rival.share.saturating_mul(BETTER) > share,
                (Some(rival), false) => rival.share > share.saturating_mul(MUCH),
                (None, _) => is_low && !is_to_come(known.tried_until),
            };
            if is_better {
                return Some(rival.domain.clone());
            }
        }
        None
    }

    /// Which of these registries, in the order of preference, to ask first: one that is known to be much slower than a later
    /// one comes after it.
    pub(super) fn choose<'a>(&self, domains: impl Iterator<Item = &'a str>) -> Option<usize> {
        let domains: Vec<&str> = domains.collect();
        let shares: Vec<Option<u64>> = domains
            .iter()
            .map(|domain| self.of(domain).fresh().map(|known| known.share))
            .collect();
        let best = shares.iter().flatten().max().copied().unwrap_or_default();
        let is_slow = |share: &Option<u64>| share.is_some_and(|share| best > share.saturating_mul(MUCH));
        shares.iter().position(|share| !is_slow(share))
    }

    fn of(&self, domain: &str) -> Known {
        self.all().get(domain).copied().unwrap_or_default()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MIB: u64 = 1 << 20;

    fn rival(domain: &str, is_preferred: bool) -> [Rival; 1] {
        let domain = domain.to_owned();
        [Rival { domain, is_preferred }]
    }

    fn leaves(rates: &Rates, domain: &str, share: u64, other: &[Rival]) -> bool {
        rates.better(domain, share, other).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_is_slow_only_beside_another_one() {
        let rates = Rates::new(None);
        let (origin, mirror) = (rival("origin", false), rival("mirror", true));
        assert!(!leaves(&rates, "mirror", 1, &[]));
        assert!(
            !leaves(&rates, "mirror", LOW, &origin),
            "slow, but nobody is faster"
        );
        rates.note("origin", MIB, SECOND, 1);
        assert!(leaves(&rates, "mirror", MIB / 5, &origin));
        assert!(!leaves(&rates, "mirror", MIB / 3, &origin));
        assert!(!leaves(&rates, "origin", MIB, &mirror));
        rates.note("mirror", MIB / 3, SECOND, 1);
        assert!(
            !leaves(&rates, "origin", MIB, &mirror),
            "three times as fast as the mirror"
        );
        assert!(
            leaves(&rates, "origin", MIB / 2, &mirror),
            "not worth leaving the mirror"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_nobody_knows_is_tried_once_and_not_by_all() {
        let rates = Rates::new(None);
        let origin = rival("origin", false);
        assert!(leaves(&rates, "mirror", 1, &origin));
        assert!(leaves(&rates, "mirror", 1, &origin), "nobody has left for it");
        rates.tries("origin");
        assert!(!leaves(&rates, "mirror", 1, &origin), "it is being tried");
        rates.note("mirror", 10, SECOND, 1);
        rates.note("origin", 12, SECOND, 1);
        assert!(
            leaves(&rates, "origin", 12, &rival("mirror", true)),
            "no better, so back"
        );
        for _ in 0..10 {
            assert!(!leaves(&rates, "mirror", 10, &origin), "and there it stays");
        }
        tokio::time::sleep(RECHECK).await;
        assert!(
            leaves(&rates, "mirror", 10, &origin),
            "until something may have changed"
        );

        let rates = Rates::new(None);
        rates.note("elsewhere", MIB, SECOND, 1);
        assert!(
            leaves(&rates, "mirror", MIB / 5, &origin),
            "far below what else is seen"
        );
        rates.failed("origin");
        assert!(
            !leaves(&rates, "mirror", MIB / 5, &origin),
            "it could not be reached"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_share_a_link_are_not_slow() {
        let rates = Arc::new(Rates::new(None));
        assert_eq!(rates.note("origin", MIB, SECOND, 1), MIB);
        let busy: Vec<Busy> = (0..8).map(|_| rates.busy()).collect();
        let share = rates.note("mirror", MIB / 8, SECOND, rates.connections());
        assert_eq!((rates.pace("mirror"), share), (MIB / 8, MIB));
        assert!(!leaves(&rates, "mirror", share, &rival("origin", false)));
        drop(busy);
        assert_eq!(rates.connections(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_that_is_not_much_slower_is_asked_first() {
        let rates = Rates::new(None);
        let order = ["mirror", "second", "origin"];
        let first = |rates: &Rates| rates.choose(order.into_iter());
        assert_eq!(first(&rates), Some(0));
        rates.note("origin", MIB, SECOND, 1);
        assert_eq!(first(&rates), Some(0), "nobody knows the mirror");
        rates.note("mirror", 1, SECOND, 1);
        assert_eq!(first(&rates), Some(1), "nor the second");
        rates.note("second", 1, SECOND, 1);
        assert_eq!(first(&rates), Some(2));
        tokio::time::sleep(RECHECK).await;
        assert_eq!(first(&rates), Some(0));
        rates.note("origin", MIB, SECOND, 1);
        rates.failed("mirror");
        assert_eq!(first(&rates), Some(1));
        tokio::time::sleep(AFTER_FAILURE).await;
        assert_eq!(first(&rates), Some(0), "it may be back");
        assert_eq!(rates.choose(std::iter::empty()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pace_is_an_average_until_it_collapses() {
        let rates = Rates::new(None);
        assert_eq!(rates.pace("a"), 0);
        rates.failed("a");
        for (brings, expected) in [(400, 400), (800, 500), (10, 10)] {
            rates.note("a", brings, SECOND, 1);
            assert_eq!(rates.pace("a"), expected);
        }
        assert_eq!(rates.pace("b"), 0, "each has its own");
    }
}
