//! Estimates how many bytes the link delivers until the run has to end.

use std::time::Duration;

use jiff::Timestamp;

use super::link_rate::LinkRate;
use crate::registry::LimitSettings;

/// Bytes that arrive in this part of the time left are in time: the last layers still have to be unpacked and written, and
/// the rate of a shared link varies.
const SAFE_PART: (u32, u32) = (4, 5);

/// What could arrive if the link were this many times as fast as its best rate.
const OPTIMISM: u64 = 2;

/// The rate is known after bytes arrived for this time, or for [`KNOWN_PART`] of the time left: nothing is given up by a
/// measurement that is short in comparison with the time that could still be used.
const KNOWN_AFTER: Duration = Duration::from_secs(10);
const KNOWN_PART: u32 = 4;

/// How many bytes can arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    /// At the recent rate, with a margin; 0 as long as no byte has arrived.
    pub(super) likely: u64,
    /// At the recent rate, without a margin; `None` as long as the rate is not known.
    pub(super) expected: Option<u64>,
    /// More cannot be hoped for. While the rate is not known, only `--limit-rate` bounds it.
    pub(super) at_most: u64,
}

impl Capacity {
    /// Within `left` from `now`, under a limit that may change with the time of day.
    pub(super) fn new(rate: &LinkRate, left: Duration, limit: &LimitSettings, now: Timestamp) -> Self {
        let is_known = rate.busy() >= KNOWN_AFTER.min(left / KNOWN_PART);
        let within = |time: Duration, rate: u64| match limit.rate.is_unlimited() {
            true => u64::try_from(u128::from(rate) * time.as_millis() / 1000).unwrap_or(u64::MAX),
            false => most_bytes(time, |bytes| limit.remaining_time(bytes, rate.max(1), now)),
        };
        let (recent, best) = (rate.recent().filter(|it| *it > 0), rate.best());
        let (part, whole) = SAFE_PART;
        Self {
            likely: recent.map_or(0, |recent| within(left * part / whole, recent)),
            expected: recent.filter(|_| is_known).map(|recent| within(left, recent)),
            at_most: match best.filter(|best| is_known && *best > 0) {
                Some(best) => within(left, best.saturating_mul(OPTIMISM)),
                None if limit.rate.is_unlimited() => u64::MAX,
                None => most_bytes(left, |bytes| limit.transfer_time(bytes, u64::MAX, now)),
            },
        }
    }
}

/// The most bytes, to one part in 64, whose `time` is at most `left`.
fn most_bytes(left: Duration, time: impl Fn(u64) -> Duration) -> u64 {
    let mut low = 0;
    let mut step: u64 = 1 << 12;
    while time(step) <= left {
        low = step;
        match step.checked_mul(2) {
            Some(twice) => step = twice,
            None => return u64::MAX,
        }
    }
    let mut high = step;
    for _ in 0..6 {
        let middle = low + (high - low) / 2;
        match time(middle) <= left {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Instant;

    use super::*;

    fn rate(per_second: u64, seconds: u64) -> LinkRate {
        let (mut rate, start) = (LinkRate::default(), Instant::now());
        for second in 0..=seconds {
            rate.note(second * per_second, start + Duration::from_secs(second));
        }
        rate
    }

    fn limit(text: &str) -> LimitSettings {
        LimitSettings {
            rate: text.parse().unwrap(),
            ..LimitSettings::default()
        }
    }

    #[test]
    fn without_a_rate_only_the_limit_bounds_what_can_arrive() {
        let (left, now) = (Duration::from_secs(100), Timestamp::UNIX_EPOCH);
        let unknown = Capacity::new(&rate(0, 0), left, &LimitSettings::default(), now);
        assert_eq!(
            (unknown.likely, unknown.expected, unknown.at_most),
            (0, None, u64::MAX)
        );
        let limited = Capacity::new(&rate(0, 0), left, &limit("8Mbit"), now);
        assert_eq!((limited.likely, limited.expected), (0, None));
        assert!(
            (98_000_000..=100_000_000).contains(&limited.at_most),
            "{limited:?}"
        );
    }

    #[test]
    fn a_short_measurement_gives_nothing_up() {
        let (now, unlimited) = (Timestamp::UNIX_EPOCH, LimitSettings::default());
        let capacity = |seconds: u64, left: u64| {
            Capacity::new(&rate(1000, seconds), Duration::from_secs(left), &unlimited, now)
        };
        assert_eq!(
            capacity(3, 100),
            Capacity {
                likely: 80_000,
                expected: None,
                at_most: u64::MAX
            }
        );
        let known = |likely, expected, at_most| Capacity {
            likely,
            expected: Some(expected),
            at_most,
        };
        assert_eq!(capacity(10, 100), known(80_000, 100_000, 200_000));
        assert_eq!(
            capacity(3, 12),
            known(9_600, 12_000, 24_000),
            "a quarter of the time left"
        );
        assert_eq!(capacity(3, 0), known(0, 0, 0));
    }

    #[test]
    fn a_limit_that_changes_with_the_time_of_day_is_foreseen() {
        // An hour at 1 Mbit/s is 450 MB, of which headers are a part; then 100 times as much.
        let settings = limit("00:00-01:00=1Mbit,else=100Mbit");
        let at = |left| Capacity::new(&rate(120_000, 20), left, &settings, Timestamp::UNIX_EPOCH);
        let (hour, two) = (at(Duration::from_secs(3_600)), at(Duration::from_secs(7_200)));
        assert!(
            (400_000_000..=450_000_000).contains(&hour.expected.unwrap()),
            "{hour:?}"
        );
        assert!(two.expected.unwrap() > 40_000_000_000, "{two:?}");
    }
}
