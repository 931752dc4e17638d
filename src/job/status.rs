//! Sends the observer each change of an image's phase, and the planned bytes, once each.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::image_request::{ImageRequest, Requester};
use crate::oci::{Digest, Reference};
use crate::plan::{BlobTask, ImageAction, Plan};
use crate::report::{Event, ImagePhase, Observer};

/// Remembers the last reported phase of each image.
pub(super) struct StatusReporter {
    observer: Arc<dyn Observer>,
    phases: HashMap<Reference, ImagePhase>,
    /// Blobs whose download was started, some by the prefetch before a plan contains them.
    started: HashMap<Digest, BlobBytes>,
}

/// Bytes of one blob.
#[derive(Clone, Copy, Default)]
struct BlobBytes {
    /// The bytes that were missing when its download, or its copy from a medium, started.
    planned: u64,
    /// They were planned from a medium. If it fails, [`Event::BlobNotOnMedia`] counts them as downloaded.
    is_copied: bool,
    /// The bytes of these that are listed as an image's downloads.
    listed: u64,
}

impl StatusReporter {
    pub(super) fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            observer,
            phases: HashMap::new(),
            started: HashMap::new(),
        }
    }

    /// Lists requested images in the report, so that the report of an interrupted run shows them as pending.
    pub(super) fn list_requests<'a>(&self, requests: impl IntoIterator<Item = &'a ImageRequest>) {
        for request in requests {
            self.list(&request.reference, request.requesters.first(), 0);
        }
    }

    /// Lists one image in the report.
    fn list(&self, reference: &Reference, requester: Option<&Requester>, bytes: u64) {
        if let Some(requester) = requester {
            self.observer.observe(Event::ImageListed {
                name: reference.to_string(),
                label: requester.label(reference),
                requester: requester.kind(),
                bytes,
            });
        }
    }

    /// Lists all images of a plan whose pull starts, each with its bytes.
    pub(super) fn list_plan(&mut self, plan: &Plan) {
        let mut bytes = vec![0_u64; plan.images.len()];
        for blob in &plan.blobs {
            let started = self.start(plan, blob);
            if started.is_copied {
                continue;
            }
            let unlisted = started.planned - started.listed;
            started.listed = started.planned;
            if let Some(sum) = blob.images.first().and_then(|first| bytes.get_mut(*first)) {
                *sum = sum.saturating_add(unlisted);
            }
        }
        for (image, bytes) in plan.images.iter().zip(bytes) {
            self.list(&image.reference, image.requesters.first(), bytes);
        }
    }

    /// Reports a prefetch: these blobs of `next`, the expected plan of the next round.
    pub(super) fn report_prefetch(&mut self, next: &Plan, blobs: &[&BlobTask]) {
        for blob in blobs {
            self.start(next, blob);
        }
        self.report_totals(next, (0, 0));
    }

    /// A blob that is downloaded again counts once, like one whose download is resumed.
    fn start(&mut self, plan: &Plan, blob: &BlobTask) -> &mut BlobBytes {
        let started = self.started.entry(blob.digest).or_insert_with(|| {
            let first = blob.images.first().and_then(|first| plan.images.get(*first));
            if let Some((image, requester)) = first.and_then(|image| Some((image, image.requesters.first()?)))
            {
                self.observer.observe(Event::BlobListed {
                    blob: blob.digest,
                    name: image.reference.to_string(),
                    label: requester.label(&image.reference),
                });
            }
            BlobBytes {
                is_copied: blob.is_on_medium(),
                ..BlobBytes::default()
            }
        });
        started.planned = started.planned.max(blob.unspooled());
        started
    }

    /// Reports the size of the whole job: the started blobs, and `more` bytes to download and to copy.
    fn report_totals(&self, plan: &Plan, more: (u64, u64)) {
        let (mut bytes, mut bytes_from_media) = more;
        for blob in self.started.values() {
            let sum = match blob.is_copied {
                true => &mut bytes_from_media,
                false => &mut bytes,
            };
            *sum = sum.saturating_add(blob.planned);
        }
        self.observer.observe(Event::Planned {
            images: plan.totals.images_wanted,
            present: plan.totals.images_present,
            bytes,
            bytes_from_media,
        });
    }

    /// Reports a new plan: its size, and images that are present, were removed or are excluded. `additional` returns the
    /// additional image store that contains an image.
    pub(super) fn report_plan(&mut self, plan: &Plan, additional: impl Fn(&Reference) -> Option<PathBuf>) {
        let mut more = (0_u64, 0_u64);
        for blob in &plan.blobs {
            let started = self.started.get(&blob.digest);
            let sum = match started.map_or(blob.is_on_medium(), |it| it.is_copied) {
                true => &mut more.1,
                false => &mut more.0,
            };
            let unspooled = blob
                .unspooled()
                .saturating_sub(started.map_or(0, |it| it.planned));
            *sum = sum.saturating_add(unspooled);
        }
        self.report_totals(plan, more);
        for image in &plan.images {
            let was_present = matches!(
                self.phases.get(&image.reference),
                Some(ImagePhase::Present | ImagePhase::Pulled)
            );
            match (&image.action, was_present) {
                (ImageAction::Present, false) => {
                    let store = additional(&image.reference);
                    let reason =
                        store.map(|root| format!("in the additional image store `{}`", root.display()));
                    self.report(&image.reference, ImagePhase::Present, reason);
                }
                (ImageAction::Pull(_) | ImageAction::Failed(_), true) => {
                    tracing::warn!("`{}` was removed from the store during the run", image.reference);
                    self.report(&image.reference, ImagePhase::Pending, None);
                }
                (ImageAction::Present, true) | (ImageAction::Pull(_) | ImageAction::Failed(_), false) => {}
            }
        }
        for image in &plan.excluded {
            if !self.phases.contains_key(&image.reference) {
                self.list(&image.reference, Some(&image.requester), 0);
                self.report(&image.reference, ImagePhase::Excluded, Some(image.reason.clone()));
            }
        }
    }

    /// Reports an image's phase.
    pub(super) fn report(&mut self, reference: &Reference, state: ImagePhase, reason: Option<String>) {
        self.note_reported(reference, state);
        let name = reference.to_string();
        self.observer.observe(Event::ImageDone { name, state, reason });
    }

    /// Remembers a phase that the pull has reported.
    pub(super) fn note_reported(&mut self, reference: &Reference, phase: ImagePhase) {
        self.phases.insert(reference.clone(), phase);
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
            source: None,
            digest: *digest,
            size,
            spooled,
            medium: None,
            layers: Vec::new(),
            images: vec![0],
        }
    }

    /// A plan with one image, for which `blobs` are downloaded.
    fn plan(blobs: Vec<BlobTask>) -> Plan {
        let wanted = ImageToPlan {
            reference: "example.com/a:1".parse().unwrap(),
            requesters: vec![Requester::Additional],
            rank: None,
            action: ImageAction::Present,
            authenticated: false,
        };
        let plan = Plan::build(vec![wanted], Vec::new(), &Present::default());
        Plan { blobs, ..plan }
    }

    /// A plan is built again after blobs were probed for the lengths of their tars, and in each round.
    #[test]
    fn a_blob_in_several_plans_is_counted_once() {
        let recorder = Arc::new(Recorder::new(jiff::Timestamp::now));
        let observer: Arc<dyn Observer> = recorder.clone();
        let mut status = StatusReporter::new(observer);
        let counted = || {
            let report = recorder.report(0);
            (
                report.totals.bytes_planned,
                report.images.first().map(|it| it.bytes),
            )
        };
        let [release, own, late] = [b"release", b"own....", b"late..."].map(|name| Digest::of(name));
        let naming = plan(vec![blob(&release, 50, 20)]);
        status.report_plan(&naming, |_| None);
        status.report_plan(&naming, |_| None);
        assert_eq!(counted().0, 30, "the release image, before its pull");
        status.list_plan(&naming);
        status.report_prefetch(&naming, &[&blob(&own, 100, 0)]);
        assert_eq!(counted(), (130, Some(30)), "and what is prefetched");
        let all = plan(vec![blob(&own, 100, 60), blob(&late, 7, 0)]);
        status.report_plan(&all, |_| None);
        status.report_plan(&all, |_| None);
        status.list_plan(&all);
        assert_eq!(counted(), (137, Some(137)), "of which some is spooled by then");
        let rest = plan(vec![blob(&late, 7, 3)]);
        status.report_plan(&rest, |_| None);
        status.list_plan(&rest);
        assert_eq!(counted(), (137, Some(137)), "the rest of it, in another round");
        status.report_plan(&plan(Vec::new()), |_| None);
        assert_eq!(counted(), (137, Some(137)), "nothing is left");
    }

    /// The registry may never answer, and the run may be stopped.
    #[test]
    fn a_removed_image_is_pending_before_any_registry_has_answered() {
        let recorder = Arc::new(Recorder::new(jiff::Timestamp::now));
        let observer: Arc<dyn Observer> = recorder.clone();
        let mut status = StatusReporter::new(observer);
        let expected = [
            (ImageAction::Present, 1),
            (ImageAction::Failed("no answer yet".to_owned()), 0),
        ];
        for (action, present) in expected {
            let wanted = ImageToPlan {
                reference: "example.com/a:1".parse().unwrap(),
                requesters: vec![Requester::Additional],
                rank: None,
                action,
                authenticated: false,
            };
            status.report_plan(
                &Plan::build(vec![wanted], Vec::new(), &Present::default()),
                |_| None,
            );
            assert_eq!(recorder.report(124).totals.images_present, present);
        }
        assert_eq!(recorder.report(124).totals.images_failed, 0);
    }
}
