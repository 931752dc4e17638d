//! Defines the events of a run, and the observers that receive them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{
    DeadlineReport, Forecast, ImageLabel, LimitReport, OperatorReport, Phase, SignaturePolicyReport,
    SignatureReport, Time, TimeLeft, UpgradeReport,
};
use crate::oci::Digest;

/// Receives the events of a run. Called from tasks and threads: must be quick and must not block.
pub trait Observer: Send + Sync {
    /// Handles `event`.
    fn observe(&self, event: Event);
}

/// Passes events on to several observers, in their order.
pub struct Fanout(pub Vec<Arc<dyn Observer>>);

impl Observer for Fanout {
    fn observe(&self, event: Event) {
        for observer in &self.0 {
            observer.observe(event.clone());
        }
    }
}

/// A step of a run; each becomes a condition of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Step {
    /// The version spec was read.
    Spec,
    /// The store was opened, and this program may write to it.
    Store,
    /// The release has a valid signature.
    ReleaseVerified,
    /// The release image was pulled and its payload read.
    Release,
    /// The operator indexes were pulled, and their catalogs contain the requested operators.
    Operators,
    /// Every image's manifest and config are known.
    Resolve,
    /// There is space for the plan.
    Preflight,
    /// Every layer and image is in the store.
    Pull,
    /// The store was read again and contains every requested image.
    Verify,
    /// An upgrade finds every image in the store. Only with `verify --for-upgrade`, so not in [`Step::ALL`].
    UpgradeReady,
}

impl Step {
    /// The steps of every run, in their order.
    pub const ALL: [Self; 9] = [
        Self::Spec,
        Self::Store,
        Self::ReleaseVerified,
        Self::Release,
        Self::Operators,
        Self::Resolve,
        Self::Preflight,
        Self::Pull,
        Self::Verify,
    ];
}

/// What kind of requester an image has; the JSON field is named `source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RequesterKind {
    /// The release: its image or its payload.
    Release,
    /// An operator of a catalog, or the catalog itself.
    Operator,
    /// The version spec's list of additional images.
    Additional,
}

/// How far an image is; the JSON field is named `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImagePhase {
    /// It was in the store before.
    Present,
    /// This run pulled it.
    Pulled,
    /// It could not be pulled.
    Failed,
    /// It is in the store, but damaged. The report calls it failed, and the reason describes the damage.
    #[serde(rename = "failed", skip_deserializing)]
    Damaged,
    /// A pattern excludes it.
    Excluded,
    /// Its pull has not started or not ended, or it was removed from the store again.
    Pending,
}

impl ImagePhase {
    /// Whether it is wanted and cannot be used.
    pub(crate) fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::Damaged)
    }
}

/// One request to the registries, over all its attempts.
#[derive(Debug, Default)]
pub struct Operation {
    /// Unique in this process.
    pub id: u64,
    /// The images that need it, by their names in the report.
    pub images: Vec<String>,
}

