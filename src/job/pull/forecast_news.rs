//! Decides when a forecast is news: the first with missing images, and later ones that differ from it by much.

use std::time::{Duration, Instant};

/// Time between two forecasts, because the rate of a shared link varies.
const EVERY: Duration = Duration::from_secs(5 * 60);

/// The number of missing images has to change by one part in this many.
const PART: usize = 4;

/// What was forecast last during one run.
#[derive(Debug, Default)]
pub(in crate::job) struct ForecastNews {
    /// When, and how many images were missing.
    last: Option<(Instant, usize)>,
}

impl ForecastNews {
    /// Whether a forecast of so many missing images is news. If it is, later forecasts are compared with it.
    pub(super) fn is_news(&mut self, missing: usize, now: Instant) -> bool {
        let is_news = match self.last {
            None => missing > 0,
            Some((when, before)) => {
                let changed = missing.abs_diff(before);
                let is_opposite = (missing == 0) != (before == 0);
                let is_other = is_opposite || changed > 0 && changed * PART >= before;
                is_other && now.saturating_duration_since(when) >= EVERY
            }
        };
        if is_news {
            self.last = Some((now, missing));
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_changes_are_news_and_not_often() {
        let (start, mut forecasts) = (Instant::now(), ForecastNews::default());
        let mut news =
            |minute: u64, missing| forecasts.is_news(missing, start + Duration::from_secs(60 * minute));
        for (minute, missing, expected) in [
            (0, 0, false),
            (1, 20, true),
            (2, 0, false),
            (7, 22, false),
            (8, 15, true),
            (9, 0, false),
            (13, 0, true),
            (30, 0, false),
            (31, 1, true),
        ] {
            assert_eq!(news(minute, missing), expected, "{minute}");
        }
    }
}
