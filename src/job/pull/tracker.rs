//! Which layers of a plan are staged, which images wait for what, and which of them can be committed.
//!
//! A plain state machine: it does nothing by itself and is told of each event by [`super`].
//!
//! ```text
//! layer:  awaited ──stage──→ staged ──take, with an image──→ taken ──committed──→ its blob may go
//!            └──fail_layer──→ every image that has it fails
//! image:  open, awaiting n layers ──n = 0──→ ready ──take──→ its staged layers, base first
//! ```

use std::collections::{BTreeSet, HashMap};

use super::super::error::Reason;
use crate::oci::{Digest, LayerId};
use crate::plan::{BlobTask, ImageAction, Plan};

/// What became of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::job) enum ImageOutcome {
    /// Not decided: its turn has not come, or the store changed under it and it has to be planned again.
    Open,
    Pulled,
    Failed(Reason),
}

#[derive(Debug)]
struct Image {
    fate: ImageOutcome,
    /// How many of its layers are awaited.
    awaits: usize,
    /// All layers of the plan that it is made of, base first.
    layers: Vec<LayerId>,
}

/// `T` is a staged layer.
#[derive(Debug)]
struct Layer<T> {
    blob: Digest,
    place: LayerStage<T>,
    /// The images that have it.
    images: Vec<usize>,
}

#[derive(Debug)]
enum LayerStage<T> {
    Awaited,
    Staged(T),
    /// With an image, on the way into the store, or thrown away because nobody wants it.
    Taken,
    Committed,
}

impl<T> LayerStage<T> {
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
pub(in crate::job) struct PullTracker<T> {
    images: Vec<Image>,
    layers: HashMap<LayerId, Layer<T>>,
    /// Open images that await nothing and were not taken.
    ready: BTreeSet<usize>,
    /// How many layers of each blob are not in the store.
    uncommitted: HashMap<Digest, usize>,
}

impl<T> PullTracker<T> {
    pub(in crate::job) fn new(plan: &Plan) -> Self {
        let mut uncommitted = HashMap::new();
        let layers = plan.layers.iter().map(|task| {
            let (id, blob) = (task.layer.id(), task.layer.blob);
            *uncommitted.entry(blob).or_default() += 1;
            let images = task.images.clone();
            let place = LayerStage::Awaited;
            (id, Layer { blob, place, images })
        });
        let layers: HashMap<_, _> = layers.collect();
        let images = plan.images.iter().map(|image| {
            let ids = image.layers.iter().map(|planned| planned.layer.id());
            let own: Vec<LayerId> = ids.filter(|id| layers.contains_key(id)).collect();
            Image {
                fate: ImageOutcome::Open,
                awaits: own.len(),
                layers: own,
            }
        });
        let images: Vec<_> = images.collect();
        let ready = plan.images.iter().zip(&images).enumerate();
        let ready = ready.filter(|(_, (planned, image))| {
            matches!(planned.action, ImageAction::Pull(_)) && image.awaits == 0
        });
        Self {
            ready: ready.map(|(index, _)| index).collect(),
            images,
            layers,
            uncommitted,
        }
    }

    /// The first image, in the plan's order, that can be committed, with its staged layers, base first. Layers that it
    /// shares may have gone with another image before.
    pub(in crate::job) fn take(&mut self) -> Option<(usize, Vec<T>)> {
        let index = self.ready.pop_first()?;
        let layers = self.images[index].layers.iter();
        let taken = layers.filter_map(|id| self.layers.get_mut(id)?.place.take_staged());
        Some((index, taken.collect()))
    }

    /// Whether an image that has not failed awaits this blob.
    pub(in crate::job) fn wants(&self, blob: &BlobTask) -> bool {
        let layers = blob.layers.iter().filter_map(|id| self.layers.get(id));
        layers
            .filter(|layer| matches!(layer.place, LayerStage::Awaited))
            .any(|layer| self.is_wanted(layer))
    }

