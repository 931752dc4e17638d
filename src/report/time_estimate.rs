//! When a run will be done, said as soon as the rate is known, and whether that is before its deadline.
//!
//! It is said again when a further plan adds to what is to be fetched; in between the progress lines correct it. Whether the
//! deadline will be met is said when the answer changes.

use std::fmt;
use std::time::{Duration, Instant};

use super::progress::ProgressSnapshot;
use super::{Event, Size, Span};

/// After so long of receiving the rate says something of the link: it has left TCP's slow start and the first small blobs
/// behind.
const KNOWN_AFTER: Duration = Duration::from_secs(10);

/// Between two looks at the deadline.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Between two lines about it, for the rate of a shared link goes up and down.
const TELL_EVERY: Duration = Duration::from_secs(5 * 60);

/// Looks ahead.
#[derive(Debug, Default)]
pub(super) struct TimeEstimate {
    end: Option<Instant>,
    /// When the first byte came.
    began: Option<Instant>,
    looked: Option<Instant>,
    is_told: bool,
    /// Bytes of the last plan.
    planned: u64,
    /// What was said of the deadline last, and when.
    told_late: Option<(bool, Instant)>,
}

/// What is worth a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Estimate {
    /// What the rest takes.
    Rest {
        /// To fetch, in bytes.
        bytes: u64,
        /// Bytes per second.
        rate: u64,
        /// How long that takes.
        left: Duration,
    },
    /// It takes longer than there is time.
    TooLate {
        /// What it takes.
        left: Duration,
        /// Until the deadline.
        until: Duration,
    },
    /// After all it does not.
    InTime {
        /// What it takes.
        left: Duration,
        /// Until the deadline.
        until: Duration,
    },
}

impl TimeEstimate {
    /// Looks ahead from `now`, when `event` happened, if it is time to; `snapshot` says how far the run is.
    pub(super) fn note(
        &mut self,
        event: &Event,
        now: Instant,
        snapshot: impl FnOnce() -> ProgressSnapshot,
    ) -> Vec<Estimate> {
        match event {
            Event::Deadline { at } => self.end = Some(*at),
            Event::Planned { bytes, .. } => {
                self.is_told &= *bytes <= self.planned;
                self.planned = *bytes;
            }
            Event::BlobReceived { .. } if self.is_time(now) => return self.look(now, snapshot()),
            _ => {}
        }
        Vec::new()
    }

    fn is_time(&mut self, now: Instant) -> bool {
        let began = *self.began.get_or_insert(now);
        let passed = |since: Instant| now.saturating_duration_since(since);
        passed(began) >= KNOWN_AFTER && self.looked.is_none_or(|looked| passed(looked) >= LOOK_EVERY)
    }

    fn look(&mut self, now: Instant, snapshot: ProgressSnapshot) -> Vec<Estimate> {
        self.looked = Some(now);
        let Some(left) = snapshot.time_left() else {
            return Vec::new();
        };
        let mut outlooks = Vec::new();
        if !std::mem::replace(&mut self.is_told, true) {
            let bytes = snapshot.bytes.saturating_sub(snapshot.fetched);
            let rate = snapshot.rate;
            outlooks.push(Estimate::Rest { bytes, rate, left });
        }
        let Some(end) = self.end else {
            return outlooks;
        };
        let until = end.saturating_duration_since(now);
        let was_late = self.told_late.is_some_and(|(late, _)| late);
        let is_late = left > until;
        let may_tell = self
            .told_late
            .is_none_or(|(_, told)| now.saturating_duration_since(told) >= TELL_EVERY);
        if is_late != was_late && may_tell {
            self.told_late = Some((is_late, now));
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
            Self::Rest { bytes, rate, left } => {
                let tenths = u128::from(rate) * 80 / 1_000_000;
                write!(
                    f,
                    "{} to go: about {} at {}.{} Mbit/s",
                    Size(bytes),
                    Span(left),
                    tenths / 10,
                    tenths % 10
                )
            }
            Self::TooLate { left, until } => write!(
                f,
                "at this rate it will not be done before the deadline: about {} to go, which is in {}; what is whole by then \
                 stays, and a later run goes on",
                Span(left),
                Span(until)
            ),
            Self::InTime { left, until } => write!(
                f,
                "at this rate it will be done before the deadline after all: about {} to go, which is in {}",
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

    /// What is said at each second, one download going on, with `bytes` to fetch at the rate of that second.
    fn said(deadline: Option<u64>, bytes: u64, rates: impl IntoIterator<Item = u64>) -> Vec<(u64, String)> {
        let start = Instant::now();
        let mut forecast = TimeEstimate::default();
        let mut said = Vec::new();
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
            said.extend(outlooks.iter().map(|outlook| (second, outlook.to_string())));
        }
        said
    }

    #[test]
    fn says_what_the_rest_takes_once_the_rate_is_known() {
        let rate = 2_512_500;
        let expected = "15.7 GiB to go: about 1 h 51 min at 20.1 Mbit/s".to_owned();
        assert_eq!(said(None, 16_900 * MB, [rate; 100]), [(10, expected)]);
        assert_eq!(said(None, 20 * MB, [rate; 8]), [], "done before it is known");
        assert_eq!(said(None, 20_000 * MB, [0; 100]), [], "nothing comes");
    }

    #[test]
    fn the_same_plan_again_is_no_reason_to_say_it_again() {
        let start = Instant::now();
        let mut forecast = TimeEstimate::default();
        let mut said = Vec::new();
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
            let came = Event::BlobReceived {
                blob: Digest::of(b""),
                bytes: MB,
            };
            for event in [plan, came] {
                said.extend(forecast.note(&event, now, snapshot).iter().map(|_| second));
            }
        }
        assert_eq!(said, [10, 40]);
    }

    #[test]
    fn says_whether_that_is_before_the_deadline_and_when_that_changes() {
        let in_time = said(Some(10_000), 16_900 * MB, [2_500_000; 100]);
        assert_eq!(in_time.len(), 1, "{in_time:?}");
        // Almost two hours are left; then the link has ten times the rate, and five minutes later next to none.
        let rates = [2_500_000; 60].into_iter().chain([25_000_000; 500]);
        let changes = said(Some(5_000), 16_900 * MB, rates.chain([1_000; 100]));
        let seconds: Vec<u64> = changes.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [10, 10, 310, 610], "{changes:?}");
        assert_eq!(
            changes[1].1,
            "at this rate it will not be done before the deadline: about 1 h 52 min to go, which is in 1 h 23 min; what is \
             whole by then stays, and a later run goes on"
        );
        assert!(
            changes[2].1.starts_with("at this rate it will be done before"),
            "{changes:?}"
        );
    }
}
