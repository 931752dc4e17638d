//! Estimates when a run will be done, and whether that is before its deadline.
//!
//! The first estimate is logged as soon as the rate is known, and another one when a later plan adds bytes; in between the
//! progress lines show the time left. Whether the deadline will be met is logged when the answer changes.

use std::fmt;
use std::time::{Duration, Instant};

use super::progress::ProgressSnapshot;
use super::{Event, Size, Span};

/// The rate is reliable after this time: TCP's slow start and the first small blobs are over.
const KNOWN_AFTER: Duration = Duration::from_secs(10);

/// Time between two comparisons with the deadline.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// Time between two log lines about the deadline, because the rate of a shared link varies.
const LOG_EVERY: Duration = Duration::from_secs(5 * 60);

/// Makes the estimates.
#[derive(Debug, Default)]
pub(super) struct TimeEstimate {
    end: Option<Instant>,
    /// When the first byte arrived.
    began: Option<Instant>,
    checked: Option<Instant>,
    is_logged: bool,
    /// Bytes of the last plan.
    planned: u64,
    /// The last line about the deadline: whether the run is late, and when it was logged.
    logged_late: Option<(bool, Instant)>,
}

/// An estimate to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Estimate {
    /// How long the remaining downloads take.
    Remaining {
        /// To download, in bytes.
        bytes: u64,
        /// Bytes per second.
        rate: u64,
        /// How long that takes.
        left: Duration,
    },
    /// The deadline is earlier.
    TooLate {
        /// How long the remaining downloads take.
        left: Duration,
        /// Until the deadline.
        until: Duration,
    },
    /// The deadline is later after all.
    InTime {
        /// How long the remaining downloads take.
        left: Duration,
        /// Until the deadline.
        until: Duration,
    },
}

impl TimeEstimate {
    /// Handles `event`, which happened `now`; `snapshot` returns how far the run is.
    pub(super) fn note(
        &mut self,
        event: &Event,
        now: Instant,
        snapshot: impl FnOnce() -> ProgressSnapshot,
    ) -> Vec<Estimate> {
        match event {
            Event::Deadline { at } => self.end = Some(*at),
            Event::Planned { bytes, .. } => {
                self.is_logged &= *bytes <= self.planned;
                self.planned = *bytes;
            }
            Event::BlobReceived { .. } if self.is_time(now) => return self.check(now, snapshot()),
            _ => {}
        }
        Vec::new()
    }

    fn is_time(&mut self, now: Instant) -> bool {
        let began = *self.began.get_or_insert(now);
        let passed = |since: Instant| now.saturating_duration_since(since);
        passed(began) >= KNOWN_AFTER && self.checked.is_none_or(|checked| passed(checked) >= CHECK_EVERY)
    }

    fn check(&mut self, now: Instant, snapshot: ProgressSnapshot) -> Vec<Estimate> {
        self.checked = Some(now);
        let Some(left) = snapshot.time_left() else {
            return Vec::new();
        };
        let mut outlooks = Vec::new();
        if !std::mem::replace(&mut self.is_logged, true) {
            let bytes = snapshot.bytes.saturating_sub(snapshot.fetched);
            let rate = snapshot.rate;
            outlooks.push(Estimate::Remaining { bytes, rate, left });
        }
        let Some(end) = self.end else {
            return outlooks;
        };
        let until = end.saturating_duration_since(now);
        let was_late = self.logged_late.is_some_and(|(late, _)| late);
        let is_late = left > until;
        let may_log = self
            .logged_late
            .is_none_or(|(_, logged)| now.saturating_duration_since(logged) >= LOG_EVERY);
        if is_late != was_late && may_log {
            self.logged_late = Some((is_late, now));
            outlooks.push(match is_late {
                true => Estimate::TooLate { left, until },
                false => Estimate::InTime { left, until },
            });
        }
        outlooks
    }
}

