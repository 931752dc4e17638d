//! Formats timestamps as Kubernetes does.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A moment in RFC 3339, UTC, whole seconds, like `metav1.Time`: `2026-11-20T13:39:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Timestamp);

impl Time {
    /// Time since `earlier`; zero if the clock was set back in between.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::try_from(self.0.duration_since(earlier.0)).unwrap_or_default()
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.strftime("%Y-%m-%dT%H:%M:%SZ").fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn moments_have_whole_seconds() {
        let time = |text: &str| Time(text.parse().unwrap());
        let (start, end) = (time("2026-11-20T14:39:00.5+01:00"), time("2026-11-20T13:40:01Z"));
        assert_eq!(start.to_string(), "2026-11-20T13:39:00Z");
        assert_eq!(end.since(start), Duration::from_millis(60_500));
        assert_eq!(start.since(end), Duration::ZERO);
    }
}