/// Something that happened in a run.
#[derive(Clone, Debug)]
pub enum Event {
    /// A step started.
    StepStarted(Step),
    /// A step ended; with `reason` and `message` as in a Kubernetes condition.
    StepEnded {
        /// Which one.
        step: Step,
        /// Whether it achieved its goal.
        ok: bool,
        /// One word in CamelCase.
        reason: &'static str,
        /// A sentence for people.
        message: String,
    },
    /// A step ended without a result, and the run continues; with `reason` and `message` as in a Kubernetes condition.
    StepInconclusive {
        /// Which one.
        step: Step,
        /// One word in CamelCase.
        reason: &'static str,
        /// A sentence for people.
        message: String,
    },
    /// A release's payload was read.
    ReleaseRead {
        /// The release's version.
        version: String,
    },
    /// The signature policy of the node is known.
    SignaturePolicy(SignaturePolicyReport),
    /// An image's stored or downloaded signatures were checked.
    SignaturesChecked {
        /// The normalised reference.
        name: String,
        /// The result.
        signatures: SignatureReport,
    },
    /// It is known whether an upgrade finds its images in the store.
    UpgradeAssessed(Arc<UpgradeReport>),
    /// A reader of the report should know this; the run continues.
    Warned {
        /// For people.
        message: String,
    },
    /// The run has a rate limit.
    RateLimited {
        /// The limit.
        limit: LimitReport,
        /// Estimates the time left under this limit.
        rest: TimeLeft,
    },
    /// The run was stopped before it was done.
    Stopped {
        /// Whether by a deadline.
        phase: Phase,
        /// The cause, as far as it is known.
        why: String,
    },
    /// The run has a deadline.
    Deadline {
        /// The moment.
        at: Instant,
        /// The same for people.
        report: DeadlineReport,
        /// When the upgrade begins, also if the deadline is earlier.
        upgrade_at: Option<Time>,
    },
    /// What will be missing at the deadline. Sent as soon as that is known, and again if it changes by much.
    Forecast(Forecast),
    /// An image is listed, wanted or excluded; its result follows. A later plan may list it again.
    ImageListed {
        /// The normalised reference.
        name: String,
        /// Its name for people.
        label: ImageLabel,
        /// Its first requester.
        requester: RequesterKind,
        /// Compressed bytes to download for it, without blobs that are listed with another image.
        bytes: u64,
    },
    /// The state of a requested operator: first that it is requested, then what each catalog contains of it.
    Operator(OperatorReport),
    /// A plan is made and replaces the previous one; a run plans again in each round and when it learns more. The numbers
    /// are those of the whole run.
    Planned {
        /// Images that are wanted and not excluded.
        images: u64,
        /// Of these, in the store already.
        present: u64,
        /// Unique compressed bytes to download in this run, including those that earlier plans downloaded.
        bytes: u64,
        /// Unique compressed bytes to copy from media, in addition.
        bytes_from_media: u64,
    },
    /// A blob is planned, and may start soon.
    BlobListed {
        /// Digest of the compressed blob.
        blob: Digest,
        /// The normalised reference of the first image that needs it.
        name: String,
        /// The name of this image for people.
        label: ImageLabel,
    },
    /// The download of a blob starts, or its copy from a medium; `resumed` bytes are in the spool already.
    BlobStarted {
        /// Digest of the compressed blob.
        blob: Digest,
        /// Its length in bytes.
        size: u64,
        /// Bytes of an earlier attempt, which are not downloaded again.
        resumed: u64,
    },
    /// New bytes of a blob were downloaded.
    BlobReceived {
        /// Which blob.
        blob: Digest,
        /// How many bytes since the last such event.
        bytes: u64,
    },
    /// Bytes of a blob were downloaded that the spool has already: the registry ignored the requested range.
    BlobRepeated {
        /// Which blob.
        blob: Digest,
        /// How many bytes since the last such event.
        bytes: u64,
    },
    /// New bytes of a blob were copied from a medium.
    BlobCopied {
        /// Which blob.
        blob: Digest,
        /// The path of the medium.
        medium: Arc<str>,
        /// How many bytes since the last such event.
        bytes: u64,
    },
    /// A blob that was planned from a medium is downloaded, because no medium has it any more.
    BlobNotOnMedia {
        /// Which blob.
        blob: Digest,
        /// Its bytes that are not in the spool.
        bytes: u64,
    },
    /// Something on a medium is damaged, wrong or unreadable; the run continues without it.
    MediumFailed {
        /// The path of the medium.
        medium: Arc<str>,
        /// What is wrong, and what is used instead.
        reason: String,
    },
    /// A blob is in the spool and its digest matched.
    BlobVerified {
        /// Which blob.
        blob: Digest,
    },
    /// The download of a blob failed, or was incomplete when the run ended.
    BlobAbandoned {
        /// Which blob.
        blob: Digest,
    },
    /// A request was sent to a registry or a token server.
    Requested {
        /// What for.
        operation: Arc<Operation>,
        /// The server: `host[:port]`.
        host: String,
    },
    /// Almost no bytes arrive. Repeated as long as that lasts.
    Waiting {
        /// What for.
        operation: Arc<Operation>,
        /// What was requested, from which server, and since when.
        why: String,
    },
    /// Bytes arrive again.
    WaitEnded {
        /// What for.
        operation: Arc<Operation>,
    },
    /// A request failed and will be retried.
    Retrying {
        /// What for.
        operation: Arc<Operation>,
        /// What was requested, from which server, and the error, without secrets.
        why: String,
        /// Time until the next attempt.
        after: Duration,
    },
    /// A layer was unpacked from the tar that a delta makes.
    DeltaApplied {
        /// The normalised reference of the first image that needs the layer.
        name: String,
        /// Digest of the delta. It counts once, also if several layers are made from it.
        delta: Digest,
        /// The old image whose files it read, the first one if there are several: digest of its config.
        source: Digest,
        /// Length of the delta in bytes.
        bytes: u64,
        /// Length in bytes of the blob that was not downloaded.
        whole_bytes: u64,
    },
    /// A layer was made from some chunks of its blob and from files of this node.
    ChunksUsed {
        /// The normalised reference of the first image that needs the layer.
        name: String,
        /// Digest of the blob.
        blob: Digest,
        /// Bytes of it that were downloaded.
        bytes: u64,
        /// Its length in bytes.
        whole_bytes: u64,
    },
    /// No layer could be made from what the plan had chosen, for instance a delta. Another source or the blob is used instead.
    SourceFailed {
        /// The normalised reference of the first image that needs the layer.
        name: String,
        /// Digest of the delta or of the other source. It counts once, also if several layers were to be made from it.
        source: Digest,
        /// The cause, and what is used instead.
        reason: String,
        /// Bytes of it that were downloaded in vain.
        bytes: u64,
        /// Missing bytes of what is downloaded instead.
        more_bytes: u64,
    },
    /// A layer was unpacked from another layer of the store with the same content.
    LayerCopied {
        /// Digest of the blob that was not downloaded. It counts once, also if several layers have it.
        blob: Digest,
        /// Length of that blob in bytes.
        bytes: u64,
    },
    /// Layers of images to pull are in the store already.
    LayersReused {
        /// How many; each counts once.
        layers: u64,
    },
    /// A layer was committed to the store.
    LayerCommitted {
        /// Length of its compressed blob in bytes.
        bytes: u64,
    },
    /// The result of an image. Every listed image has one, also if it was present or is excluded.
    ImageDone {
        /// The normalised reference.
        name: String,
        /// The result.
        state: ImagePhase,
        /// The first reason if it failed; the additional image store if it is present there.
        reason: Option<String>,
    },
}
