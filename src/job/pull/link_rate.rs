//! Measures how fast bytes arrive while they arrive: pauses in which nothing is requested, or no source answers, do not count.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The recent past, in time with arriving bytes.
const WINDOW: Duration = Duration::from_secs(20);

/// Time between two samples of the window.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// The shortest time to divide by: the first chunk of a run does not show the rate of the link.
const LEAST: Duration = Duration::from_secs(1);

/// Without a byte for so long, the link is free: what was requested waits for its source.
const STALL: Duration = Duration::from_secs(5);

/// The rate of a link during one run.
#[derive(Debug, Default)]
pub(in crate::job) struct LinkRate {
    /// Time with arriving bytes, and how many bytes had arrived then. The first is the start of the window.
    samples: VecDeque<(Duration, u64)>,
    /// Until the last byte.
    busy: Duration,
    received: u64,
    /// When the last byte arrived, or something was requested on a free link.
    last: Option<Instant>,
}

impl LinkRate {
    /// Notes how many bytes have arrived in this run.
    pub(super) fn note(&mut self, received: u64, now: Instant) {
        let last = *self.last.get_or_insert(now);
        if received <= self.received {
            return;
        }
        if self.samples.is_empty() {
            self.samples.push_back((self.busy, self.received));
        }
        self.busy += now.saturating_duration_since(last).min(STALL);
        (self.received, self.last) = (received, Some(now));
        let sampled = self.samples.back().map_or(Duration::ZERO, |(busy, _)| *busy);
        if self.busy - sampled >= SAMPLE_EVERY {
            self.samples.push_back((self.busy, received));
        }
        let begin = self.busy.saturating_sub(WINDOW);
        while self.samples.get(1).is_some_and(|(busy, _)| *busy <= begin) {
            self.samples.pop_front();
        }
    }

    /// Notes that something was requested on a free link.
    pub(super) fn restart(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Whether no byte has arrived for some time.
    pub(super) fn is_stalled(&self, now: Instant) -> bool {
        self.last
            .is_some_and(|last| now.saturating_duration_since(last) >= STALL)
    }

    /// How long bytes have arrived.
    pub(super) fn busy(&self) -> Duration {
        self.busy
    }

    /// Bytes per second recently; `None` before the first byte.
    pub(super) fn recent(&self) -> Option<u64> {
        let (begin, received) = self.samples.front()?;
        Some(per_second(self.received - received, self.busy - *begin))
    }

    /// Bytes per second recently or in the whole run: the larger value.
    pub(super) fn best(&self) -> Option<u64> {
        Some(self.recent()?.max(per_second(self.received, self.busy)))
    }
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    let rate = u128::from(bytes) * 1000 / time.max(LEAST).as_millis();
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_do_not_lower_the_rate_and_the_recent_rate_follows_the_link() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut rate = LinkRate::default();
        rate.note(0, at(0));
        assert_eq!((rate.recent(), rate.is_stalled(at(4))), (None, false));
        for second in 1..=30 {
            rate.note(second * 1000, at(second));
        }
        assert_eq!((rate.recent(), rate.best()), (Some(1000), Some(1000)));
        // An hour without requests.
        rate.note(30_000, at(3_000));
        assert!(rate.is_stalled(at(3_000)));
        rate.restart(at(3_600));
        assert!(!rate.is_stalled(at(3_601)));
        for second in 1..=40 {
            rate.note(30_000 + second * 100, at(3_600 + second));
        }
        assert_eq!(rate.recent(), Some(100));
        assert_eq!((rate.best(), rate.busy()), (Some(485), Duration::from_secs(70)));
        assert!(rate.samples.len() <= 201, "{}", rate.samples.len());
    }
}
