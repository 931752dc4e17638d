//! Reads release and index images as soon as the store has them, and requests the images that they name.

use std::sync::Arc;

use super::Reconciler;
use crate::catalog::Catalog;
use crate::exit_code::Failure;
use crate::job::error::{JobError, TaskError};
use crate::job::namers::operators::Added;
use crate::job::namers::release::ReleaseImages;
use crate::job::namers::{Namer, RoundScope, catalog, release};
use crate::job::release_verification::ReleaseVerification;
use crate::job::snapshot::Snapshot;
use crate::job::steps::Steps;
use crate::job::{Mode, run_blocking};
use crate::oci::Reference;
use crate::release::manifests::ReleaseManifests;
use crate::report::{Count, Event, ImagePhase, OperatorReport, OperatorState, Step};

/// What a namer contains.
enum Contents {
    Release(Box<ReleaseImages>),
    Catalog(Catalog),
}

impl Reconciler<'_> {
    /// Starts the steps that read namers, or ends them if no namer is requested.
    pub(super) fn start_naming(&self, steps: Steps<'_>) {
        let is_requested = |step| self.naming.namers.iter().any(|namer| namer.step() == step);
        for (step, message) in [
            (
                Step::Release,
                "Release index is not specified, no release is requested",
            ),
            (
                Step::Operators,
                "Operators index is not specified, no operator is requested",
            ),
        ] {
            match is_requested(step) {
                true => steps.start(step),
                false => steps.end(step, true, "NotSpecified", message.to_owned()),
            }
        }
    }

    /// Starts to verify the release's signature, in parallel with everything else.
    pub(super) fn start_release_verification(&mut self, steps: Steps<'_>) {
        let release = self.naming.namers.iter().find_map(|namer| match namer {
            Namer::Release(release) => Some(release.clone()),
            Namer::Index(_) => None,
        });
        match (release, self.mode) {
            (None, _) => {
                let message = "Release index is not specified, no release is requested".to_owned();
                steps.end(Step::ReleaseVerified, true, "NotSpecified", message);
            }
            // This mode sends no requests.
            (Some(_), Mode::Verify) => {}
            (Some(release), Mode::Run | Mode::Plan | Mode::Repair) => {
                self.release_verification = Some(ReleaseVerification::start(
                    release,
                    self.config,
                    Arc::clone(self.storage.store()),
                    Arc::clone(&self.registries),
                    self.cancel.clone(),
                ));
            }
        }
    }

    /// Reports the verdict about the release's signature, if it is known, and fails a refused release.
    pub(super) fn refuse_unsigned_release(&mut self, steps: Steps<'_>) {
        let verification = self.release_verification.as_mut();
        if let Some(reason) = verification.and_then(|it| it.report(steps)) {
            let releases = self.naming.namers.clone().into_iter();
            for release in releases.filter(|it| matches!(it, Namer::Release(_))) {
                self.fail(ImagePhase::Failed, release.reference(), reason.clone());
            }
        }
    }

    /// The scope of the next round: namers are pulled before everything else, except those whose registry does not answer.
    pub(super) fn scope(&self, snapshot: &Snapshot) -> RoundScope {
        let mut unread = self.naming.unread();
        match unread.any(|namer| self.states.is_pullable(namer.reference(), snapshot, self.mode)) {
            true => RoundScope::Namers,
            false => RoundScope::Everything,
        }
    }

    /// Whether every unread namer is resolved, and at least one can be pulled.
    pub(super) fn are_namers_pullable(&self, snapshot: &Snapshot) -> bool {
        let unread = || self.naming.unread().map(Namer::reference);
        unread().all(|it| !self.resolve_queue.is_pending(it))
            && unread().any(|it| self.states.is_pullable(it, snapshot, self.mode))
    }

    /// Reads the unread namers that the store has. Returns whether there were any, because then more is requested.
    pub(super) async fn read_namers(
        &mut self,
        snapshot: &Snapshot,
        steps: Steps<'_>,
    ) -> Result<bool, JobError> {
        let mut has_read = false;
        for namer in self.naming.namers.clone() {
            let reference = namer.reference();
            if self.naming.is_read(&namer) {
                continue;
            }
            if self.states.failure(reference).is_none() {
                if !self.states.is_present(reference, snapshot, self.mode) {
                    continue;
                }
                if let (Namer::Release(_), Some(verification)) = (&namer, &self.release_verification) {
                    verification.refusal().await;
                    self.refuse_unsigned_release(steps);
                }
                if let Namer::Release(release) = &namer {
                    self.naming.is_updating = self.is_updating_to(release, snapshot);
                }
                self.cancel.check()?;
            }
            if self.states.failure(reference).is_none() {
                match self.read(&namer, snapshot).await? {
                    Ok(Contents::Release(images)) => self.add_release(*images, steps),
                    Ok(Contents::Catalog(catalog)) => self.add_catalog(reference, catalog),
                    Err(TaskError::Image(reason)) => self.fail(ImagePhase::Failed, reference, reason),
                    Err(TaskError::Stopped) => self.cancel.check()?,
                    Err(TaskError::Host(error)) => return Err(steps.ended_by(namer.step(), error)),
                }
            }
            self.naming.mark_read(&namer);
            has_read = true;
            self.end_naming(&namer, steps);
        }
        if has_read && !self.naming.unread().any(|it| matches!(it, Namer::Release(_))) {
            // A prefetch may have added images of a release image that then failed.
            let requests = self.naming.requests.iter();
            self.resolve_queue
                .retain(&requests.map(|request| &request.reference).collect());
        }
        Ok(has_read)
    }

    async fn read(
        &self,
        namer: &Namer,
        snapshot: &Snapshot,
    ) -> Result<Result<Contents, TaskError>, JobError> {
        let (store, inventory) = (Arc::clone(self.storage.store()), Arc::clone(&snapshot.inventory));
        let (platform, cancel) = (self.config.platform.clone(), self.cancel.clone());
        let (filter, packages) = (self.naming.filter.clone(), Arc::clone(&self.naming.packages));
        let needs_manifests = self.mode == Mode::Plan || self.naming.is_updating;
        let cluster = needs_manifests.then(|| self.config.cluster.clone());
        let namer = namer.clone();
        run_blocking(move || {
            Ok(match &namer {
                Namer::Release(image) => {
                    release::images(image, &platform, &filter, cluster.as_ref(), &store, &inventory)
                        .map(|images| Contents::Release(Box::new(images)))
                        .map_err(TaskError::Image)
                }
                Namer::Index(image) => {
                    catalog::catalog(image, &platform, &packages, &store, &inventory, &cancel)
                        .map(Contents::Catalog)
                }
            })
        })
        .await
    }

    fn add_release(&mut self, mut images: ReleaseImages, steps: Steps<'_>) {
        self.note_unused(&mut images);
        let excluded = release::excluded(&images);
        let ReleaseImages {
            payload,
            selection,
            manifests,
            ..
        } = images;
        let message = format!(
            "release {} names {}, {} excluded",
            payload.version,
            Count(payload.tags.len(), "image"),
            excluded.len()
        );
        steps.end(Step::Release, true, "PayloadRead", message);
        let version = payload.version.clone();
        self.observer.observe(Event::ReleaseRead { version });
        self.add_manifests(&payload.version, manifests);
        for message in selection.warnings {
            self.observer.observe(Event::Warned { message });
        }
        for note in &selection.notes {
            tracing::info!("{note}");
        }
        let listed = selection
            .wanted
            .iter()
            .filter(|it| !self.is_left_out(&it.reference));
        self.status.list_requests(listed);
        self.naming.excluded = excluded;
        self.naming.version = Some(payload.version);
        self.naming.requests.extend(selection.wanted);
    }

    /// Remembers the release's manifests. Without them nothing is known about the order of an update.
    fn add_manifests(&mut self, version: &str, manifests: Option<Result<ReleaseManifests, String>>) {
        let has_manifests = |it: &ReleaseManifests| it.count + it.unread.len() > 0;
        let (manifests, why) = match manifests {
            Some(Ok(manifests)) if has_manifests(&manifests) => (Some(manifests), String::new()),
            Some(Ok(_)) => (None, "its release image contains none".to_owned()),
            Some(Err(why)) => (None, why),
            None => return,
        };
        match (&manifests, self.naming.is_updating) {
            (Some(_), true) => tracing::info!(
                "the cluster is already updating to {version}: images are pulled in the order of the update"
            ),
            (Some(_), false) => {}
            (None, true) => tracing::warn!(
                "the cluster is already updating to {version}, but its manifests are unknown, and so is the order of the \
                 update: {why}"
            ),
            (None, false) => tracing::info!("the manifests of release {version} are unknown: {why}"),
        }
        self.naming.manifests = manifests;
    }

    fn add_catalog(&mut self, index: &Reference, catalog: Catalog) {
        let Added {
            requests,
            rows,
            warnings,
        } = self.naming.operators.add(index, catalog);
        for message in warnings {
            self.observer.observe(Event::Warned { message });
        }
        self.report_operators(rows);
        self.status.list_requests(&requests);
        self.naming.requests.extend(requests);
    }

    fn report_operators(&self, rows: Vec<OperatorReport>) {
        for row in rows {
            self.observer.observe(Event::Operator(row));
        }
    }

    /// Ends the step that a namer belongs to, if it was the last of that step, and reports what is unavailable.
    fn end_naming(&mut self, namer: &Namer, steps: Steps<'_>) {
        let failed = |it: &Reference| self.states.failure(it).map(|reason| reason.failure);
        match namer {
            Namer::Release(release) => {
                if let Some(reason) = self.states.failure(release) {
                    let message = reason.message.clone();
                    steps.end(Step::Release, false, reason.failure.reason(), message);
                }
            }
            Namer::Index(_) => {
                if self.naming.unread().any(|it| matches!(it, Namer::Index(_))) {
                    return;
                }
                let indexes = self.naming.indexes();
                let unread = indexes.filter_map(|it| Some((it.clone(), failed(it)?)));
                let unread: Vec<(Reference, Failure)> = unread.collect();
                let rows = self.naming.operators.conclude(&unread);
                self.report_operators(rows);
                let failures = self.naming.operators.failures();
                let gravest = failures.chain(unread.iter().map(|(_, failure)| *failure)).min();
                let count = |state| self.naming.operators.count(state);
                let indexes = self.naming.indexes().count();
                let message = format!(
                    "{} found, {} failed, in {} of {indexes} catalogs",
                    count(OperatorState::Found),
                    count(OperatorState::Failed),
                    indexes - unread.len()
                );
                let reason = gravest.map_or("CatalogsRead", Failure::reason);
                steps.end(Step::Operators, gravest.is_none(), reason, message);
            }
        }
    }
}
