//! How a run went that came to its end.

use crate::cancel::{Cancel, Stopped};
use crate::exit::{Ending, Failure};
use crate::plan::Plan;
use crate::preflight::Verdict;

use super::error::JobError;

/// How a run went that was not ended by a [`JobError`].
#[derive(Debug)]
pub struct Outcome {
    /// The last plan: what was still to be done; after a complete [`Mode::Run`](super::Mode::Run) nothing.
    pub plan: Plan,
    /// Whether that plan fits the disk, where it was held against it.
    pub verdict: Option<Verdict>,
    /// One for each image that was wanted and is not there; for a plan, that cannot be had.
    pub failures: Vec<Failure>,
}

impl Outcome {
    /// The ending that this outcome means, when the run was or was not told to stop.
    pub fn ending(&self, cancel: &Cancel) -> Ending {
        match (Ending::of(self.failures.iter().copied()), cancel.reason()) {
            (Ending::Failed(_), Some(reason)) => Ending::Stopped(reason),
            (ending, _) => ending,
        }
    }
}

impl JobError {
    /// The ending of a run that this error ended.
    pub fn ending(&self) -> Ending {
        match self {
            Self::Stopped(Stopped(reason)) => Ending::Stopped(*reason),
            error => Ending::Failed(error.failure()),
        }
    }
}