    /// A layer is staged. It is given back if nobody wants it any more.
    #[must_use]
    pub(in crate::job) fn stage(&mut self, id: LayerId, staged: T) -> Option<T> {
        match self.layers.get(&id) {
            Some(layer) if matches!(layer.place, LayerStage::Awaited) && self.is_wanted(layer) => {}
            _ => return Some(staged),
        }
        if let Some(layer) = self.layers.get_mut(&id) {
            layer.place = LayerStage::Staged(staged);
            for index in &layer.images {
                let image = &mut self.images[*index];
                image.awaits -= 1;
                if image.awaits == 0 && image.fate == ImageOutcome::Open {
                    self.ready.insert(*index);
                }
            }
        }
        None
    }

    /// A layer cannot be had: every image that has it fails, unless it failed before. Those that do now are returned.
    pub(in crate::job) fn fail_layer(&mut self, id: LayerId, reason: &Reason) -> Vec<usize> {
        let images = self.layers.get(&id).map_or(&[][..], |layer| &layer.images);
        let open = |index: &usize| self.images[*index].fate == ImageOutcome::Open;
        let failing: Vec<usize> = images.iter().copied().filter(open).collect();
        for index in &failing {
            self.settle(*index, ImageOutcome::Failed(reason.clone()));
        }
        failing
    }

    /// Decides an image's fate.
    pub(in crate::job) fn settle(&mut self, index: usize, fate: ImageOutcome) {
        self.ready.remove(&index);
        self.images[index].fate = fate;
    }

    /// Takes the staged layers that only failed images want.
    pub(in crate::job) fn take_unwanted(&mut self) -> Vec<T> {
        let unwanted = self.layers.iter().filter(|(_, layer)| !self.is_wanted(layer));
        let unwanted: Vec<LayerId> = unwanted.map(|(id, _)| *id).collect();
        let staged = unwanted
            .iter()
            .filter_map(|id| self.layers.get_mut(id)?.place.take_staged());
        staged.collect()
    }

    /// A layer is in the store; returns its blob if no other layer needs it any more.
    pub(in crate::job) fn committed(&mut self, id: LayerId) -> Option<Digest> {
        let layer = self.layers.get_mut(&id)?;
        if matches!(layer.place, LayerStage::Committed) {
            return None;
        }
        layer.place = LayerStage::Committed;
        let left = self.uncommitted.get_mut(&layer.blob)?;
        *left -= 1;
        (*left == 0).then_some(layer.blob)
    }

    /// The fates of the plan's images, in order, and what was staged for nothing.
    pub(in crate::job) fn into_fates(self) -> (Vec<ImageOutcome>, Vec<T>) {
        let fates = self.images.into_iter().map(|image| image.fate).collect();
        let staged = self
            .layers
            .into_values()
            .filter_map(|mut layer| layer.place.take_staged());
        (fates, staged.collect())
    }

    fn is_wanted(&self, layer: &Layer<T>) -> bool {
        layer
            .images
            .iter()
            .any(|index| self.images[*index].fate == ImageOutcome::Open)
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
        let wanted = images.iter().enumerate().map(|(index, letters)| ImageToPlan {
            reference: format!("example.com/i{index}:1").parse().unwrap(),
            requesters: vec![Requester::Additional],
            action: ImageAction::Pull(Arc::new(ResolvedImage {
                list: None,
                manifest: content(format!("manifest {index}")),
                config: content(format!("config {index}")),
                layers: oci::Layer::chain(letters.chars().map(layer)),
                created: None,
            })),
        });
        Plan::build(wanted.collect(), Vec::new(), &Present::default())
    }

    /// The plan's layers by a name that a reader understands: `ab` is `b` on `a`.
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

