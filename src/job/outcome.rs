//! Describes the result of a completed run: the last plan, the space check, and every failure.

use std::collections::HashMap;

use crate::cancel::{Cancel, StopReason};
use crate::exit_code::{Ending, Failure};
use crate::oci::{Digest, ImageId, Reference};
use crate::plan::{ImageAction, Plan, PlannedImage};
use crate::preflight::SpaceCheck;
use crate::release::manifests::ReleaseManifests;
use crate::report::OperatorReport;
use crate::run_history::ResolvedIds;

use super::Mode;
use super::image_states::ImageStates;
use super::namers::Naming;
use super::os_images::OsImages;
use super::used_images::OnlyUsedReport;

/// The result of a run that no [`JobError`](super::JobError) ended.
#[derive(Debug)]
pub struct Outcome {
    /// The last plan: what remains to do; nothing after a complete [`Mode::Run`].
    pub plan: Plan,
    /// The digest that a registry returned for each of the plan's images, if one was asked.
    pub digests: HashMap<Reference, Digest>,
    /// The id of each of these images.
    pub ids: HashMap<Reference, ImageId>,
    /// The operating system images of the release that an update may download again.
    pub os_images: Option<OsImages>,
    /// What the cluster includes of the release's manifests, if they were read.
    pub manifests: Option<ReleaseManifests>,
    /// What leaving out unused images changes, if a release was read.
    pub only_used: Option<OnlyUsedReport>,
    /// The requested operators, and what the catalogs list for them.
    pub operators: Vec<OperatorReport>,
    /// Whether that plan fits on the disk, if that was checked.
    pub space_check: Option<SpaceCheck>,
    /// One for each requested image that is missing and for each operator that no catalog has. In [`Mode::Plan`], only for
    /// what is unavailable.
    pub failures: Vec<Failure>,
    /// Why the run left out images that are too large to be whole in time, if it did.
    pub cut_off: Option<StopReason>,
}

impl Outcome {
    /// The outcome of a run whose last plan was `plan`.
    pub(super) fn of(
        mode: Mode,
        plan: Plan,
        naming: &Naming,
        space_check: Option<SpaceCheck>,
        states: &ImageStates,
        os_images: Option<OsImages>,
        only_used: Option<OnlyUsedReport>,
    ) -> Self {
        let resolved = |image: &PlannedImage| {
            let resolved = states.resolved(&image.reference)?;
            let reference = || image.reference.clone();
            Some(((reference(), resolved.digest()), (reference(), resolved.id())))
        };
        let (digests, ids) = plan.images.iter().filter_map(resolved).unzip();
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
        let operators = &naming.operators;
        let failures = failures
            .chain(operators.failures())
            .chain(space.map(|_| Failure::Space))
            .collect();
        Self {
            operators: operators.rows(),
            plan,
            digests,
            ids,
            os_images,
            manifests: naming.manifests.clone(),
            only_used,
            space_check,
            failures,
            cut_off: None,
        }
    }

    /// Digest and id of each image that a registry resolved, for the history of runs.
    pub fn resolved_ids(&self) -> ResolvedIds {
        let digests = self.digests.iter();
        let resolved = digests.filter_map(|(reference, digest)| {
            Some((reference.to_string(), (*digest, *self.ids.get(reference)?)))
        });
        resolved.collect()
    }

    /// The ending of the run: if it was stopped and something failed, the reason to stop. If images were left out because
    /// the upgrade begins too soon, that counts unless a user has to correct something.
    pub fn ending(&self, cancel: &Cancel) -> Ending {
        match (
            Ending::of(self.failures.iter().copied()),
            cancel.reason(),
            self.cut_off,
        ) {
            (Ending::Failed(_), Some(reason), _) => Ending::Stopped(reason),
            (Ending::Failed(Failure::Incomplete), None, Some(reason)) => Ending::Stopped(reason),
            (ending, _, _) => ending,
        }
    }
}
