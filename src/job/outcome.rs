//! Describes the result of a completed run: the last plan, the space check, and every failure.

use std::collections::HashMap;

use crate::cancel::Cancel;
use crate::exit_code::{Ending, Failure};
use crate::oci::{Digest, Reference, ResolvedImage};
use crate::plan::{ImageAction, Plan};
use crate::preflight::SpaceCheck;
use crate::report::OperatorReport;

use super::Mode;
use super::image_states::ImageStates;
use super::namers::operators::Operators;
use super::os_images::OsImages;

/// The result of a run that no [`JobError`](super::JobError) ended.
#[derive(Debug)]
pub struct Outcome {
    /// The last plan: what remains to do; nothing after a complete [`Mode::Run`].
    pub plan: Plan,
    /// The digest that a registry returned for each of the plan's images, if one was asked.
    pub digests: HashMap<Reference, Digest>,
    /// The operating system images of the release that an update may download again.
    pub os_images: Option<OsImages>,
    /// The requested operators, and what the catalogs list for them.
    pub operators: Vec<OperatorReport>,
    /// Whether that plan fits on the disk, if that was checked.
    pub space_check: Option<SpaceCheck>,
    /// One for each requested image that is missing and for each operator that no catalog has. In [`Mode::Plan`], only for
    /// what is unavailable.
    pub failures: Vec<Failure>,
}

impl Outcome {
    /// The outcome of a run whose last plan was `plan`.
    pub(super) fn of(
        mode: Mode,
        plan: Plan,
        operators: &Operators,
        space_check: Option<SpaceCheck>,
        states: &ImageStates,
        os_images: Option<OsImages>,
    ) -> Self {
        let digests = plan.images.iter().filter_map(|image| {
            let digest = states.resolved(&image.reference).map(ResolvedImage::digest)?;
            Some((image.reference.clone(), digest))
        });
        let digests = digests.collect();
        let failures = plan.images.iter().filter_map(|image| {
            match (states.failure(&image.reference), &image.action) {
                (Some(reason), _) => Some(reason.failure),
                (None, ImageAction::Present) => None,
                // A plan lists it as missing, which is not a failure.
                (None, ImageAction::Pull(_)) if mode == Mode::Plan => None,
                (None, ImageAction::Pull(_) | ImageAction::Failed(_)) => Some(Failure::Incomplete),
            }
        });
        let space = space_check.as_ref().filter(|space_check| !space_check.fits);
        let failures = failures
            .chain(operators.failures())
            .chain(space.map(|_| Failure::Space))
            .collect();
        Self {
            operators: operators.rows(),
            plan,
            digests,
            os_images,
            space_check,
            failures,
        }
    }

    /// The ending of the run: if it was stopped and something failed, the reason to stop.
    pub fn ending(&self, cancel: &Cancel) -> Ending {
        match (Ending::of(self.failures.iter().copied()), cancel.reason()) {
            (Ending::Failed(_), Some(reason)) => Ending::Stopped(reason),
            (ending, _) => ending,
        }
    }
}
