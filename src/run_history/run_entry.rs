//! Defines one run of the history.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::report::{Condition, ImagePhase, Phase, Report, Status, Step, Time};

/// The longest message of a condition, and the longest reason, in bytes.
const TEXT: usize = 500;

/// How many requested images are recorded: several releases with all their operators.
const IMAGES: usize = 2048;

/// The longest name of an image that is recorded. A name has at most 255 bytes, and a digest 71.
const NAME: usize = 512;

/// How far a run is. The words of UpgradeConfig's history have these analogues:
///
/// | UpgradeConfig | here | why |
/// |---|---|---|
/// | `New`, `Pending` | none | a run is recorded when it starts to work, and no schedule precedes it |
/// | `Upgrading` | `Pulling` | |
/// | `Upgraded` | `Completed` | |
/// | `Failed` | `Failed` | |
/// | none | `Stopped` | a deadline or a signal is not a failure, because another run continues |
/// | `Unknown` | `Unknown` | |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunPhase {
    /// It is at work, or it was killed and no run has started since.
    Pulling,
    /// Every requested image is in the store.
    Completed,
    /// Something is missing, and no deadline or signal is the reason.
    Failed,
    /// A deadline or a signal ended it early.
    Stopped,
    /// It was killed.
    Unknown,
}

impl From<Phase> for RunPhase {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Succeeded => Self::Completed,
            Phase::Timeout | Phase::Interrupted => Self::Stopped,
            Phase::UnrecoverableError => Self::Failed,
        }
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunEntry {
    /// Unique for each run.
    pub id: String,
    /// The version of the release, once its payload was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The release image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// How far it is.
    pub phase: RunPhase,
    /// Why it is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it began.
    pub start_time: Time,
    /// When it ended, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_time: Option<Time>,
    /// Its exit code, if it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// Compressed bytes that it planned to download.
    #[serde(default)]
    pub bytes_planned: u64,
    /// Bytes that it downloaded.
    #[serde(default)]
    pub bytes_fetched: u64,
    /// Numbers of images.
    #[serde(default)]
    pub images: ImageNumbers,
    /// The steps that it reached, the one that changed last first.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// The version spec, as `spec` prints it; absent if it was not usable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Value>,
    /// The requested images; absent if none is known, and in all entries but the newest that has a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<RequestedImages>,
}

/// Numbers of images; the fields are those of the report's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageNumbers {
    /// Requested and not excluded.
    pub wanted: u64,
    /// Of these, in the store before.
    pub present: u64,
    /// Of these, pulled.
    pub pulled: u64,
    /// Of these, failed.
    pub failed: u64,
}

/// The images that a version spec requests, with those that the release and the operator catalogs name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestedImages {
    /// Whether these are all: the release and every catalog were read.
    pub is_complete: bool,
    /// The images, without those that are excluded.
    pub images: Vec<RequestedImage>,
}

/// One requested image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestedImage {
    /// The normalised reference.
    pub name: String,
    /// How far the run came with it.
    pub state: ImagePhase,
    /// The digest to which a registry resolved it in that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The id of the image of that digest in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl RunEntry {
    /// The entry of a run with this report, when it `ends` or before.
    pub(super) fn of(
        report: &Report,
        id: &str,
        image: Option<String>,
        spec: Option<Value>,
        ends: bool,
    ) -> Self {
        let totals = &report.totals;
        let mut conditions: Vec<Condition> = report
            .conditions
            .iter()
            .filter(|it| it.is_reached())
            .cloned()
            .collect();
        conditions.reverse();
        conditions.sort_by_key(|condition| std::cmp::Reverse(condition.last_transition_time));
        for condition in &mut conditions {
            cut(&mut condition.message);
        }
        let mut reason = report.first_reason().filter(|_| ends);
        reason.iter_mut().for_each(cut);
        let mut version = report.version.clone();
        version.iter_mut().for_each(cut);
        Self {
            id: id.to_owned(),
            version,
            image,
            phase: if ends {
                report.phase.into()
            } else {
                RunPhase::Pulling
            },
            reason,
            start_time: report.start_time,
            complete_time: ends.then_some(report.complete_time),
            exit_code: ends.then_some(report.exit_code),
            bytes_planned: totals.bytes_planned,
            bytes_fetched: totals.bytes_fetched,
            images: ImageNumbers {
                wanted: totals.images_wanted,
                present: totals.images_present,
                pulled: totals.images_pulled,
                failed: totals.images_failed,
            },
            conditions,
            spec,
            requested: RequestedImages::of(report),
        }
    }

    /// Removes what may be large.
    pub(super) fn shorten(&mut self) {
        if let Some(requested) = &mut self.requested {
            requested.is_complete = false;
            requested.images.clear();
        }
        (self.spec, self.image) = (None, None);
    }
}

impl RequestedImages {
    /// From the report; none if no image was listed.
    fn of(report: &Report) -> Option<Self> {
        let is_done = |step| {
            let mut conditions = report.conditions.iter();
            conditions.any(|it| it.step == step && it.status == Status::True)
        };
        let wanted = || report.images.iter().filter(|it| it.state != ImagePhase::Excluded);
        let images: Vec<RequestedImage> = wanted()
            .filter(|image| image.name.len() <= NAME)
            .take(IMAGES)
            .map(|image| RequestedImage {
                name: image.name.clone(),
                state: image.state,
                digest: None,
                id: None,
            })
            .collect();
        (!images.is_empty()).then(|| Self {
            is_complete: [Step::Spec, Step::Release, Step::Operators]
                .into_iter()
                .all(is_done)
                && images.len() == wanted().count(),
            images,
        })
    }
}

fn cut(text: &mut String) {
    if text.len() > TEXT {
        text.truncate(text.floor_char_boundary(TEXT - '…'.len_utf8()));
        text.push('…');
    }
}
