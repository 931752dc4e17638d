//! States whether a plan can be pulled before the upgrade begins: the rate that it needs, and whether `--limit-rate` allows it.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::registry::LimitSettings;
use crate::report::{Span, Time};

/// Added to the needed rate, in percent: headers, manifests, and the time until the last layers are unpacked.
const MARGIN: u128 = 10;

/// What a plan needs to be whole before the upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeOutlook {
    /// When the upgrade begins.
    upgrade_at: Time,
    /// How long until then.
    seconds_left: u64,
    /// The lowest average rate that suffices, in bits per second.
    needed_bits_per_second: u64,
    /// How long the downloads take at the limit, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds_at_limit: Option<u64>,
    /// Whether the limit allows that rate; absent without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    fits_limit: Option<bool>,
}

impl UpgradeOutlook {
    /// For `bytes` to download from `now`.
    pub fn new(bytes: u64, upgrade_at: Timestamp, limit: &LimitSettings, now: Timestamp) -> Self {
        let left = Duration::try_from(upgrade_at.duration_since(now)).unwrap_or_default();
        let bits = u128::from(bytes) * 8 * (100 + MARGIN) / 100;
        let needed = (bits * 1000).div_ceil(left.as_millis().max(1));
        let at_limit = limit.transfer_time(bytes, u64::MAX, now);
        let is_limited = !limit.rate.is_unlimited();
        Self {
            upgrade_at: Time(upgrade_at),
            seconds_left: left.as_secs(),
            needed_bits_per_second: u64::try_from(needed).unwrap_or(u64::MAX),
            seconds_at_limit: is_limited.then_some(at_limit.as_secs()),
            fits_limit: is_limited.then_some(at_limit <= left),
        }
    }
}

impl fmt::Display for UpgradeOutlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = |seconds: u64| Span(Duration::from_secs(seconds));
        write!(
            f,
            "upgrade:   begins at {}, in {}: ",
            self.upgrade_at,
            span(self.seconds_left)
        )?;
        let tenths = self.needed_bits_per_second.div_ceil(100_000);
        match (self.seconds_at_limit, self.fits_limit) {
            _ if self.needed_bits_per_second == 0 => f.write_str("nothing is left to download"),
            (Some(takes), Some(false)) => write!(
                f,
                "too early, the downloads take {} at the limit; {}.{} Mbit/s would suffice",
                span(takes),
                tenths / 10,
                tenths % 10
            ),
            _ => write!(
                f,
                "the downloads need at least {}.{} Mbit/s until then",
                tenths / 10,
                tenths % 10
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_needed_rate_is_stated_and_whether_the_limit_allows_it() {
        let limit = |text: &str| LimitSettings {
            rate: text.parse().unwrap(),
            ..LimitSettings::default()
        };
        let two_hours = Timestamp::from_second(7_200).unwrap();
        let line = |bytes, limit: &LimitSettings| {
            UpgradeOutlook::new(bytes, two_hours, limit, Timestamp::UNIX_EPOCH).to_string()
        };
        let begins = "upgrade:   begins at 1970-01-01T02:00:00Z, in 2 h 0 min: ";
        assert_eq!(
            line(0, &LimitSettings::default()),
            format!("{begins}nothing is left to download")
        );
        let needs = format!("{begins}the downloads need at least 11.0 Mbit/s until then");
        assert_eq!(line(9_000_000_000, &LimitSettings::default()), needs);
        assert_eq!(line(9_000_000_000, &limit("20Mbit")), needs);
        assert_eq!(
            line(9_000_000_000, &limit("5Mbit")),
            format!(
                "{begins}too early, the downloads take 4 h 0 min at the limit; 11.0 Mbit/s would suffice"
            )
        );
        // Nothing for an hour, almost, and enough afterwards.
        assert_eq!(
            line(9_000_000_000, &limit("00:00-01:00=64kbit,else=50Mbit")),
            needs
        );
    }
}
