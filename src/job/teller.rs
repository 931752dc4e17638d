//! Says what becomes of each image, and nothing twice.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::oci::Digest;
use crate::plan::{BlobTask, Need, Plan};
use crate::report::{Event, ImageState, Observer};
use crate::sources::Source;

/// Remembers what was said of each image last.
pub(super) struct Teller {
    observer: Arc<dyn Observer>,
    told: HashMap<String, ImageState>,
    /// Blobs whose bytes were counted ahead of the plan that has them, and how many were missing then.
    foretold: HashMap<Digest, u64>,
    /// What of these came before that plan was made.
    early: HashMap<Digest, u64>,
}

impl Teller {
    pub(super) fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            observer,
            told: HashMap::new(),
            foretold: HashMap::new(),
            early: HashMap::new(),
        }
    }

    /// Puts an image on the report's list, so that a run which is cut off says what it did not come to.
    pub(super) fn list(&self, name: &str, source: Option<&Source>, bytes: u64) {
        if let Some(source) = source {
            let (name, source) = (name.to_owned(), source.kind());
            self.observer.observe(Event::ImageListed { name, source, bytes });
        }
    }

    /// The same for all images of a plan, each with its bytes; what came of these early is counted too, for the first image that
    /// has the blob.
    pub(super) fn list_all(&mut self, plan: &Plan) {
        let mut early: HashMap<usize, u64> = HashMap::new();
        for blob in &plan.blobs {
            if let Some(bytes) = self.early.remove(&blob.digest)
                && let Some(first) = blob.images.first()
            {
                let sum = early.entry(*first).or_default();
                *sum = sum.saturating_add(bytes);
            }
        }
        for (index, image) in plan.images.iter().enumerate() {
            let early = early.get(&index).copied().unwrap_or_default();
            let bytes = image.bytes.saturating_add(early);
            self.list(&image.name, image.sources.first(), bytes);
        }
    }

    /// Says what is begun with before it is planned: these blobs of `next`. The plan that has them counts their bytes no more,
    /// of which some are here then.
    pub(super) fn foretell(&mut self, next: &Plan, blobs: &[&BlobTask]) {
        self.observer.observe(Event::Planned {
            images: next.totals.images_wanted,
            present: next.totals.images_present,
            bytes: blobs.iter().map(|blob| blob.missing()).sum(),
        });
        self.foretold
            .extend(blobs.iter().map(|blob| (blob.digest, blob.missing())));
    }

    /// Says what the plan shows: what is there, what is not any more, what is excluded. `additional` tells which additional
    /// image store an image is in, by its name.
    pub(super) fn tell(&mut self, plan: &Plan, additional: impl Fn(&str) -> Option<PathBuf>) {
        let mut foretold = 0_u64;
        for blob in &plan.blobs {
            if let Some(missing) = self.foretold.remove(&blob.digest) {
                foretold = foretold.saturating_add(blob.missing());
                let came = missing.saturating_sub(blob.missing());
                self.early.insert(blob.digest, came);
            }
        }
        self.observer.observe(Event::Planned {
            images: plan.totals.images_wanted,
            present: plan.totals.images_present,
            bytes: plan.totals.bytes_to_fetch.saturating_sub(foretold),
        });
        for image in &plan.images {
            let was_there = matches!(
                self.told.get(&image.name),
                Some(ImageState::Present | ImageState::Pulled)
            );
            match (&image.need, was_there) {
                (Need::Present, false) => {
                    let store = additional(&image.name);
                    let reason =
                        store.map(|root| format!("in the additional image store `{}`", root.display()));
                    self.say(&image.name, ImageState::Present, reason);
                }
                (Need::Resolved(_) | Need::Failed(_), true) => {
                    tracing::warn!("`{}` was removed from the store meanwhile", image.name);
                    self.say(&image.name, ImageState::Pending, None);
                }
                (Need::Present, true) | (Need::Resolved(_) | Need::Failed(_), false) => {}
            }
        }
        for image in &plan.excluded {
            if !self.told.contains_key(&image.name) {
                self.list(&image.name, Some(&image.source), 0);
                self.say(&image.name, ImageState::Excluded, Some(image.reason.clone()));
            }
        }
    }

    pub(super) fn say(&mut self, name: &str, state: ImageState, reason: Option<String>) {
        self.has_been_told(name, state);
        let name = name.to_owned();
        self.observer.observe(Event::ImageDone { name, state, reason });
    }

    /// Somebody else said it.
    pub(super) fn has_been_told(&mut self, name: &str, state: ImageState) {
        self.told.insert(name.to_owned(), state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Here, Wanted};
    use crate::report::Recorder;

    /// The registry may never answer, and the run be cut off.
    #[test]
    fn what_was_there_and_is_not_is_pending_before_any_registry_has_answered() {
        let recorder = Arc::new(Recorder::new(jiff::Timestamp::now));
        let observer: Arc<dyn Observer> = recorder.clone();
        let mut teller = Teller::new(observer);
        let expected = [(Need::Present, 1), (Need::Failed("no answer yet".to_owned()), 0)];
        for (state, present) in expected {
            let wanted = Wanted {
                name: "example.com/a:1".to_owned(),
                sources: vec![Source::Additional],
                state,
            };
            teller.tell(&Plan::build(vec![wanted], Vec::new(), &Here::default()), |_| None);
            assert_eq!(recorder.report(124).totals.images_present, present);
        }
        assert_eq!(recorder.report(124).totals.images_failed, 0);
    }
}
