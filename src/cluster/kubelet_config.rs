//! Defines the settings of the kubelet that decide about cached images, as its API and its files have them.

use std::time::Duration;

use jiff::SignedDuration;
use serde::Deserialize;

use super::pull_credentials_policy::PullVerification;

/// The fields of a KubeletConfiguration; files may lack all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KubeletConfig {
    /// Disk usage in percent at which the kubelet removes images.
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold: Option<u8>,
    /// As Go writes it: `336h0m0s`.
    #[serde(rename = "imageMaximumGCAge")]
    image_maximum_gc_age: Option<String>,
    /// Whether the kubelet uses images that it did not pull.
    #[serde(flatten)]
    pub pull_verification: PullVerification,
}

impl KubeletConfig {
    /// The age at which the kubelet removes unused images. `None` if it never does, which is the default and 0.
    pub fn image_maximum_gc_age(&self) -> Option<Duration> {
        let age = self.image_maximum_gc_age.as_ref()?.parse::<SignedDuration>();
        Duration::try_from(age.ok()?).ok().filter(|age| !age.is_zero())
    }

    /// Replaces what a later file has.
    pub fn override_with(&mut self, later: Self) {
        self.image_gc_high_threshold = later.image_gc_high_threshold.or(self.image_gc_high_threshold);
        if later.image_maximum_gc_age.is_some() {
            self.image_maximum_gc_age = later.image_maximum_gc_age;
        }
        self.pull_verification.override_with(later.pull_verification);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_age_of_zero_is_no_age() {
        for (age, seconds) in [
            (r#""0s""#, None),
            (r#""336h0m0s""#, Some(336 * 3600)),
            (r#""1h30m0.5s""#, Some(5400)),
            (r#""-1h""#, None),
            (r#""soon""#, None),
            ("null", None),
        ] {
            let config: KubeletConfig =
                serde_json::from_str(&format!(r#"{{"imageMaximumGCAge": {age}}}"#)).unwrap();
            let found = config.image_maximum_gc_age().map(|age| age.as_secs());
            assert_eq!(found, seconds, "{age}");
        }
    }
}
