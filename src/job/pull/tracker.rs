//! Tracks the layers and images of one pull: which layers are staged, which images need which, and which can be committed.
//!
//! A state machine without I/O; [`super::pull_loop`] reports every event to it.
//!
//! ```text
//! layer:  missing ──stage──→ staged ──take_ready, with an image──→ taken ──layer_committed──→ its blob can be removed
//!            └──fail_layer──→ every image with this layer fails
//! image:  open, n layers missing ──n = 0──→ ready ──take_ready──→ its staged layers, base first
//! ```

use std::collections::{BTreeSet, HashMap};

use crate::job::error::Reason;
use crate::oci::{Digest, LayerId};
use crate::plan::{BlobTask, ImageAction, Plan};

/// How one image ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::job) enum ImageOutcome {
    /// Undecided: the pull ended before, or another program changed the store and the image has to be planned again.
    Open,
    Pulled,
    Failed(Reason),
}

#[derive(Debug)]
struct Image {
    outcome: ImageOutcome,
    /// How many of its layers are neither staged nor in the store.
    missing: usize,
    /// Its layers that the plan unpacks, base first.
    layers: Vec<LayerId>,
}

/// `T` is a staged layer.
#[derive(Debug)]
struct Layer<T> {
    /// Digest of what the plan downloads for it: its blob or a delta.
    blob: Digest,
    progress: LayerProgress<T>,
    /// The images that have it.
    images: Vec<usize>,
}

#[derive(Debug)]
enum LayerProgress<T> {
    Missing,
    Staged(T),
    /// In a commit with an image, or dropped because no image needs it.
    Taken,
    Committed,
}

