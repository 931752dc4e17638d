//! Finds out which images this node uses before anything is downloaded, and what `--only-used` saves.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Reconciler;
use crate::image_request::{ImageRequest, Requester, dedupe};
use crate::job::error::JobError;
use crate::job::namers::Namer;
use crate::job::namers::release::ReleaseImages;
use crate::job::snapshot::Snapshot;
use crate::job::steps::Steps;
use crate::job::used_images::{OnlyUsed, OnlyUsedReport};
use crate::job::{Mode, run_blocking};
use crate::oci::Reference;
use crate::plan::{ImageAction, ImageToPlan, Plan};
use crate::report::{Event, Step};
use crate::used_images::Refusal;

/// What is known about the images that this node uses.
#[derive(Default)]
pub(super) struct UsedImages {
    /// `None` if nobody asked.
    found: Option<Result<Arc<OnlyUsed>, Refusal>>,
    /// The images of the release that are left out, or would be.
    unused: HashSet<Reference>,
}

/// The images that nothing but the release requests and the node does not use, each with its bytes to fetch if these are known.
type UnusedSizes = HashMap<Reference, Option<u64>>;

impl Reconciler<'_> {
    /// Finds out which images this node uses, if unused ones are left out, or if `plan` shows what that would save.
    pub(super) async fn find_used_images(&mut self, steps: Steps<'_>) -> Result<(), JobError> {
        let is_requested = self.config.only_used.is_requested;
        let has_release = self
            .naming
            .namers
            .iter()
            .any(|it| matches!(it, Namer::Release(_)));
        if !has_release {
            if is_requested {
                let message = "`--only-used` has no effect: no release is requested".to_owned();
                self.observer.observe(Event::Warned { message });
            }
            return Ok(());
        }
        if !is_requested && self.mode != Mode::Plan {
            return Ok(());
        }
        let store = Arc::clone(self.storage.store());
        let (used, host) = (self.config.only_used.clone(), self.config.host_state.clone());
        let version = self.config.release_signature.cluster.version.clone();
        let found =
            run_blocking(move || Ok(OnlyUsed::find(&used, &host, version.as_ref().ok(), &store)?)).await;
        let found = match (found, is_requested) {
            (Ok(found), _) => found.map(Arc::new),
            (Err(error @ JobError::Stopped(_)), _) | (Err(error), true) => {
                return Err(steps.ended_by(Step::Release, error));
            }
            (Err(error), false) => {
                tracing::debug!("it is unknown which images this node uses: {error}");
                return Ok(());
            }
        };
        if is_requested {
            let only_used = found.map_err(|refusal| steps.ended_by(Step::Release, refusal.into()))?;
            tracing::info!("{}", only_used.summary());
            if self.mode.reads_all() {
                tracing::info!(
                    "`--only-used` judges by what is known now; an earlier run may have known other containers"
                );
            }
            self.warn_of_unknown_templates();
            if self.mode != Mode::Plan {
                self.naming.filter.only_used = Some(Arc::clone(&only_used));
            }
            self.used_images.found = Some(Ok(only_used));
        } else {
            self.used_images.found = Some(found);
        }
        Ok(())
    }

    fn warn_of_unknown_templates(&self) {
        let unknown = &self.config.only_used.pod_templates.unknown;
        if !unknown.is_empty() {
            let message = format!(
                "`--only-used` does not know all pod templates of the cluster, so an image that only a rare Job uses may be left \
                 out: {}\nhint: allow the service account to list them, see `components/only-used` in the manifests",
                unknown.join("; ")
            );
            self.observer.observe(Event::Warned { message });
        }
    }

    /// Notes which images of the release are left out, or would be. `plan` leaves them out here and not when it reads the
    /// release, because it asks the registries for their sizes.
    pub(super) fn note_unused(&mut self, images: &mut ReleaseImages) {
        if let Some(Ok(only_used)) = &self.used_images.found
            && self.mode == Mode::Plan
        {
            images.unused = only_used.cut(&images.payload, &mut images.selection.clone());
        }
        let unused = images.unused.iter().map(|image| image.reference.clone());
        self.used_images.unused = unused.collect();
        if !self.config.only_used.is_requested {
            images.unused.clear();
        }
    }

    /// Whether the image is left out although its size is requested.
    pub(super) fn is_left_out(&self, reference: &Reference) -> bool {
        let mut requests = self.naming.requests.iter();
        self.config.only_used.is_requested
            && self.used_images.unused.contains(reference)
            && requests.all(|request| request.reference != *reference || is_of_release_only(request))
    }

    /// What each unused image adds to the bytes of all others.
    fn unused_sizes(&self, snapshot: &Snapshot) -> UnusedSizes {
        let requests = dedupe(self.naming.requests.iter().cloned());
        let is_unused = |request: &ImageRequest| {
            self.used_images.unused.contains(&request.reference) && is_of_release_only(request)
        };
        let (unused, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(is_unused);
        let mut images = self.images_to_plan(&others, snapshot);
        let unused = self.images_to_plan(&unused, snapshot);
        let unused_sizes = unused.iter().map(|image| (image.reference.clone(), None));
        let mut unused_sizes: UnusedSizes = unused_sizes.collect();
        // A shared blob counts for the first image, so these come last.
        images.extend(unused.into_iter().map(|image| ImageToPlan {
            requesters: vec![Requester::Additional],
            ..image
        }));
        let plan = Plan::build(images, Vec::new(), &self.present(snapshot));
        for image in &plan.images {
            if let Some(bytes) = unused_sizes.get_mut(&image.reference)
                && !matches!(image.action, ImageAction::Failed(_))
            {
                *bytes = Some(image.bytes);
            }
        }
        unused_sizes
    }

    /// What leaving out unused images changes in this plan. Adds the bytes to those that it excludes.
    pub(super) fn only_used_report(&self, plan: &mut Plan, snapshot: &Snapshot) -> Option<OnlyUsedReport> {
        let found = self.used_images.found.as_ref()?;
        // Without a payload, nothing is known.
        self.naming.version.as_ref()?;
        let unused_sizes = match found {
            Ok(_) if self.mode == Mode::Plan => Some(self.unused_sizes(snapshot)),
            _ => None,
        };
        for image in &mut plan.excluded {
            let size = unused_sizes
                .as_ref()
                .and_then(|sizes| sizes.get(&image.reference));
            image.bytes = size.copied().flatten();
        }
        let sizes = || unused_sizes.iter().flat_map(HashMap::values);
        Some(OnlyUsedReport {
            is_requested: self.config.only_used.is_requested,
            running_release: found.as_ref().ok().map(|it| it.running_release().to_owned()),
            images: match &unused_sizes {
                Some(sizes) => sizes.len(),
                None => plan
                    .excluded
                    .iter()
                    .filter(|it| self.used_images.unused.contains(&it.reference))
                    .count(),
            },
            bytes: unused_sizes.is_some().then(|| {
                sizes()
                    .flatten()
                    .fold(0_u64, |sum, bytes| sum.saturating_add(*bytes))
            }),
            images_without_size: sizes().filter(|size| size.is_none()).count(),
            refusal: found.as_ref().err().map(ToString::to_string),
        })
    }
}

fn is_of_release_only(request: &ImageRequest) -> bool {
    let mut requesters = request.requesters.iter();
    requesters.all(|it| matches!(it, Requester::Release { .. }))
}
