//! Holds the kubelet's `imageGCHighThresholdPercent`, and calculates the space that must stay free below it. The value comes
//! from a flag or from the kubelet (`cluster::cluster_info`).

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// How full the image file system may become, in percent, before the kubelet removes unused images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Threshold(u8);

/// The text is no valid percentage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the threshold must be a whole percentage from 1 to 100: `{0}`")]
pub struct ThresholdError(String);

impl Threshold {
    /// Checks that `percent` is in 1 to 100.
    pub fn new(percent: u8) -> Result<Self, ThresholdError> {
        match percent {
            1..=100 => Ok(Self(percent)),
            _ => Err(ThresholdError(percent.to_string())),
        }
    }

    /// The percentage, 1 to 100.
    pub fn percent(self) -> u8 {
        self.0
    }

    /// The fewest available bytes at which the kubelet removes no images. It collects when
    /// `100 - available*100/capacity >= threshold` in integers (kubernetes `image_gc_manager.go`), and the division
    /// rounds down: with 85, it collects as soon as less than 16 % are available, not 15. At 100 it never does
    /// (kubernetes `kubelet.go`: "set 100, Disable image GC").
    pub(super) fn reserve(self, capacity: u64) -> u64 {
        if self.0 == 100 {
            return 0;
        }
        let reserve = (u128::from(capacity) * u128::from(101 - self.0)).div_ceil(100);
        u64::try_from(reserve).unwrap_or(u64::MAX)
    }
}

impl Default for Threshold {
    /// The kubelet's default and OpenShift's.
    fn default() -> Self {
        Self(85)
    }
}

impl FromStr for Threshold {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        match text.parse() {
            Ok(percent) => Self::new(percent),
            Err(_) => Err(ThresholdError(text.to_owned())),
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    /// The kubelet's own formula.
    fn kubelet_collects(available: u64, capacity: u64, threshold: u8) -> bool {
        let usage = 100 - i128::from(available) * 100 / i128::from(capacity);
        usage >= i128::from(threshold)
    }

    proptest! {
        #[test]
        fn the_kubelet_starts_exactly_below_the_reserve(
            capacity in 1..=1_u64 << 50,
            threshold in 1..=99_u8,
        ) {
            let reserve = Threshold::new(threshold).unwrap().reserve(capacity);
            prop_assert!(!kubelet_collects(reserve, capacity, threshold));
            prop_assert!(kubelet_collects(reserve - 1, capacity, threshold));
        }
    }

    #[test]
    fn at_100_nothing_is_reserved() {
        assert_eq!(Threshold::new(100).unwrap().reserve(u64::MAX), 0);
    }

    #[test]
    fn only_percentages_are_thresholds() {
        assert_eq!("85".parse(), Ok(Threshold::default()));
        for text in ["0", "101", "-1", "85%", "", "300"] {
            let error = text.parse::<Threshold>().unwrap_err();
            assert!(error.to_string().ends_with(&format!("`{text}`")), "{error}");
        }
    }
}