impl<T> LayerProgress<T> {
    fn take_staged(&mut self) -> Option<T> {
        match std::mem::replace(self, Self::Taken) {
            Self::Staged(staged) => Some(staged),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// The state of one pull.
#[derive(Debug)]
pub(super) struct PullTracker<T> {
    images: Vec<Image>,
    layers: HashMap<LayerId, Layer<T>>,
    /// Open images without missing layers that were not taken.
    ready: BTreeSet<usize>,
    /// For each download, how many of its layers are not in the store.
    uncommitted: HashMap<Digest, usize>,
}

impl<T> PullTracker<T> {
    pub(super) fn new(plan: &Plan) -> Self {
        let mut uncommitted = HashMap::new();
        let layers = plan.layers.iter().map(|task| {
            let (id, blob) = (task.layer.id(), task.download().0);
            *uncommitted.entry(blob).or_default() += 1;
            let layer = Layer {
                blob,
                progress: LayerProgress::Missing,
                images: task.images.clone(),
            };
            (id, layer)
        });
        let layers: HashMap<_, _> = layers.collect();
        let images = plan.images.iter().map(|image| {
            let ids = image.layers.iter().map(|planned| planned.layer.id());
            let own: Vec<LayerId> = ids.filter(|id| layers.contains_key(id)).collect();
            Image {
                outcome: ImageOutcome::Open,
                missing: own.len(),
                layers: own,
            }
        });
        let images: Vec<_> = images.collect();
        let ready = plan.images.iter().zip(&images).enumerate();
        let ready = ready.filter(|(_, (planned, image))| {
            matches!(planned.action, ImageAction::Pull(_)) && image.missing == 0
        });
        Self {
            ready: ready.map(|(index, _)| index).collect(),
            images,
            layers,
            uncommitted,
        }
    }

    /// The first image, in the plan's order, that can be committed, with its staged layers, base first. Shared layers may have
    /// been taken with another image before.
    pub(super) fn take_ready(&mut self) -> Option<(usize, Vec<T>)> {
        let index = self.ready.pop_first()?;
        let layers = self.images[index].layers.iter();
        let taken = layers.filter_map(|id| self.layers.get_mut(id)?.progress.take_staged());
        Some((index, taken.collect()))
    }

    /// Whether an open image needs this blob.
    pub(super) fn needs(&self, blob: &BlobTask) -> bool {
        let layers = blob.layers.iter().filter_map(|id| self.layers.get(id));
        layers
            .filter(|layer| matches!(layer.progress, LayerProgress::Missing))
            .any(|layer| self.is_needed(layer))
    }

    /// A layer is staged. Returns it if no image needs it any more.
    #[must_use]
    pub(super) fn stage(&mut self, id: LayerId, staged: T) -> Option<T> {
        match self.layers.get(&id) {
            Some(layer) if matches!(layer.progress, LayerProgress::Missing) && self.is_needed(layer) => {}
            _ => return Some(staged),
        }
        if let Some(layer) = self.layers.get_mut(&id) {
            layer.progress = LayerProgress::Staged(staged);
            for index in &layer.images {
                let image = &mut self.images[*index];
                image.missing -= 1;
                if image.missing == 0 && image.outcome == ImageOutcome::Open {
                    self.ready.insert(*index);
                }
            }
        }
        None
    }

    /// A layer is unavailable: every open image with it fails. Returns these images.
    pub(super) fn fail_layer(&mut self, id: LayerId, reason: &Reason) -> Vec<usize> {
        let images = self.layers.get(&id).map_or(&[][..], |layer| &layer.images);
        let open = |index: &usize| self.images[*index].outcome == ImageOutcome::Open;
        let failing: Vec<usize> = images.iter().copied().filter(open).collect();
        for index in &failing {
            self.settle(*index, ImageOutcome::Failed(reason.clone()));
        }
        failing
    }

    /// Whether an image has no outcome yet.
    pub(super) fn is_open(&self, index: usize) -> bool {
        self.images[index].outcome == ImageOutcome::Open
    }

    /// Sets an image's outcome.
    pub(super) fn settle(&mut self, index: usize, outcome: ImageOutcome) {
        self.ready.remove(&index);
        self.images[index].outcome = outcome;
    }

    /// Takes the staged layers that only failed images have.
    pub(super) fn take_unneeded(&mut self) -> Vec<T> {
        let unneeded = self.layers.iter().filter(|(_, layer)| !self.is_needed(layer));
        let unneeded: Vec<LayerId> = unneeded.map(|(id, _)| *id).collect();
        let staged = unneeded
            .iter()
            .filter_map(|id| self.layers.get_mut(id)?.progress.take_staged());
        staged.collect()
    }

    /// A layer is in the store. Returns its blob if no other layer needs it any more.
    pub(super) fn layer_committed(&mut self, id: LayerId) -> Option<Digest> {
        let layer = self.layers.get_mut(&id)?;
        if matches!(layer.progress, LayerProgress::Committed) {
            return None;
        }
        layer.progress = LayerProgress::Committed;
        let left = self.uncommitted.get_mut(&layer.blob)?;
        *left -= 1;
        (*left == 0).then_some(layer.blob)
    }

    /// The outcomes of the plan's images, in order, and the staged layers that no commit took.
    pub(super) fn into_outcomes(self) -> (Vec<ImageOutcome>, Vec<T>) {
        let outcomes = self.images.into_iter().map(|image| image.outcome).collect();
        let staged = self
            .layers
            .into_values()
            .filter_map(|mut layer| layer.progress.take_staged());
        (outcomes, staged.collect())
    }

    fn is_needed(&self, layer: &Layer<T>) -> bool {
        layer
            .images
            .iter()
            .any(|index| self.images[*index].outcome == ImageOutcome::Open)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::HashSet;
    use std::sync::Arc;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::exit_code::Failure;
    use crate::image_request::Requester;
    use crate::oci::{self, Content, DiffId, LayerDescriptor, ResolvedImage};
    use crate::plan::{ImageToPlan, Present};

    /// Images, each written as its layers' letters, base first. A capital's blob is that of its small letter: two layers
    /// of one blob.
    fn plan(images: &[&str]) -> Plan {
        let layer = |letter: char| {
            let descriptor = LayerDescriptor {
                blob: Digest::of(letter.to_lowercase().to_string().as_bytes()),
                size: 1,
                media_type: "application/vnd.oci.image.layer.v1.tar".into(),
            };
            (descriptor, DiffId(Digest::of(letter.to_string().as_bytes())))
        };
        let content = |text: String| Content::new(Bytes::from(text));
        let images = images.iter().enumerate().map(|(index, letters)| ImageToPlan {
            reference: format!("example.com/i{index}:1").parse().unwrap(),
            requesters: vec![Requester::Additional],
            rank: None,
            action: ImageAction::Pull(Arc::new(ResolvedImage {
                list: None,
                manifest: content(format!("manifest {index}")),
                config: content(format!("config {index}")),
                layers: oci::Layer::chain(letters.chars().map(layer)),
                created: None,
                signatures: Vec::new(),
            })),
            authenticated: false,
        });
        Plan::build(images.collect(), Vec::new(), &Present::default())
    }

    /// A readable name for each of the plan's layers: `ab` is `b` on `a`.
    fn names(plan: &Plan, images: &[&str]) -> HashMap<LayerId, String> {
        let named = plan.images.iter().zip(images).flat_map(|(image, letters)| {
            let upto = |index| letters.chars().take(index + 1).collect::<String>();
            let ids = image.layers.iter().enumerate();
            ids.map(move |(index, planned)| (planned.layer.id(), upto(index)))
        });
        named.collect()
    }

    fn reason(message: &str) -> Reason {
        let (failure, message) = (Failure::Content, message.to_owned());
        Reason { failure, message }
    }

    /// Each line: the images, the events in order, and the images that are taken or fail. `+ab` stages layer `b` on `a`, `-ab`
    /// fails it, `>` takes all that is ready.
    #[test]
    fn images_are_taken_when_their_last_layer_is_staged_and_never_after_one_failed() {
        for (images, events, expected) in [
            (&["ab"][..], "+a > +ab >", "0: a ab"),
            (&["ab"], "+ab > +a >", "0: a ab"),
            (&["ab", "ac"], "+ac +a > +ab >", "1: a ac; 0: ab"),
            (&["ab", "ac"], "+a +ab +ac >", "0: a ab; 1: ac"),
            (&["ab", "ac"], "+a -ab +ac >", "0 failed; 1: a ac"),
            (&["ab", "ac"], "-a +ab +ac >", "0 failed; 1 failed"),
            (&["ab", "ac"], "+a +ac > -ab", "1: a ac; 0 failed"),
            (&["ab", "b"], "+a +ab +b >", "0: a ab; 1: b"),
            (&[""], ">", "0:"),
            (&["ab", "ab"], "+a +ab >", "0: a ab; 1:"),
        ] {
            let plan = plan(images);
            let names = names(&plan, images);
            let id = |name: &str| *names.iter().find(|(_, known)| *known == name).unwrap().0;
            let mut tracker = PullTracker::new(&plan);
            let mut events_seen = Vec::new();
            for event in events.split(' ') {
                match event.split_at(1) {
                    ("+", name) => drop(tracker.stage(id(name), name)),
                    ("-", name) => {
                        let failing = tracker.fail_layer(id(name), &reason(name));
                        events_seen.extend(failing.iter().map(|index| format!("{index} failed")));
                    }
                    _ => {
                        while let Some((index, layers)) = tracker.take_ready() {
                            events_seen.push(format!("{index}: {}", layers.join(" ")).trim_end().to_owned());
                        }
                    }
                }
            }
            assert_eq!(events_seen.join("; "), expected, "{images:?} {events}");
        }
    }

    #[test]
    fn a_blob_is_unneeded_when_all_its_layers_are_in_the_store() {
        let images = ["a", "A"];
        let plan = plan(&images);
        let mut tracker = PullTracker::new(&plan);
        let ids: Vec<LayerId> = plan.layers.iter().map(|task| task.layer.id()).collect();
        assert_eq!((plan.blobs.len(), ids.len()), (1, 2));
        for id in &ids {
            assert!(tracker.stage(*id, ()).is_none());
        }
        while tracker.take_ready().is_some() {}
        assert_eq!(tracker.layer_committed(ids[0]), None);
        assert_eq!(tracker.layer_committed(ids[0]), None);
        assert_eq!(tracker.layer_committed(ids[1]), Some(plan.blobs[0].digest));
        assert_eq!(tracker.layer_committed(ids[1]), None);
    }

    /// Images, and for random layers in random order whether they are staged or fail.
    fn histories() -> impl Strategy<Value = (Vec<String>, Vec<(prop::sample::Index, bool)>)> {
        let images = prop::collection::vec("[abAB]{0,4}", 1..6);
        (
            images,
            prop::collection::vec((any::<prop::sample::Index>(), prop::bool::weighted(0.8)), 0..40),
        )
    }

    proptest! {
        #[test]
        fn no_image_is_taken_without_a_layer_and_no_layer_is_lost((images, events) in histories()) {
            let images: Vec<&str> = images.iter().map(String::as_str).collect();
            let plan = plan(&images);
            let mut tracker = PullTracker::new(&plan);
            let ids: Vec<LayerId> = plan.layers.iter().map(|task| task.layer.id()).collect();
            let (mut staged, mut failed_layers) = (HashSet::new(), HashSet::new());
            // Layers that left the tracker: with an image, or because no image needs them.
            let (mut committed, mut dropped) = (HashSet::new(), HashSet::new());
            let (mut taken, mut failed) = (HashSet::new(), HashSet::new());
            for (which, arrives) in events {
                if !ids.is_empty() {
                    let id = ids[which.index(ids.len())];
                    // Each layer arrives or fails once.
                    if staged.contains(&id) || failed_layers.contains(&id) {
                    } else if arrives {
                        staged.insert(id);
                        dropped.extend(tracker.stage(id, id));
                    } else {
                        failed_layers.insert(id);
                        for index in tracker.fail_layer(id, &reason("failed")) {
                            prop_assert!(failed.insert(index), "{index} fails twice");
                        }
                        dropped.extend(tracker.take_unneeded());
                    }
                }
                while let Some((index, layers)) = tracker.take_ready() {
                    prop_assert!(taken.insert(index), "{index} is taken twice");
                    prop_assert!(!failed.contains(&index));
                    for id in layers {
                        prop_assert!(staged.contains(&id) && committed.insert(id));
                    }
                    for planned in &plan.images[index].layers {
                        prop_assert!(committed.contains(&planned.layer.id()), "image {index} lacks a layer");
                    }
                    tracker.settle(index, ImageOutcome::Pulled);
                }
            }
            for (index, image) in plan.images.iter().enumerate() {
                let has = |set: &HashSet<LayerId>| image.layers.iter().any(|it| set.contains(&it.layer.id()));
                let is_whole = image.layers.iter().all(|it| staged.contains(&it.layer.id()));
                prop_assert_eq!(failed.contains(&index), has(&failed_layers));
                // Without layers an image is taken only with the first event.
                prop_assert!(!is_whole || taken.contains(&index) || image.layers.is_empty());
            }
            let (outcomes, left) = tracker.into_outcomes();
            prop_assert_eq!(outcomes.len(), images.len());
            // Every staged layer went to exactly one of the three.
            prop_assert_eq!(committed.len() + dropped.len() + left.len(), staged.len());
            prop_assert!(dropped.is_disjoint(&committed));
            for id in left {
                prop_assert!(!dropped.contains(&id) && !committed.contains(&id));
            }
        }
    }
}
