//! Describes when a run has to end, and what will be missing then.

use std::fmt;

use serde::Serialize;

use super::{Count, Size, Time};

/// Missing images that a forecast names, the largest first. The report lists every image anyway.
const NAMED: usize = 10;

/// What ends a run early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum DeadlineSource {
    /// `--deadline`
    Flag,
    /// The deadline of the Kubernetes Job.
    Job,
    /// The upgrade begins (`spec.upgradeAt` of an UpgradeConfig).
    Upgrade,
}

/// When a run ends, even if it is not finished: the earliest of its deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeadlineReport {
    /// The time, by the clock at the start of the run.
    pub time: Time,
    /// Which deadline is the earliest.
    pub source: DeadlineSource,
}

impl fmt::Display for DeadlineReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.time;
        match self.source {
            DeadlineSource::Flag => write!(f, "`--deadline` ends the run at {time}"),
            DeadlineSource::Job => write!(f, "Kubernetes kills the Job at {time}"),
            DeadlineSource::Upgrade => write!(f, "the run ends when the upgrade begins, at {time}"),
        }
    }
}

/// What will not be in the store when the run has to end, at the current rate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    /// When the run has to end.
    pub deadline: DeadlineReport,
    /// How many images will be missing; 0 if that was different before.
    pub images: u64,
    /// Compressed bytes that are left to download for them.
    pub bytes: u64,
    /// The largest of them, by their normalised references.
    pub largest: Vec<String>,
}

impl Forecast {
    /// A forecast for these missing images, each with its bytes.
    pub fn new(deadline: DeadlineReport, mut missing: Vec<(String, u64)>) -> Self {
        missing.sort_by(|(_, a), (_, b)| b.cmp(a));
        Self {
            deadline,
            images: missing.len() as u64,
            bytes: missing
                .iter()
                .fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes)),
            largest: missing.into_iter().take(NAMED).map(|(name, _)| name).collect(),
        }
    }

    /// The line for people; `label` shortens a name.
    pub(super) fn line(&self, label: impl Fn(&str) -> String) -> String {
        let Self { deadline, images, .. } = self;
        let end = match deadline.source {
            DeadlineSource::Flag | DeadlineSource::Job => format!("its deadline at {}", deadline.time),
            DeadlineSource::Upgrade => format!("the start of the upgrade at {}", deadline.time),
        };
        if *images == 0 {
            return format!("at this rate the run meets {end} after all");
        }
        let names: Vec<String> = self.largest.iter().map(|name| label(name)).collect();
        let more = match images.saturating_sub(names.len() as u64) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!(
            "at this rate the run misses {end}: {} will not be in the store by then, {}: {}{more}",
            Count(*images as usize, "image"),
            Size(self.bytes),
            names.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_names_the_largest_images_and_counts_the_others() {
        let time = Time(jiff::Timestamp::UNIX_EPOCH);
        let deadline = |source| DeadlineReport { time, source };
        let missing = (0..12_u64).map(|n| (format!("r/{n}"), n << 20)).collect();
        let forecast = Forecast::new(deadline(DeadlineSource::Upgrade), missing);
        assert_eq!(
            forecast.line(|name| name.replace("r/", "")),
            "at this rate the run misses the start of the upgrade at 1970-01-01T00:00:00Z: 12 images will not be in the \
             store by then, 66.0 MiB: 11, 10, 9, 8, 7, 6, 5, 4, 3, 2 and 2 more"
        );
        assert_eq!(
            Forecast::new(deadline(DeadlineSource::Flag), Vec::new()).line(str::to_owned),
            "at this rate the run meets its deadline at 1970-01-01T00:00:00Z after all"
        );
    }
}
