//! Questions to registries about images, the registries side by side.
//!
//! Each registry has a lane of its own: one that does not answer, and is asked again until the run gives up, keeps only
//! its own images waiting. The lanes are tasks: they go on while images are pulled.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::panic;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::{JoinError, JoinSet};

use crate::cancel::Cancel;
use crate::oci::{Digest, Platform, Reference, ResolvedImage};
use crate::registry::{Registries, RegistryError};
use crate::store::Inventory;

/// Images of one registry at the same time: a manifest and a config each, so what counts is the link's latency. With a
/// round trip of 150 ms 200 images take 5.3 s with 16, 3.3 s with 32 and 2.4 s with 64. By HTTP/1.1 each is a connection,
/// and a node among many should not take more of a registry.
const AT_ONCE: usize = 32;

/// Who is asked, and what has not been answered.
pub(super) struct ResolveQueue {
    registries: Arc<Registries>,
    platform: Platform,
    cancel: Cancel,
    /// Ended with the inquiry.
    lanes: JoinSet<()>,
    /// At most one for each image, so bounded.
    sender: UnboundedSender<Answer>,
    answers: UnboundedReceiver<Answer>,
    /// Answers that came and were not taken.
    came: VecDeque<Answer>,
    /// Of which no answer was taken.
    unanswered: HashSet<Reference>,
}

/// What came of one question.
pub(super) struct Answer {
    pub(super) reference: Reference,
    pub(super) image: Result<ResolvedImage, RegistryError>,
}

impl ResolveQueue {
    pub(super) fn new(registries: Arc<Registries>, platform: Platform, cancel: Cancel) -> Self {
        let (sender, answers) = mpsc::unbounded_channel();
        Self {
            registries,
            platform,
            cancel,
            lanes: JoinSet::new(),
            sender,
            answers,
            came: VecDeque::new(),
            unanswered: HashSet::new(),
        }
    }

    /// Adds images, unless they are being asked about. The store's own manifests and configs are as good as the
    /// registry's, for digests name them.
    pub(super) fn ask(&mut self, references: Vec<Reference>, inventory: &Arc<Inventory>) {
        let mut lanes: BTreeMap<String, Vec<Reference>> = BTreeMap::new();
        for reference in references {
            if self.unanswered.insert(reference.clone()) {
                lanes
                    .entry(reference.domain().to_owned())
                    .or_default()
                    .push(reference);
            }
        }
        for (_, references) in lanes {
            let (registries, inventory) = (Arc::clone(&self.registries), Arc::clone(inventory));
            let (platform, cancel) = (self.platform.clone(), self.cancel.clone());
            let sender = self.sender.clone();
            let lane = stream::iter(references).for_each_concurrent(AT_ONCE, move |reference| {
                let (registries, inventory) = (Arc::clone(&registries), Arc::clone(&inventory));
                let (platform, cancel, sender) = (platform.clone(), cancel.clone(), sender.clone());
                async move {
                    let known = |digest: &Digest| {
                        inventory.content(digest).unwrap_or_else(|error| {
                            tracing::warn!(
                                "cannot read `{digest}` from the store, asking the registry: {error}"
                            );
                            None
                        })
                    };
                    let image = registries.resolve(&reference, &platform, &known, &cancel).await;
                    // Nobody listens any more when the run ends.
                    let _ = sender.send(Answer { reference, image });
                }
            });
            self.lanes.spawn(lane);
        }
    }

    /// The next answer, in no order; none when nothing is unanswered.
    pub(super) async fn next(&mut self) -> Option<Answer> {
        while !self.unanswered.is_empty() {
            if let Some(answer) = self.came.pop_front() {
                self.unanswered.remove(&answer.reference);
                return Some(answer);
            }
            self.receive().await;
        }
        None
    }

    /// Waits until all have answered, or none has for so long, and shows the answers; they stay for [`Self::next`].
    pub(super) async fn foresee(&mut self, patience: Duration) -> impl Iterator<Item = &Answer> {
        while self.came.len() < self.unanswered.len()
            && tokio::time::timeout(patience, self.receive()).await.is_ok()
        {}
        self.came.iter()
    }

    /// Waits for answers about these images only.
    pub(super) fn keep(&mut self, wanted: &HashSet<&Reference>) {
        self.unanswered.retain(|reference| wanted.contains(reference));
        self.came.retain(|answer| wanted.contains(&answer.reference));
    }

    /// Waits for something to come.
    async fn receive(&mut self) {
        tokio::select! {
            biased;
            Some(answer) = self.answers.recv() => {
                if self.unanswered.contains(&answer.reference) {
                    self.came.push_back(answer);
                }
            }
            Some(ended) = self.lanes.join_next(), if !self.lanes.is_empty() => {
                ended.unwrap_or_else(pass_on);
            }
        }
    }

    /// Whether no answer was taken yet about an image that was asked about.
    pub(super) fn is_open(&self, reference: &Reference) -> bool {
        self.unanswered.contains(reference)
    }

    /// How many images are there of which no answer was taken.
    pub(super) fn open(&self) -> usize {
        self.unanswered.len()
    }
}

/// A lane that panicked has lost its answers: nobody is to wait for them.
fn pass_on(error: JoinError) {
    if let Ok(reason) = error.try_into_panic() {
        panic::resume_unwind(reason);
    }
}
