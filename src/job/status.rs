//! Says what becomes of each image, and nothing twice.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::image_request::Requester;
use crate::oci::{Digest, Reference};
use crate::plan::{BlobTask, ImageAction, Plan};
use crate::report::{Event, ImagePhase, Observer};

/// Remembers what was said of each image last.
pub(super) struct StatusReporter {
    observer: Arc<dyn Observer>,
    told: HashMap<Reference, ImagePhase>,
    /// Blobs that a pull began with, some ahead of the plan that has them.
    begun: HashMap<Digest, Begun>,
}

/// Bytes of one blob.
#[derive(Clone, Copy, Default)]
struct Begun {
    /// Those that were missing at first.
    planned: u64,
    /// Of these, listed as an image's.
    listed: u64,
}

impl StatusReporter {
    pub(super) fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            observer,
            told: HashMap::new(),
            begun: HashMap::new(),
        }
    }

    /// Puts an image on the report's list, so that a run which is cut off says what it did not come to.
    pub(super) fn list(&self, reference: &Reference, requester: Option<&Requester>, bytes: u64) {
        if let Some(requester) = requester {
            let (name, requester) = (reference.to_string(), requester.kind());
            self.observer.observe(Event::ImageListed {
                name,
                requester,
                bytes,
            });
        }
    }

    /// The same for all images of a plan whose pull begins, each with its bytes.
    pub(super) fn list_all(&mut self, plan: &Plan) {
        let mut bytes = vec![0_u64; plan.images.len()];
        for blob in &plan.blobs {
            let begun = self.begin(blob);
            let unlisted = begun.planned - begun.listed;
            begun.listed = begun.planned;
            if let Some(sum) = blob.images.first().and_then(|first| bytes.get_mut(*first)) {
                *sum = sum.saturating_add(unlisted);
            }
        }
        for (image, bytes) in plan.images.iter().zip(bytes) {
            self.list(&image.reference, image.requesters.first(), bytes);
        }
    }

    /// Says what is begun with before it is planned: these blobs of `next`.
    pub(super) fn foretell(&mut self, next: &Plan, blobs: &[&BlobTask]) {
        for blob in blobs {
            self.begin(blob);
        }
        self.plan(next, 0);
    }

    /// A blob that has to be fetched again is planned once, like one that is continued.
    fn begin(&mut self, blob: &BlobTask) -> &mut Begun {
        let begun = self.begun.entry(blob.digest).or_default();
        begun.planned = begun.planned.max(blob.missing());
        begun
    }

    /// Says how much there is to do, with `more` bytes than were begun with.
    fn plan(&self, plan: &Plan, more: u64) {
        let begun = self.begun.values().map(|blob| blob.planned);
        self.observer.observe(Event::Planned {
            images: plan.totals.images_wanted,
            present: plan.totals.images_present,
            bytes: begun.fold(more, u64::saturating_add),
        });
    }

    /// Says what the plan shows: what is there, what is not any more, what is excluded. `additional` tells which additional
    /// image store an image is in.
    pub(super) fn tell(&mut self, plan: &Plan, additional: impl Fn(&Reference) -> Option<PathBuf>) {
        let more = plan.blobs.iter().map(|blob| {
            let begun = self.begun.get(&blob.digest).map_or(0, |begun| begun.planned);
            blob.missing().saturating_sub(begun)
        });
        self.plan(plan, more.fold(0, u64::saturating_add));
        for image in &plan.images {
            let was_there = matches!(
                self.told.get(&image.reference),
                Some(ImagePhase::Present | ImagePhase::Pulled)
            );
            match (&image.action, was_there) {
                (ImageAction::Present, false) => {
                    let store = additional(&image.reference);
                    let reason =
                        store.map(|root| format!("in the additional image store `{}`", root.display()));
                    self.say(&image.reference, ImagePhase::Present, reason);
                }
                (ImageAction::Pull(_) | ImageAction::Failed(_), true) => {
                    tracing::warn!("`{}` was removed from the store meanwhile", image.reference);
                    self.say(&image.reference, ImagePhase::Pending, None);
                }
                (ImageAction::Present, true) | (ImageAction::Pull(_) | ImageAction::Failed(_), false) => {}
            }
        }
        for image in &plan.excluded {
            if !self.told.contains_key(&image.reference) {
                self.list(&image.reference, Some(&image.requester), 0);
                self.say(&image.reference, ImagePhase::Excluded, Some(image.reason.clone()));
            }
        }
    }

    pub(super) fn say(&mut self, reference: &Reference, state: ImagePhase, reason: Option<String>) {
        self.has_been_told(reference, state);
        let name = reference.to_string();
        self.observer.observe(Event::ImageDone { name, state, reason });
    }

    /// Somebody else said it.
    pub(super) fn has_been_told(&mut self, reference: &Reference, state: ImagePhase) {
        self.told.insert(reference.clone(), state);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::plan::{ImageToPlan, Present};
    use crate::report::Recorder;

    fn blob(digest: &Digest, size: u64, spooled: u64) -> BlobTask {
        BlobTask {
            digest: *digest,
            size,
            spooled,
            layers: Vec::new(),
            images: vec![0],
        }
    }

    /// A plan with one image, for which `blobs` are brought.
    fn plan(blobs: Vec<BlobTask>) -> Plan {
        let wanted = ImageToPlan {
            reference: "example.com/a:1".parse().unwrap(),
            requesters: vec![Requester::Additional],
            action: ImageAction::Present,
        };
        let plan = Plan::build(vec![wanted], Vec::new(), &Present::default());
        Plan { blobs, ..plan }
    }

    /// A plan is made again when blobs have said how long their tars are, and with each round.
    #[test]
    fn what_is_planned_twice_is_counted_once() {
        let recorder = Arc::new(Recorder::new(jiff::Timestamp::now));
        let observer: Arc<dyn Observer> = recorder.clone();
        let mut teller = StatusReporter::new(observer);
        let counted = || {
            let report = recorder.report(0);
            (
                report.totals.bytes_planned,
                report.images.first().map(|it| it.bytes),
            )
        };
        let [release, own, late] = [b"release", b"own....", b"late..."].map(|name| Digest::of(name));
        let naming = plan(vec![blob(&release, 50, 20)]);
        teller.tell(&naming, |_| None);
        teller.tell(&naming, |_| None);
        assert_eq!(counted().0, 30, "the release image, planned in doubt");
        teller.list_all(&naming);
        teller.foretell(&naming, &[&blob(&own, 100, 0)]);
        assert_eq!(counted(), (130, Some(30)), "and what is begun ahead of its plan");
        let all = plan(vec![blob(&own, 100, 60), blob(&late, 7, 0)]);
        teller.tell(&all, |_| None);
        teller.tell(&all, |_| None);
        teller.list_all(&all);
        assert_eq!(counted(), (137, Some(137)), "of which some is here by then");
        let rest = plan(vec![blob(&late, 7, 3)]);
        teller.tell(&rest, |_| None);
        teller.list_all(&rest);
        assert_eq!(counted(), (137, Some(137)), "the rest of it, in another round");
        teller.tell(&plan(Vec::new()), |_| None);
        assert_eq!(counted(), (137, Some(137)), "nothing is left");
    }

    /// The registry may never answer, and the run be cut off.
    #[test]
    fn what_was_there_and_is_not_is_pending_before_any_registry_has_answered() {
        let recorder = Arc::new(Recorder::new(jiff::Timestamp::now));
        let observer: Arc<dyn Observer> = recorder.clone();
        let mut teller = StatusReporter::new(observer);
        let expected = [
            (ImageAction::Present, 1),
            (ImageAction::Failed("no answer yet".to_owned()), 0),
        ];
        for (action, present) in expected {
            let wanted = ImageToPlan {
                reference: "example.com/a:1".parse().unwrap(),
                requesters: vec![Requester::Additional],
                action,
            };
            teller.tell(
                &Plan::build(vec![wanted], Vec::new(), &Present::default()),
                |_| None,
            );
            assert_eq!(recorder.report(124).totals.images_present, present);
        }
        assert_eq!(recorder.report(124).totals.images_failed, 0);
    }
}
