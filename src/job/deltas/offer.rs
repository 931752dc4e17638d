//! Describes one artifact that an index offers: the deltas of one image in one format.

use std::collections::HashSet;

use crate::delta::Format;
use crate::delta::artifact::{ArtifactDescriptor, DeltaIndex};
use crate::oci::{Digest, Reference};

/// How many artifacts of one image are remembered.
const MAX_OFFERS: usize = 64;

/// An artifact. Untrusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// Its name by digest, in the repository of the index.
    pub(super) artifact: Reference,
    /// Digest of the target image's manifest.
    pub(super) target: Digest,
    pub(super) format: Format,
    /// Digests of the configs of the old images.
    pub(super) sources: Vec<Digest>,
    digest: Digest,
}

impl Offer {
    /// Every artifact of an index in this repository, with its target.
    pub(super) fn of_index(
        repository: &Reference,
        index: DeltaIndex,
    ) -> impl Iterator<Item = (Digest, Self)> {
        index.artifacts.into_iter().map(move |descriptor| {
            let ArtifactDescriptor {
                digest,
                format,
                target,
                sources,
                ..
            } = descriptor;
            let offer = Self {
                artifact: repository.with_digest(digest),
                target,
                format,
                sources,
                digest,
            };
            (target, offer)
        })
    }

    /// Digest of the artifact's manifest.
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    /// The first usable offer of each format.
    pub(super) fn choose(offers: &[Self], is_usable: impl Fn(&Self) -> bool) -> Vec<Self> {
        let mut formats = HashSet::new();
        let usable = offers.iter().take(MAX_OFFERS).filter(|offer| is_usable(offer));
        let chosen = usable.filter(|offer| formats.insert(offer.format));
        chosen.cloned().collect()
    }
}
