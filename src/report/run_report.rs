//! The report: what a run did, for machines. `apiVersion: spoke-precache/v1`, `kind: Report`.

use serde::Serialize;

use super::{Condition, ImagePhase, OperatorReport, RequesterKind, Time};

/// The outcome of a run. Made by [`super::Recorder::report`], whenever one is wanted: after a run that was cut off,
/// images are pending and steps unfinished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// [`super::API_VERSION`]
    pub api_version: &'static str,
    /// `Report`
    pub kind: &'static str,
    /// How it ended, in the hub's words.
    pub phase: Phase,
    /// The process's exit code.
    pub exit_code: u8,
    /// What cut it off, if anything did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When the run began.
    pub start_time: Time,
    /// When it ended.
    pub complete_time: Time,
    /// One for each step.
    pub conditions: Vec<Condition>,
    /// Sums.
    pub totals: Totals,
    /// Each operator that is asked for, once for each catalog that has it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<OperatorReport>,
    /// Each image that is wanted: the release's, the operators', the additional ones; then those that are excluded.
    pub images: Vec<ImageReport>,
    /// How much may come in a second, if that is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_rate: Option<LimitReport>,
    /// What the reader should know though it stopped nothing.
    pub warnings: Vec<String>,
}

/// What `--limit-rate` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitReport {
    /// What held when the run began, and what came next: `5 Mbit/s until 22:00 (UTC), then 50 Mbit/s`.
    pub at_start: String,
    /// All of it: `22:00-04:00 50 Mbit/s, else 5 Mbit/s`.
    pub schedule: String,
}

/// How a run ended; the words are those of the hub's states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Phase {
    /// Every wanted image is in the store.
    Succeeded,
    /// Its time was over; a later run goes on from there.
    Timeout,
    /// Somebody ended it before its time: a person, or the cluster with its pod. A later run goes on from there.
    Interrupted,
    /// Somebody has to do something.
    UnrecoverableError,
}

impl Phase {
    /// The phase that goes with an exit code: 124 is a deadline's, 128+n a signal's. The Job's own deadline comes as a signal
    /// too; whoever knows says so with [`super::Event::Stopped`].
    pub(super) fn of_exit_code(code: u8) -> Self {
        match code {
            0 => Self::Succeeded,
            124 => Self::Timeout,
            129.. => Self::Interrupted,
            _ => Self::UnrecoverableError,
        }
    }
}

/// Sums over a run. `images_wanted` is present, pulled, failed and pending together; `operators_wanted` is found, failed and
/// pending together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Images that are wanted and not excluded.
    pub images_wanted: u64,
    /// Of these, in the store before.
    pub images_present: u64,
    /// Of these, put there by this run.
    pub images_pulled: u64,
    /// Of these, not to be had.
    pub images_failed: u64,
    /// Operators that are asked for, each once for each catalog that has it.
    pub operators_wanted: u64,
    /// Of these, found in a catalog.
    pub operators_found: u64,
    /// Of these, not to be had.
    pub operators_failed: u64,
    /// Layers that this run put into the store.
    pub layers_pulled: u64,
    /// Layers of images to pull that were in the store before.
    pub layers_reused: u64,
    /// Compressed bytes that the plans found missing.
    pub bytes_planned: u64,
    /// Bytes of blobs that crossed the link; more than planned when something had to be fetched again.
    pub bytes_fetched: u64,
    /// Bytes in the spool that an earlier run had fetched and this one had not to. What turned out to be wrong and was
    /// fetched again is not among them.
    pub bytes_resumed: u64,
}

impl Totals {
    /// Wanted images that are in the store now.
    pub fn images_here(&self) -> u64 {
        self.images_present + self.images_pulled
    }

    /// Wanted images that are not.
    pub fn images_missing(&self) -> u64 {
        self.images_wanted.saturating_sub(self.images_here())
    }
}

/// What became of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageReport {
    /// The normalised reference.
    pub name: String,
    /// Who asks for it; absent if the run ended before it was listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<RequesterKind>,
    /// What became of it.
    pub state: ImagePhase,
    /// Why, when it failed or is excluded; for what it waited last, when it is pending; where, when it is present in an additional image store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Compressed bytes that were to be fetched for it, those that another image brings left out.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_code_has_its_phase() {
        for (code, phase) in [
            (0, Phase::Succeeded),
            (1, Phase::UnrecoverableError),
            (7, Phase::UnrecoverableError),
            (124, Phase::Timeout),
            (128, Phase::UnrecoverableError),
            (130, Phase::Interrupted),
            (143, Phase::Interrupted),
        ] {
            assert_eq!(Phase::of_exit_code(code), phase, "{code}");
        }
    }
}
