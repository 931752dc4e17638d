//! How a run went that came to its end.

use std::collections::HashMap;

use crate::cancel::{Cancel, Stopped};
use crate::exit_code::{Ending, Failure};
use crate::oci::{Digest, Reference, ResolvedImage};
use crate::plan::{ImageAction, Plan};
use crate::preflight::Verdict;
use crate::report::OperatorReport;

use super::Mode;
use super::error::JobError;
use super::image_states::ImageStates;
use super::namers::operators::Operators;
use super::os_images::OsImages;

/// How a run went that was not ended by a [`JobError`].
#[derive(Debug)]
pub struct Outcome {
    /// The last plan: what was still to be done; after a complete [`Mode::Run`] nothing.
    pub plan: Plan,
    /// What registries led to under the names of the plan's images, as far as they were asked.
    pub digests: HashMap<Reference, Digest>,
    /// Those of the release's images that an update may download again.
    pub os_images: Option<OsImages>,
    /// The operators that are asked for, and what catalogs say of them.
    pub operators: Vec<OperatorReport>,
    /// Whether that plan fits the disk, where it was held against it.
    pub verdict: Option<Verdict>,
    /// One for each image that was wanted and is not there, and for each operator that no catalog has; for a plan, that
    /// cannot be had.
    pub failures: Vec<Failure>,
}

impl Outcome {
    /// The outcome of a run that saw `plan` last.
    pub(super) fn of(
        mode: Mode,
        plan: Plan,
        operators: &Operators,
        verdict: Option<Verdict>,
        knowledge: &ImageStates,
        os_images: Option<OsImages>,
    ) -> Self {
        let digests = plan.images.iter().filter_map(|image| {
            let digest = knowledge.resolved(&image.reference).map(ResolvedImage::digest)?;
            Some((image.reference.clone(), digest))
        });
        let digests = digests.collect();
        let failures = plan.images.iter().filter_map(|image| {
            match (knowledge.failure(&image.reference), &image.action) {
                (Some(reason), _) => Some(reason.failure),
                (None, ImageAction::Present) => None,
                // To be pulled is what a plan says of it, and no failure.
                (None, ImageAction::Pull(_)) if mode == Mode::Plan => None,
                (None, ImageAction::Pull(_) | ImageAction::Failed(_)) => Some(Failure::Incomplete),
            }
        });
        let space = verdict.as_ref().filter(|verdict| !verdict.fits);
        let failures = failures
            .chain(operators.failures())
            .chain(space.map(|_| Failure::Space))
            .collect();
        Self {
            operators: operators.rows(),
            plan,
            digests,
            os_images,
            verdict,
            failures,
        }
    }

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
