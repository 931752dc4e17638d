//! Estimates when a run will be done.
//!
//! The first estimate is logged as soon as the rate is known, and another one when a later plan adds bytes; in between the
//! progress lines show the time left. What will be missing at a deadline is an event of its own ([`super::Forecast`]).

use std::fmt;
use std::time::{Duration, Instant};

use super::progress::ProgressSnapshot;
use super::{Event, Size, Span};

/// The rate is reliable after this time: TCP's slow start and the first small blobs are over.
const KNOWN_AFTER: Duration = Duration::from_secs(10);

/// Time between two checks whether there is something to log.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// Makes the estimates.
#[derive(Debug, Default)]
pub(super) struct TimeEstimate {
    /// When the first byte arrived.
    began: Option<Instant>,
    checked: Option<Instant>,
    is_logged: bool,
    /// Bytes of the last plan.
    planned: u64,
}

/// How long the remaining downloads take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Estimate {
    /// To download, in bytes.
    bytes: u64,
    /// Bytes per second.
    rate: u64,
    /// How long that takes.
    left: Duration,
}

impl TimeEstimate {
    /// Handles `event`, which happened `now`; `snapshot` returns how far the run is.
    pub(super) fn note(
        &mut self,
        event: &Event,
        now: Instant,
        snapshot: impl FnOnce() -> ProgressSnapshot,
    ) -> Option<Estimate> {
        match event {
            Event::Planned { bytes, .. } => {
                self.is_logged &= *bytes <= self.planned;
                self.planned = *bytes;
            }
            Event::BlobReceived { .. } if self.is_time(now) => return self.check(now, snapshot()),
            _ => {}
        }
        None
    }

    fn is_time(&mut self, now: Instant) -> bool {
        let began = *self.began.get_or_insert(now);
        let passed = |since: Instant| now.saturating_duration_since(since);
        passed(began) >= KNOWN_AFTER && self.checked.is_none_or(|checked| passed(checked) >= CHECK_EVERY)
    }

    fn check(&mut self, now: Instant, snapshot: ProgressSnapshot) -> Option<Estimate> {
        self.checked = Some(now);
        let left = snapshot.time_left()?;
        let is_new = !std::mem::replace(&mut self.is_logged, true);
        is_new.then(|| Estimate {
            bytes: snapshot.to_download(),
            rate: snapshot.rate,
            left,
        })
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = u128::from(self.rate) * 80 / 1_000_000;
        write!(
            f,
            "{} left to download: about {} at {}.{} Mbit/s",
            Size(self.bytes),
            Span(self.left),
            tenths / 10,
            tenths % 10
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::Digest;

    const MB: u64 = 1_000_000;

    /// The log lines and their seconds, for one download of `bytes` at the rate of each second.
    fn logged(bytes: u64, rates: impl IntoIterator<Item = u64>) -> Vec<(u64, String)> {
        let start = Instant::now();
        let mut forecast = TimeEstimate::default();
        let mut lines = Vec::new();
        let nothing = ProgressSnapshot::default;
        let planned = Event::Planned {
            images: 1,
            present: 0,
            bytes,
            bytes_from_media: 0,
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
        assert_eq!(logged(16_900 * MB, [rate; 100]), [(10, expected)]);
        assert_eq!(logged(20 * MB, [rate; 8]), [], "done before it is known");
        assert_eq!(logged(20_000 * MB, [0; 100]), [], "no byte arrives");
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
                bytes_from_media: 0,
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
}
