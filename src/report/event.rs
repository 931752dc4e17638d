//! What happens during a run, said by those who do it, shown by whoever listens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{LimitReport, OperatorReport, Phase, TimeLeft};
use crate::oci::Digest;

/// Listens to a run. Called from tasks and threads alike: must be quick and must not block.
pub trait Observer: Send + Sync {
    /// Takes note of `event`.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Step {
    /// The version spec was read.
    Spec,
    /// The store was opened and is one that may be written to.
    Store,
    /// The release image was pulled and its payload read.
    Release,
    /// The operator indexes were pulled and their catalogs have what is asked for.
    Operators,
    /// Every image's manifest and config are known.
    Resolve,
    /// There is space for what the plan needs.
    Preflight,
    /// Every layer and image is in the store.
    Pull,
    /// The store was read again and holds all that was asked for.
    Verify,
}

impl Step {
    /// All of them, in the order in which a run comes to them.
    pub const ALL: [Self; 8] = [
        Self::Spec,
        Self::Store,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ImagePhase {
    /// It was in the store before.
    Present,
    /// This run put it there.
    Pulled,
    /// It could not be had.
    Failed,
    /// It is in the store, but not as it should be. To the report's readers it failed, and the reason says how.
    #[serde(rename = "failed")]
    Damaged,
    /// A pattern excludes it.
    Excluded,
    /// Its turn has not come, or it was removed from the store again.
    Pending,
}

impl ImagePhase {
    /// Whether it is wanted and cannot be used.
    pub(crate) fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::Damaged)
    }
}

/// What registries are asked for until they have given it, over however many attempts.
#[derive(Debug, Default)]
pub struct Operation {
    /// No other one has this.
    pub id: u64,
    /// The images that need it, by their names in the report.
    pub images: Vec<String>,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A step began.
    StepStarted(Step),
    /// A step ended; `reason` is one CamelCase word, `message` a sentence, as in a Kubernetes condition.
    StepEnded {
        /// Which one.
        step: Step,
        /// Whether it achieved what it is for.
        ok: bool,
        /// One word in CamelCase.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// Something that the reader of the report should know and that stops nothing.
    Warned {
        /// For people.
        message: String,
    },
    /// How much may come in a second.
    RateLimited {
        /// What holds.
        limit: LimitReport,
        /// What that makes of the time left.
        rest: TimeLeft,
    },
    /// The run was told to stop before it was done.
    Stopped {
        /// By time or by something else.
        phase: Phase,
        /// What it was, as far as is known.
        why: String,
    },
    /// When the run is to end, done or not.
    Deadline {
        /// The moment.
        at: Instant,
    },
    /// An image is on the list, wanted or excluded; its fate comes later. May be said again by a later plan.
    ImageListed {
        /// The normalised reference.
        name: String,
        /// Who asks for it first.
        requester: RequesterKind,
        /// Compressed bytes to fetch for it, those that another image brings left out.
        bytes: u64,
    },
    /// An operator that is asked for: first that it is, then what a catalog has of it, once for each that has it.
    Operator(OperatorReport),
    /// A plan is made. It replaces the one before: a run plans anew with each round, and within one when it learns more. The
    /// numbers are the whole run's, with what it fetched before.
    Planned {
        /// Images that are wanted and not excluded.
        images: u64,
        /// Of these, in the store already.
        present: u64,
        /// Unique compressed bytes that cross the link in this run, those of earlier plans that were pulled included.
        bytes: u64,
    },
    /// A blob's download begins, `resumed` bytes of it being in the spool already.
    BlobStarted {
        /// Digest of the compressed blob.
        blob: Digest,
        /// Its length in bytes.
        size: u64,
        /// Bytes from an earlier attempt that need not be fetched again.
        resumed: u64,
    },
    /// More bytes of a blob crossed the link, and are new.
    BlobReceived {
        /// Which blob.
        blob: Digest,
        /// How many bytes since the last such event.
        bytes: u64,
    },
    /// Bytes of a blob crossed the link that the spool has already: the registry does not give ranges as they are asked
    /// for.
    BlobRepeated {
        /// Which blob.
        blob: Digest,
        /// How many bytes since the last such event.
        bytes: u64,
    },
    /// A blob is in the spool and its digest matched.
    BlobVerified {
        /// Which blob.
        blob: Digest,
    },
    /// A blob is given up, or lies half fetched while the run ends.
    BlobAbandoned {
        /// Which blob.
        blob: Digest,
    },
    /// A registry or a token server was asked.
    Requested {
        /// For what.
        operation: Arc<Operation>,
        /// Whom: `host[:port]`.
        host: String,
    },
    /// Next to nothing comes. Said again as long as it lasts.
    Waiting {
        /// For what.
        operation: Arc<Operation>,
        /// What is asked for, of whom, and for how long.
        why: String,
    },
    /// Something comes again.
    WaitEnded {
        /// Of what.
        operation: Arc<Operation>,
    },
    /// A request failed and will be tried again.
    Retrying {
        /// For what.
        operation: Arc<Operation>,
        /// What was asked for, of whom, and what went wrong, without secrets.
        why: String,
        /// How long until the next attempt.
        after: Duration,
    },
    /// So many layers of images to pull are in the store already.
    LayersReused {
        /// How many, each once.
        layers: u64,
    },
    /// A layer is in the store.
    LayerCommitted {
        /// Length of its compressed blob in bytes.
        bytes: u64,
    },
    /// An image's fate is known. Those that are present or excluded get one too: every image that was listed does.
    ImageDone {
        /// The normalised reference.
        name: String,
        /// What became of it.
        state: ImagePhase,
        /// The first reason, when it failed; where it is, when it is present elsewhere than in the graph root.
        reason: Option<String>,
    },
}
