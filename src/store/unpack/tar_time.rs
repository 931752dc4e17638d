//! Times of tar entries, and how containers/storage replaces those that Go cannot set.

use rustix::fs::Timespec;

const NANOS: i64 = 1_000_000_000;

/// Seconds and nanoseconds since the epoch; the nanoseconds count forward, also before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) struct TarTime {
    secs: i64,
    nanos: i64,
}

/// The last time that Go's `time.Duration` can represent: in the year 2262.
const LAST: TarTime = TarTime {
    secs: i64::MAX / NANOS,
    nanos: i64::MAX % NANOS,
};

impl TarTime {
    pub(in crate::store) fn from_secs(secs: i64) -> Self {
        Self { secs, nanos: 0 }
    }

    /// A PAX time, `[-]seconds[.fraction]`, to the nanosecond.
    pub(in crate::store) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let secs: i64 = whole.parse().ok()?;
        if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let nanos = fraction
            .bytes()
            .chain(std::iter::repeat(b'0'))
            .take(9)
            .fold(0, |nanos, digit| nanos * 10 + i64::from(digit - b'0'));
        if whole.starts_with('-') && nanos > 0 {
            let (secs, nanos) = (secs.checked_sub(1)?, NANOS - nanos);
            return Some(Self { secs, nanos });
        }
        Some(Self { secs, nanos })
    }

    /// The time that containers/storage sets on anything but a symbolic link: times before the epoch, and after the
    /// last one that Go can represent, become the epoch (`pkg/system`: `Chtimes`).
    pub(in crate::store) fn settable(self) -> Timespec {
        let Self { secs, nanos } = if self.secs < 0 || self > LAST {
            Self::from_secs(0)
        } else {
            self
        };
        timespec(secs, nanos)
    }

    /// The time that containers/storage sets on a symbolic link: any time, as a 64-bit number of nanoseconds that may
    /// overflow (`pkg/archive`: `timeToTimespec`).
    pub(in crate::store) fn settable_on_symlink(self) -> Timespec {
        let nanos = self.secs.wrapping_mul(NANOS).wrapping_add(self.nanos);
        timespec(nanos.div_euclid(NANOS), nanos.rem_euclid(NANOS))
    }
}

fn timespec(tv_sec: i64, nanos: i64) -> Timespec {
    Timespec {
        tv_sec,
        tv_nsec: nanos as _,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_pax_times_as_go_does() {
        let time = |secs, nanos| Some(TarTime { secs, nanos });
        let cases = [
            ("1", time(1, 0)),
            ("+1", time(1, 0)),
            ("1.", time(1, 0)),
            ("1.5", time(1, 500_000_000)),
            ("1.0000000019", time(1, 1)),
            ("-1", time(-1, 0)),
            ("-1.5", time(-2, 500_000_000)),
            ("-0.5", time(-1, 500_000_000)),
            ("", None),
            (".5", None),
            ("1.x", None),
            ("1.-5", None),
            ("1e3", None),
            ("9223372036854775808", None),
        ];
        for (text, expected) in cases {
            assert_eq!(TarTime::parse(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn clips_to_what_go_sets() {
        let secs = |spec: Timespec| spec.tv_sec;
        assert_eq!(secs(TarTime::from_secs(-5).settable()), 0);
        assert_eq!(secs(TarTime::from_secs(-5).settable_on_symlink()), -5);
        assert_eq!(secs(TarTime::from_secs(9_223_372_036).settable()), 9_223_372_036);
        assert_eq!(secs(TarTime::from_secs(9_223_372_037).settable()), 0);
    }
}