impl Estimate {
    /// Whether it is a warning.
    pub(super) fn is_warning(&self) -> bool {
        matches!(self, Self::TooLate { .. })
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Remaining { bytes, rate, left } => {
                let tenths = u128::from(rate) * 80 / 1_000_000;
                write!(
                    f,
                    "{} left to download: about {} at {}.{} Mbit/s",
                    Size(bytes),
                    Span(left),
                    tenths / 10,
                    tenths % 10
                )
            }
            Self::TooLate { left, until } => write!(
                f,
                "at this rate the run misses its deadline: it needs about {}, and the deadline is in {}; complete images stay \
                 in the store, and a later run continues",
                Span(left),
                Span(until)
            ),
            Self::InTime { left, until } => write!(
                f,
                "at this rate the run meets its deadline after all: it needs about {}, and the deadline is in {}",
                Span(left),
                Span(until)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::Digest;

    const MB: u64 = 1_000_000;

    /// The log lines and their seconds, for one download of `bytes` at the rate of each second.
    fn logged(deadline: Option<u64>, bytes: u64, rates: impl IntoIterator<Item = u64>) -> Vec<(u64, String)> {
        let start = Instant::now();
        let mut forecast = TimeEstimate::default();
        let mut lines = Vec::new();
        let nothing = ProgressSnapshot::default;
        if let Some(seconds) = deadline {
            let at = start + Duration::from_secs(seconds);
            forecast.note(&Event::Deadline { at }, start, nothing);
        }
        let planned = Event::Planned {
            images: 1,
            present: 0,
            bytes,
        };
        forecast.note(&planned, start, nothing);
        let mut fetched = 0;
        for (second, rate) in (0..).zip(rates) {
            let blob = Digest::of(b"");
            let event = Event::BlobReceived { blob, bytes: rate };
            fetched += rate;
            let snapshot = || ProgressSnapshot {
                images: 1,
                bytes,
                fetched,
                rate,
                downloads: 1,
                ..ProgressSnapshot::default()
            };
            let now = start + Duration::from_secs(second);
            let outlooks = forecast.note(&event, now, snapshot);
            lines.extend(outlooks.iter().map(|outlook| (second, outlook.to_string())));
        }
        lines
    }

    #[test]
    fn the_estimate_is_logged_once_the_rate_is_known() {
        let rate = 2_512_500;
        let expected = "15.7 GiB left to download: about 1 h 51 min at 20.1 Mbit/s".to_owned();
        assert_eq!(logged(None, 16_900 * MB, [rate; 100]), [(10, expected)]);
        assert_eq!(logged(None, 20 * MB, [rate; 8]), [], "done before it is known");
        assert_eq!(logged(None, 20_000 * MB, [0; 100]), [], "no byte arrives");
    }

    #[test]
    fn the_same_plan_does_not_repeat_the_estimate() {
        let start = Instant::now();
        let mut forecast = TimeEstimate::default();
        let mut lines = Vec::new();
        let mut planned = 1000 * MB;
        for second in 0..60 {
            if second == 40 {
                planned += MB;
            }
            let now = start + Duration::from_secs(second);
            let snapshot = || ProgressSnapshot {
                bytes: planned,
                rate: MB,
                downloads: 1,
                ..ProgressSnapshot::default()
            };
            let (images, present) = (1, 0);
            let plan = Event::Planned {
                images,
                present,
                bytes: planned,
            };
            let received = Event::BlobReceived {
                blob: Digest::of(b""),
                bytes: MB,
            };
            for event in [plan, received] {
                lines.extend(forecast.note(&event, now, snapshot).iter().map(|_| second));
            }
        }
        assert_eq!(lines, [10, 40]);
    }

    #[test]
    fn a_missed_deadline_is_logged_and_when_that_changes() {
        let in_time = logged(Some(10_000), 16_900 * MB, [2_500_000; 100]);
        assert_eq!(in_time.len(), 1, "{in_time:?}");
        // Almost two hours are left; then the link has ten times the rate, and five minutes later next to none.
        let rates = [2_500_000; 60].into_iter().chain([25_000_000; 500]);
        let changes = logged(Some(5_000), 16_900 * MB, rates.chain([1_000; 100]));
        let seconds: Vec<u64> = changes.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [10, 10, 310, 610], "{changes:?}");
        assert_eq!(
            changes[1].1,
            "at this rate the run misses its deadline: it needs about 1 h 52 min, and the deadline is in 1 h 23 min; \
             complete images stay in the store, and a later run continues"
        );
        assert!(
            changes[2]
                .1
                .starts_with("at this rate the run meets its deadline"),
            "{changes:?}"
        );
    }
}
