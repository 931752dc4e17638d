//! Defines the JSON report of a run: `apiVersion: spoke-precache/v1`, `kind: Report`.

use serde::Serialize;

use super::{
    Condition, DeadlineReport, Forecast, ImagePhase, MediumBytes, MediumReport, OperatorReport,
    RequesterKind, SignaturePolicyReport, SignatureReport, Time, UpgradeReport,
};

/// The report. [`super::Recorder::report`] makes it at any time: after an early stop, images are pending and steps
/// unfinished.
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
    /// What stopped it early, if anything did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The version of the release, once its payload was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When the run began.
    pub start_time: Time,
    /// When it ended.
    pub complete_time: Time,
    /// One for each step.
    pub conditions: Vec<Condition>,
    /// Sums.
    pub totals: ReportTotals,
    /// Each operator that is asked for, once for each catalog that has it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<OperatorReport>,
    /// Each image that is wanted: the release's, the operators', the additional ones; then those that are excluded.
    pub images: Vec<ImageReport>,
    /// The media that were used, or of which something failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<MediumReport>,
    /// The rate limit, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_rate: Option<LimitReport>,
    /// When the run had to end, if anything ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DeadlineReport>,
    /// When the upgrade begins, if an UpgradeConfig states it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgrade_at: Option<Time>,
    /// The last forecast of what would be missing then, if the run did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
    /// The signature policy of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature_policy: Option<SignaturePolicyReport>,
    /// Whether an upgrade finds its images in the store; only with `verify --for-upgrade`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<UpgradeReport>,
    /// Warnings for the reader; none of them ended the run.
    pub warnings: Vec<String>,
}

/// The limit of `--limit-rate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitReport {
    /// The limit at the start, and the next one: `5 Mbit/s until 22:00 (UTC), then 50 Mbit/s`.
    pub at_start: String,
    /// The whole schedule: `22:00-04:00 50 Mbit/s, else 5 Mbit/s`.
    pub schedule: String,
}

/// How a run ended; the words are those of the hub's states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Phase {
    /// Every wanted image is in the store.
    Succeeded,
    /// A deadline passed; another run continues from there.
    Timeout,
    /// A signal ended it early: from a person, or from the cluster with the pod. Another run continues from there.
    Interrupted,
    /// It failed, and a person must act.
    UnrecoverableError,
}

impl Phase {
    /// The phase of an exit code: 124 is a deadline, 128+n a signal. The Job's own deadline arrives as a signal too;
    /// [`super::Event::Stopped`] reports it if it is known.
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
pub struct ReportTotals {
    /// Images that are wanted and not excluded.
    pub images_wanted: u64,
    /// Of these, in the store before.
    pub images_present: u64,
    /// Of these, pulled by this run.
    pub images_pulled: u64,
    /// Of these, failed.
    pub images_failed: u64,
    /// Requested operators, counted once for each catalog that contains them.
    pub operators_wanted: u64,
    /// Of these, found in a catalog.
    pub operators_found: u64,
    /// Of these, failed.
    pub operators_failed: u64,
    /// Layers that this run committed to the store.
    pub layers_pulled: u64,
    /// Of these, copied from layers of the store with the same content.
    pub layers_from_store: u64,
    /// Layers of images to pull that were in the store before.
    pub layers_reused: u64,
    /// Compressed bytes that the plans found missing, and what is downloaded instead of sources and blobs of
    /// media that failed.
    pub bytes_planned: u64,
    /// Downloaded bytes of blobs; more than planned if some had to be downloaded again.
    pub bytes_fetched: u64,
    /// Bytes of blobs that were copied from media.
    pub bytes_from_media: u64,
    /// Bytes of an earlier run in the spool that this run used. Bytes that were wrong and were downloaded again do not
    /// count.
    pub bytes_resumed: u64,
    /// Bytes of the blobs that were not downloaded because their layers were copied.
    pub bytes_from_store: u64,
    /// Bytes that deltas saved: the blobs of the layers made from deltas, minus all deltas, also those that failed.
    pub bytes_saved: u64,
}

impl ReportTotals {
    /// Wanted images that are in the store now.
    pub fn images_here(&self) -> u64 {
        self.images_present + self.images_pulled
    }

    /// Wanted images that are not.
    pub fn images_missing(&self) -> u64 {
        self.images_wanted.saturating_sub(self.images_here())
    }
}

/// One image of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageReport {
    /// The normalised reference.
    pub name: String,
    /// Its requester; absent if the run ended before it was listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<RequesterKind>,
    /// How far it is.
    pub state: ImagePhase,
    /// Why it failed or is excluded; what it waited for last, if it is pending; the additional image store, if it is
    /// present there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its signatures and the rule of the signature policy; absent if they were not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signatures: Option<SignatureReport>,
    /// Compressed bytes to download for it, without blobs that are counted with another image.
    pub bytes: u64,
    /// The old image from whose files layers of it were made: the digest of its config.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<String>,
    /// Bytes of the deltas that were applied for it.
    #[serde(skip_serializing_if = "is_zero")]
    pub delta_bytes: u64,
    /// Why a delta or a layer of the store could not be used for it, for the first that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_reason: Option<String>,
    /// What of it came from media, without blobs that are counted with another image.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<MediumBytes>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_code_has_its_phase() {
        for code in 0..=u8::MAX {
            let phase = match code {
                0 => Phase::Succeeded,
                // The codes of `exit_code`, and those that it does not use.
                1..=8 | 9..=123 | 125..=128 => Phase::UnrecoverableError,
                124 => Phase::Timeout,
                // 129 is SIGHUP, 130 SIGINT, 143 SIGTERM.
                129..=255 => Phase::Interrupted,
            };
            assert_eq!(Phase::of_exit_code(code), phase, "{code}");
        }
    }
}