    /// Each line: the images, what happens in order, and what is taken or becomes of them. `+ab` stages layer `b` on `a`,
    /// `-ab` fails it, `>` takes whatever is ready.
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
            let mut board = PullTracker::new(&plan);
            let mut told = Vec::new();
            for event in events.split(' ') {
                match event.split_at(1) {
                    ("+", name) => drop(board.stage(id(name), name)),
                    ("-", name) => {
                        let failing = board.fail_layer(id(name), &reason(name));
                        told.extend(failing.iter().map(|index| format!("{index} failed")));
                    }
                    _ => {
                        while let Some((index, layers)) = board.take() {
                            told.push(format!("{index}: {}", layers.join(" ")).trim_end().to_owned());
                        }
                    }
                }
            }
            assert_eq!(told.join("; "), expected, "{images:?} {events}");
        }
    }

    #[test]
    fn a_blob_is_free_when_all_its_layers_are_in_the_store() {
        let images = ["a", "A"];
        let plan = plan(&images);
        let mut board = PullTracker::new(&plan);
        let ids: Vec<LayerId> = plan.layers.iter().map(|task| task.layer.id()).collect();
        assert_eq!((plan.blobs.len(), ids.len()), (1, 2));
        for id in &ids {
            assert!(board.stage(*id, ()).is_none());
        }
        while board.take().is_some() {}
        assert_eq!(board.committed(ids[0]), None);
        assert_eq!(board.committed(ids[0]), None);
        assert_eq!(board.committed(ids[1]), Some(plan.blobs[0].digest));
        assert_eq!(board.committed(ids[1]), None);
    }

    /// What happens to a layer whose blob came, and in which order.
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
            let mut board = PullTracker::new(&plan);
            let ids: Vec<LayerId> = plan.layers.iter().map(|task| task.layer.id()).collect();
            let (mut staged, mut spoilt) = (HashSet::new(), HashSet::new());
            // What came out again: with an image, or because nobody wants it.
            let (mut committed, mut thrown) = (HashSet::new(), HashSet::new());
            let (mut taken, mut failed) = (HashSet::new(), HashSet::new());
            for (which, comes) in events {
                if !ids.is_empty() {
                    let id = ids[which.index(ids.len())];
                    // Each layer comes or fails once.
                    if staged.contains(&id) || spoilt.contains(&id) {
                    } else if comes {
                        staged.insert(id);
                        thrown.extend(board.stage(id, id));
                    } else {
                        spoilt.insert(id);
                        for index in board.fail_layer(id, &reason("spoilt")) {
                            prop_assert!(failed.insert(index), "{index} fails twice");
                        }
                        thrown.extend(board.take_unwanted());
                    }
                }
                while let Some((index, layers)) = board.take() {
                    prop_assert!(taken.insert(index), "{index} is taken twice");
                    prop_assert!(!failed.contains(&index));
                    for id in layers {
                        prop_assert!(staged.contains(&id) && committed.insert(id));
                    }
                    for planned in &plan.images[index].layers {
                        prop_assert!(committed.contains(&planned.layer.id()), "image {index} lacks a layer");
                    }
                    board.settle(index, ImageOutcome::Pulled);
                }
            }
            for (index, image) in plan.images.iter().enumerate() {
                let has = |set: &HashSet<LayerId>| image.layers.iter().any(|it| set.contains(&it.layer.id()));
                let is_whole = image.layers.iter().all(|it| staged.contains(&it.layer.id()));
                prop_assert_eq!(failed.contains(&index), has(&spoilt));
                // Without layers an image waits for the first look.
                prop_assert!(!is_whole || taken.contains(&index) || image.layers.is_empty());
            }
            let (fates, left) = board.into_fates();
            prop_assert_eq!(fates.len(), images.len());
            // Every layer that came is in exactly one place.
            prop_assert_eq!(committed.len() + thrown.len() + left.len(), staged.len());
            prop_assert!(thrown.is_disjoint(&committed));
            for id in left {
                prop_assert!(!thrown.contains(&id) && !committed.contains(&id));
            }
        }
    }
}
