//! Questions to registries about images, the registries side by side.
//!
//! Each registry has a lane of its own: one that does not answer, and is asked again until the run gives up, keeps only
//! its own images waiting. Nothing goes on while nobody calls [`Inquiry::next`].

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream, SelectAll};

use crate::cancel::Cancel;
use crate::oci::{Digest, Platform, Reference, ResolvedImage};
use crate::registry::{Registries, RegistryError};
use crate::store::Inventory;

/// Images of one registry at the same time: a manifest and a config each, so what counts is the link's latency.
const AT_ONCE: usize = 16;

/// Who is asked, and what has not been answered.
pub(super) struct Inquiry {
    registries: Arc<Registries>,
    platform: Platform,
    cancel: Cancel,
    lanes: SelectAll<BoxStream<'static, Answer>>,
    unanswered: HashSet<Reference>,
}

/// What came of one question.
pub(super) struct Answer {
    pub(super) reference: Reference,
    pub(super) image: Result<ResolvedImage, RegistryError>,
}

impl Inquiry {
    pub(super) fn new(registries: Arc<Registries>, platform: Platform, cancel: Cancel) -> Self {
        Self {
            registries,
            platform,
            cancel,
            lanes: SelectAll::new(),
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
            let answers = stream::iter(references).map(move |reference| {
                let (registries, inventory) = (Arc::clone(&registries), Arc::clone(&inventory));
                let (platform, cancel) = (platform.clone(), cancel.clone());
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
                    Answer { reference, image }
                }
            });
            self.lanes.push(answers.buffer_unordered(AT_ONCE).boxed());
        }
    }

    /// The next answer, in no order; none when nothing is unanswered.
    pub(super) async fn next(&mut self) -> Option<Answer> {
        let answer = self.lanes.next().await?;
        self.unanswered.remove(&answer.reference);
        Some(answer)
    }

    /// How many images have no answer.
    pub(super) fn open(&self) -> usize {
        self.unanswered.len()
    }
}
