//! Determines when a run has to end: by `--deadline`, with its Kubernetes Job, or because the upgrade begins.
//!
//! Only the first two allow another run, which continues from the spool. So bytes of an image that is not whole in time are
//! lost only if the upgrade is the first: CRI-O does not read the spool.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::cancel::StopReason;
use crate::report::{DeadlineReport, DeadlineSource, Time};

/// When the upgrade begins.
#[derive(Clone, Copy, Debug)]
pub struct UpgradeTime {
    /// By the wall clock, as the cluster states it.
    pub time: Timestamp,
    /// The same moment by the monotonic clock, from the difference to the wall clock at the start. A clock that is set
    /// during the run does not move it.
    pub at: Instant,
}

impl UpgradeTime {
    /// From the time that an UpgradeConfig states.
    pub fn new(time: Timestamp) -> Option<Self> {
        let left = Duration::try_from(time.duration_since(Timestamp::now())).unwrap_or_default();
        let at = Instant::now().checked_add(left)?;
        Some(Self { time, at })
    }
}

/// The moments at which a run has to end, even if it is not finished.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunEnd {
    /// `--deadline`
    pub deadline: Option<Instant>,
    /// When this process will be killed: the deadline of the Kubernetes Job. The run schedules its work by it and continues
    /// until then, because the hub treats any earlier end as a failure.
    pub job: Option<Instant>,
    /// The upgrade begins, and CRI-O pulls what is missing.
    pub upgrade: Option<UpgradeTime>,
}

impl RunEnd {
    /// The earliest of them.
    pub fn first(&self) -> Option<(Instant, DeadlineReport)> {
        let upgrade = self.upgrade.map(|upgrade| upgrade.at);
        let ends = [
            (upgrade, DeadlineSource::Upgrade),
            (self.deadline, DeadlineSource::Flag),
            (self.job, DeadlineSource::Job),
        ];
        let ends = ends.into_iter().filter_map(|(at, source)| Some((at?, source)));
        let (at, source) = ends.min_by_key(|(at, _)| *at)?;
        let time = match (source, self.upgrade) {
            (DeadlineSource::Upgrade, Some(upgrade)) => upgrade.time,
            _ => {
                let now = Timestamp::now();
                let left = at.saturating_duration_since(Instant::now());
                now.checked_add(left).unwrap_or(Timestamp::MAX)
            }
        };
        let time = Time(time);
        Some((at, DeadlineReport { time, source }))
    }

    /// When and why the run stops itself.
    pub fn stop(&self) -> Option<(Instant, StopReason)> {
        let deadline = self.deadline.map(|at| (at, StopReason::Deadline));
        let upgrade = self
            .upgrade
            .map(|upgrade| (upgrade.at, StopReason::Upgrade(upgrade.time)));
        deadline.into_iter().chain(upgrade).min_by_key(|(at, _)| *at)
    }

    /// The start of the upgrade, if nothing else ends the run before.
    pub(super) fn upgrade_if_first(&self) -> Option<UpgradeTime> {
        let (_, first) = self.first()?;
        self.upgrade.filter(|_| first.source == DeadlineSource::Upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_end_counts_and_the_job_stops_nothing_itself() {
        let now = Instant::now();
        let after = |seconds: u64| now + Duration::from_secs(seconds);
        let upgrade = |seconds: u64| UpgradeTime {
            time: Timestamp::UNIX_EPOCH,
            at: after(seconds),
        };
        for (deadline, job, begins, first, stops) in [
            (None, None, None, None, None),
            (Some(3), None, None, Some(DeadlineSource::Flag), Some(3)),
            (None, Some(3), None, Some(DeadlineSource::Job), None),
            (None, None, Some(3), Some(DeadlineSource::Upgrade), Some(3)),
            (Some(2), None, Some(3), Some(DeadlineSource::Flag), Some(2)),
            (Some(4), Some(9), Some(3), Some(DeadlineSource::Upgrade), Some(3)),
            (Some(4), Some(1), Some(3), Some(DeadlineSource::Job), Some(3)),
        ] {
            let end = RunEnd {
                deadline: deadline.map(after),
                job: job.map(after),
                upgrade: begins.map(upgrade),
            };
            assert_eq!(end.first().map(|(_, report)| report.source), first, "{end:?}");
            assert_eq!(end.stop().map(|(at, _)| at), stops.map(after), "{end:?}");
            let is_upgrade = first == Some(DeadlineSource::Upgrade);
            assert_eq!(end.upgrade_if_first().is_some(), is_upgrade, "{end:?}");
        }
    }
}
