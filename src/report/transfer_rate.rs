//! Measures how fast bytes arrive, over the last seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The window: long enough to average over the gaps between blobs, short enough to show a stall.
const WINDOW: Duration = Duration::from_secs(20);

/// Bytes that arrive within this time are counted together, so that the window has 80 numbers on any link.
const BUCKET: Duration = Duration::from_millis(250);

/// The shortest time to divide by: the first chunk of a run does not show the rate of the link.
const LEAST: Duration = Duration::from_secs(1);

/// Bytes per second in a sliding window.
#[derive(Debug, Default)]
pub(super) struct TransferRate {
    began: Option<Instant>,
    buckets: VecDeque<(Instant, u64)>,
}

impl TransferRate {
    pub(super) fn add(&mut self, bytes: u64, now: Instant) {
        self.began.get_or_insert(now);
        match self.buckets.back_mut() {
            Some((since, sum)) if now.saturating_duration_since(*since) < BUCKET => *sum += bytes,
            _ => self.buckets.push_back((now, bytes)),
        }
        while let Some((since, _)) = self.buckets.front()
            && now.saturating_duration_since(*since) > WINDOW
        {
            self.buckets.pop_front();
        }
    }

    /// Bytes per second until `now`; 0 before the first byte.
    pub(super) fn per_second(&self, now: Instant) -> u64 {
        let Some(began) = self.began else {
            return 0;
        };
        let inside = |since: &Instant| now.saturating_duration_since(*since) <= WINDOW;
        let bytes: u64 = self
            .buckets
            .iter()
            .filter(|(since, _)| inside(since))
            .map(|(_, sum)| sum)
            .sum();
        let span = now.saturating_duration_since(began).clamp(LEAST, WINDOW);
        u64::try_from(u128::from(bytes) * 1000 / span.as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_link_and_forgets() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut rate = TransferRate::default();
        assert_eq!(rate.per_second(at(0)), 0);
        rate.add(500, at(0));
        assert_eq!(rate.per_second(at(0)), 500, "the divisor is at least a second");
        for tick in 1..600 {
            rate.add(10, at(tick * 100));
        }
        // 100 a second for a minute; a bucket more or less is on the window's edge.
        assert!(
            (99..=102).contains(&rate.per_second(at(60_000))),
            "{}",
            rate.per_second(at(60_000))
        );
        assert!(rate.buckets.len() <= 80, "{}", rate.buckets.len());
        // Then nothing: half the window, all of it.
        assert!(
            (49..=51).contains(&rate.per_second(at(70_000))),
            "{}",
            rate.per_second(at(70_000))
        );
        assert_eq!(rate.per_second(at(80_500)), 0);
    }
}
