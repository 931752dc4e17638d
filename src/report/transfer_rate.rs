//! How fast bytes arrive, over the last seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How far back to look: long enough to even out the gaps between blobs, short enough to notice a stall.
const WINDOW: Duration = Duration::from_secs(20);

/// Bytes that arrive within this time are counted together, so that a window is 80 numbers however fast the link.
const GRAIN: Duration = Duration::from_millis(250);

/// The shortest time to divide by: the first chunk of a run says nothing about the link.
const LEAST: Duration = Duration::from_secs(1);

/// Bytes per second in a sliding window.
#[derive(Debug, Default)]
pub(super) struct TransferRate {
    began: Option<Instant>,
    grains: VecDeque<(Instant, u64)>,
}

impl TransferRate {
    pub(super) fn add(&mut self, bytes: u64, now: Instant) {
        self.began.get_or_insert(now);
        match self.grains.back_mut() {
            Some((since, sum)) if now.saturating_duration_since(*since) < GRAIN => *sum += bytes,
            _ => self.grains.push_back((now, bytes)),
        }
        while let Some((since, _)) = self.grains.front()
            && now.saturating_duration_since(*since) > WINDOW
        {
            self.grains.pop_front();
        }
    }

    /// Bytes per second until `now`; 0 before the first byte.
    pub(super) fn per_second(&self, now: Instant) -> u64 {
        let Some(began) = self.began else {
            return 0;
        };
        let inside = |since: &Instant| now.saturating_duration_since(*since) <= WINDOW;
        let bytes: u64 = self
            .grains
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
        assert_eq!(rate.per_second(at(0)), 500, "no less than a second is divided by");
        for tick in 1..600 {
            rate.add(10, at(tick * 100));
        }
        // 100 a second for a minute; a grain more or less lies on the window's edge.
        assert!(
            (99..=102).contains(&rate.per_second(at(60_000))),
            "{}",
            rate.per_second(at(60_000))
        );
        assert!(rate.grains.len() <= 80, "{}", rate.grains.len());
        // Then nothing: half the window, all of it.
        assert!(
            (49..=51).contains(&rate.per_second(at(70_000))),
            "{}",
            rate.per_second(at(70_000))
        );
        assert_eq!(rate.per_second(at(80_500)), 0);
    }
}
