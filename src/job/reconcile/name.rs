//! Images that name others, as they come into the store.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Reconciler, Scope};
use crate::catalog::Catalog;
use crate::exit_code::Failure;
use crate::image_request::ImageRequest;
use crate::job::error::JobError;
use crate::job::failure::TaskError;
use crate::job::namers::Namer;
use crate::job::namers::operators::Added;
use crate::job::namers::{catalog, release};
use crate::job::off_the_task;
use crate::job::snapshot::Snapshot;
use crate::job::steps::Steps;
use crate::oci::Reference;
use crate::plan::Plan;
use crate::release::{Payload, Selection};
use crate::report::{Count, Event, OperatorReport, OperatorState, Step};

impl Reconciler<'_> {
    /// Begins the steps that are about images that name others, or ends them where there are none.
    pub(super) fn begin_naming(&self, steps: Steps<'_>) {
        let is_specified = |step| self.naming.namers.iter().any(|namer| step_of(namer) == step);
        for (step, message) in [
            (
                Step::Release,
                "Release index is not specified, no release is asked for",
            ),
            (
                Step::Operators,
                "Operators index is not specified, no operator is asked for",
            ),
        ] {
            match is_specified(step) {
                true => steps.start(step),
                false => steps.end(step, true, "NotSpecified", message.to_owned()),
            }
        }
    }

    pub(super) fn list(&self, requests: &[ImageRequest]) {
        for request in requests {
            self.teller
                .list(&request.reference, request.requesters.first(), 0);
        }
    }

    /// What the next round is about. What others name goes before most of what is known; but nobody waits for a registry
    /// that does not answer.
    pub(super) fn scope(&self, sight: &Snapshot) -> Scope {
        let mut unread = self.naming.unread();
        match unread.any(|namer| self.knowledge.is_to_pull(namer.reference(), sight, self.mode)) {
            true => Scope::Naming,
            false => Scope::Everything,
        }
    }

    /// The places in the plan of release images that were not read yet.
    pub(super) fn releases(&self, plan: &Plan) -> HashSet<usize> {
        let unread = self.naming.unread().filter(|it| matches!(it, Namer::Release(_)));
        let references: HashSet<&Reference> = unread.map(Namer::reference).collect();
        let images = plan.images.iter().enumerate();
        let releases = images.filter(|(_, image)| references.contains(&image.reference));
        releases.map(|(place, _)| place).collect()
    }

    /// Requests for the images that name others.
    pub(super) fn naming_requests(&self) -> Vec<ImageRequest> {
        let names_others = |request: &&ImageRequest| {
            let mut namers = self.naming.namers.iter();
            namers.any(|namer| *namer.reference() == request.reference)
        };
        self.naming
            .requests
            .iter()
            .filter(names_others)
            .cloned()
            .collect()
    }

    /// Whether images are awaited that name others, and registries have answered about all of them.
    pub(super) fn can_read_on(&self, sight: &Snapshot) -> bool {
        let unread = || self.naming.unread().map(Namer::reference);
        unread().all(|it| !self.inquiry.is_open(it))
            && unread().any(|it| self.knowledge.is_to_pull(it, sight, self.mode))
    }

    /// Reads those that are in the store and were not read before. Says whether there were any, for then more is wanted.
    pub(super) async fn read_namers(&mut self, sight: &Snapshot, steps: Steps<'_>) -> Result<bool, JobError> {
        let mut has_read = false;
        for namer in self.naming.namers.clone() {
            let reference = namer.reference();
            if self.naming.is_read(&namer) {
                continue;
            }
            if self.knowledge.failure(reference).is_none() {
                if !self.knowledge.is_present(reference, sight, self.mode) {
                    continue;
                }
                self.cancel.check()?;
                match self.read(&namer, sight).await? {
                    Ok(Contents::Release(payload, selection)) => self.take_release(payload, selection, steps),
                    Ok(Contents::Catalog(catalog)) => self.take_catalog(reference, catalog),
                    Err(TaskError::Image(reason)) => self.fail(reference, reason),
                    Err(TaskError::Stopped) => self.cancel.check()?,
                    Err(TaskError::Host(error)) => return Err(steps.ended_by(step_of(&namer), error)),
                }
            }
            self.naming.has_read(&namer);
            has_read = true;
            self.conclude(&namer, steps);
        }
        if has_read && !self.naming.unread().any(|it| matches!(it, Namer::Release(_))) {
            // What was foreseen of a release that then could not be had is wanted by nobody.
            let requests = self.naming.requests.iter();
            self.inquiry
                .keep(&requests.map(|request| &request.reference).collect());
        }
        Ok(has_read)
    }

    async fn read(&self, namer: &Namer, sight: &Snapshot) -> Result<Result<Contents, TaskError>, JobError> {
        let (store, inventory) = (Arc::clone(&self.store), Arc::clone(&sight.inventory));
        let (platform, cancel) = (self.order.platform.clone(), self.cancel.clone());
        let (excludes, packages) = (
            Arc::clone(&self.naming.excludes),
            Arc::clone(&self.naming.packages),
        );
        let namer = namer.clone();
        off_the_task(move || {
            Ok(match &namer {
                Namer::Release(image) => release::payload(image, &platform, &excludes, &store, &inventory)
                    .map(|(payload, selection)| Contents::Release(payload, selection))
                    .map_err(TaskError::Image),
                Namer::Index(image) => {
                    catalog::catalog(image, &platform, &packages, &store, &inventory, &cancel)
                        .map(Contents::Catalog)
                }
            })
        })
        .await
    }

    fn take_release(&mut self, payload: Payload, selection: Selection, steps: Steps<'_>) {
        let excluded = release::excluded(&payload, &selection);
        let message = format!(
            "release {} names {}, {} excluded",
            payload.version,
            Count(payload.tags.len(), "image"),
            excluded.len()
        );
        steps.end(Step::Release, true, "PayloadRead", message);
        for message in selection.warnings {
            self.observer.observe(Event::Warned { message });
        }
        for note in &selection.notes {
            tracing::info!("{note}");
        }
        self.list(&selection.wanted);
        self.naming.excluded = excluded;
        self.naming.version = Some(payload.version);
        self.naming.requests.extend(selection.wanted);
    }

    fn take_catalog(&mut self, index: &Reference, catalog: Catalog) {
        let Added {
            requests,
            rows,
            warnings,
        } = self.naming.operators.take(index, catalog);
        for message in warnings {
            self.observer.observe(Event::Warned { message });
        }
        self.tell(rows);
        self.list(&requests);
        self.naming.requests.extend(requests);
    }

    fn tell(&self, rows: Vec<OperatorReport>) {
        for row in rows {
            self.observer.observe(Event::Operator(row));
        }
    }

    /// Ends the step that a namer belongs to, if it was the last of it, and says what could not be had.
    fn conclude(&mut self, namer: &Namer, steps: Steps<'_>) {
        let failed = |it: &Reference| self.knowledge.failure(it).map(|reason| reason.failure);
        match namer {
            Namer::Release(release) => {
                if let Some(reason) = self.knowledge.failure(release) {
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
                self.tell(rows);
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

    /// An error that ends the run ends the step too. Rounds for the images that name others belong to the naming.
    pub(super) fn ended_by(&self, scope: Scope, step: Step, error: JobError) -> JobError {
        let naming = self.naming.unread().next().map(step_of);
        let step = match (scope, naming) {
            (Scope::Naming, Some(naming)) => naming,
            _ => step,
        };
        Steps(Some(self.observer.as_ref())).ended_by(step, error)
    }
}

/// What an image names.
enum Contents {
    Release(Payload, Selection),
    Catalog(Catalog),
}

fn step_of(namer: &Namer) -> Step {
    match namer {
        Namer::Release(_) => Step::Release,
        Namer::Index(_) => Step::Operators,
    }
}
