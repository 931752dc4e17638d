//! What is said of images that cannot be had.

use std::sync::Arc;

use super::{ROUNDS, Reconciler};
use crate::exit_code::Failure;
use crate::image_request::ImageRequest;
use crate::job::error::JobError;
use crate::job::failure::Reason;
use crate::job::off_the_task;
use crate::job::snapshot::{Seen, Snapshot};
use crate::oci::Reference;
use crate::plan::{ImageAction, Plan};
use crate::report::ImagePhase;

impl Reconciler<'_> {
    /// What is resolved and yet failed contradicts itself or another manifest.
    pub(super) fn fail_contradictions(&mut self, plan: &Plan) {
        for image in &plan.images {
            if let ImageAction::Failed(message) = &image.action
                && self.knowledge.is_resolved(&image.reference)
            {
                let (failure, message) = (Failure::Payload, message.clone());
                self.fail(&image.reference, Reason { failure, message });
            }
        }
    }

    /// The failure of the plan's images that has to be mended first.
    pub(super) fn gravest(&self, plan: &Plan) -> Option<Failure> {
        let images = plan.images.iter();
        let failures = images.filter_map(|image| self.knowledge.failure(&image.reference));
        failures.map(|reason| reason.failure).min()
    }

    pub(super) fn fail_what_is_missing(&mut self, references: &[Reference], sight: &Snapshot) {
        for reference in references {
            if self.knowledge.is_present(reference, sight, self.mode) {
                continue;
            }
            match sight.image(reference).and_then(|seen| seen.flaw.clone()) {
                Some(flaw) if flaw.failure == Failure::Store => self.find_damaged(reference, flaw),
                Some(flaw) => self.fail(reference, flaw),
                None => {
                    let (failure, message) = (Failure::Incomplete, "it is not in the store".to_owned());
                    self.fail(reference, Reason { failure, message });
                }
            }
        }
    }

    /// A layer keeps to the store in which it found those below it, and nothing is mended in an additional one.
    pub(super) fn fail_what_is_out_of_reach(&mut self, references: &[Reference], sight: &Snapshot) {
        for reference in references {
            let Some(layer) = sight.image(reference).and_then(|seen| seen.unmendable.as_ref()) else {
                continue;
            };
            let message = format!(
                "{layer} is damaged, and layers of the graph root were built on it\nhint: remove the image, `crictl rmi` or `podman rmi`, and run again"
            );
            let failure = Failure::Store;
            self.find_damaged(reference, Reason { failure, message });
        }
    }

    /// What is damaged right after it was written is damaged by what holds it, or is no damage.
    pub(super) fn fail_what_is_beyond_repair(&mut self, references: &[Reference], sight: &Snapshot) {
        for reference in references {
            let seen = sight
                .image(reference)
                .filter(|seen| self.examiner.is_beyond_repair(seen));
            let Some(flaw) = seen.and_then(|seen| seen.flaw.clone()) else {
                continue;
            };
            let message = format!(
                "{}, also after it was written anew\nhint: the disk or its file system may be at fault, see the kernel's log",
                flaw.message
            );
            self.fail(reference, Reason { message, ..flaw });
        }
    }

    /// What somebody uses is not mended, and nothing is fetched for it.
    pub(super) async fn fail_what_is_in_use(
        &mut self,
        references: &[Reference],
        sight: &Snapshot,
    ) -> Result<(), JobError> {
        let is_damaged = |it: &Reference| {
            sight
                .image(it)
                .is_some_and(|seen| seen.damaged_layers().next().is_some())
        };
        let damaged: Vec<&Reference> = references.iter().filter(|it| is_damaged(it)).collect();
        if damaged.is_empty() {
            return Ok(());
        }
        let (store, host) = (Arc::clone(&self.store), self.order.host_state.clone());
        let users = off_the_task(move || Ok(store.layers_in_use(&host)?)).await?;
        for reference in damaged {
            let layers = sight.image(reference).into_iter().flat_map(Seen::damaged_layers);
            let refusal = layers
                .into_iter()
                .find_map(|layer| users.check_unused(&layer).err());
            if let Some(error) = refusal {
                let (failure, message) = (Failure::Store, error.to_string());
                self.find_damaged(reference, Reason { failure, message });
            }
        }
        Ok(())
    }

    pub(super) fn fail_what_is_open(&mut self, requests: &[ImageRequest], sight: &Snapshot) {
        for request in requests {
            if self.knowledge.is_to_pull(&request.reference, sight, self.mode) {
                let flaw = sight.image(&request.reference).and_then(|seen| seen.flaw.clone());
                let reason = flaw
                    .filter(|flaw| flaw.failure == Failure::Store)
                    .unwrap_or_else(|| Reason {
                        failure: Failure::Incomplete,
                        message: format!(
                            "its layers were removed from the store while it was pulled, {ROUNDS} times"
                        ),
                    });
                self.fail(&request.reference, reason);
            }
        }
    }

    pub(super) fn fail(&mut self, reference: &Reference, reason: Reason) {
        self.end_as(ImagePhase::Failed, reference, reason);
    }

    fn find_damaged(&mut self, reference: &Reference, reason: Reason) {
        self.end_as(ImagePhase::Damaged, reference, reason);
    }

    fn end_as(&mut self, state: ImagePhase, reference: &Reference, reason: Reason) {
        let message = reason.message.clone();
        if self.knowledge.fail(reference, reason) {
            self.teller.say(reference, state, Some(message));
        }
    }
}
