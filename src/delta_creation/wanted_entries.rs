//! Decides which entries of an index of deltas stay when a run writes it again.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::image_pairs::ImagePair;
use crate::delta::artifact::DeltaIndex;
use crate::oci::Digest;

/// The entries that belong to the pairs of a run.
pub(super) struct WantedEntries {
    /// The old images of each pair, by the manifest of the new image; none for a pair without a predecessor.
    sources: HashMap<Digest, Option<OldConfigs>>,
    /// Whether every image of both releases is known.
    is_complete: bool,
}

/// Digests of the configs of a pair's old images.
struct OldConfigs {
    predecessor: Digest,
    /// Deltas may read one of them too.
    further: Vec<Digest>,
}

impl OldConfigs {
    fn of(pair: &ImagePair) -> Option<Self> {
        let further = pair.further.iter().map(|image| image.image.config.digest());
        Some(Self {
            predecessor: pair.old.as_ref()?.image.image.config.digest(),
            further: further.collect(),
        })
    }

    /// Unless `is_complete`, the further image may be one that is unknown now.
    fn allow(&self, sources: &[Digest], is_complete: bool) -> bool {
        match sources {
            [old] => *old == self.predecessor,
            [old, further] => *old == self.predecessor && (!is_complete || self.further.contains(further)),
            _ => false,
        }
    }
}

impl WantedEntries {
    /// Those of `pairs`. Unless `is_complete`, entries that may belong to an unknown image stay too: the registry of a single
    /// image that does not answer for a moment must not cost deltas that are published.
    pub(super) fn new(pairs: &[ImagePair], is_complete: bool) -> Self {
        let sources = pairs
            .iter()
            .map(|pair| (pair.new.image.manifest.digest(), OldConfigs::of(pair)));
        Self {
            sources: sources.collect(),
            is_complete,
        }
    }

    /// Removes all other entries.
    pub(super) fn retain(&self, index: &mut DeltaIndex) {
        let artifacts = &mut index.artifacts;
        artifacts.retain(|artifact| self.is_wanted(&artifact.target, Some(&artifact.sources)));
        index.without.retain(|target| self.is_wanted(target, None));
    }

    /// Adds the entries of `other` for images that `index` does not know.
    pub(super) fn merge(&self, index: &mut DeltaIndex, mut other: DeltaIndex) {
        let artifacts = index.artifacts.iter().map(|artifact| artifact.target);
        let known: HashSet<Digest> = artifacts.chain(index.without.iter().copied()).collect();
        self.retain(&mut other);
        other
            .artifacts
            .retain(|artifact| !known.contains(&artifact.target));
        other.without.retain(|target| !known.contains(target));
        index.artifacts.extend(other.artifacts);
        index.without.extend(other.without);
        // Images finish in any order. The same deltas make the same index. In each format, a node takes the first artifact
        // of an image that it can use: the one with more sources is smaller.
        index.artifacts.sort_by_key(|artifact| {
            let sources = Reverse(artifact.sources.len());
            (artifact.target, artifact.format, sources)
        });
        index.without.sort_unstable();
    }

    fn is_wanted(&self, target: &Digest, sources: Option<&[Digest]>) -> bool {
        match self.sources.get(target) {
            Some(Some(old)) => sources.is_none_or(|sources| old.allow(sources, self.is_complete)),
            Some(None) | None => !self.is_complete,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::Format;
    use crate::delta::artifact::ArtifactDescriptor;

    fn digest(text: &str) -> Digest {
        Digest::of(text.as_bytes())
    }

    fn wanted(is_complete: bool) -> WantedEntries {
        let sources = [("a", Some("old a")), ("b", Some("old b")), ("new", None)];
        let sources = sources.map(|(target, old)| {
            let old = old.map(|old| OldConfigs {
                predecessor: digest(old),
                further: ["x", "y"].map(digest).into(),
            });
            (digest(target), old)
        });
        WantedEntries {
            sources: sources.into(),
            is_complete,
        }
    }

    fn index(artifacts: &[(&str, &str)], without: &[&str]) -> DeltaIndex {
        let artifacts = artifacts.iter().map(|(target, old)| ArtifactDescriptor {
            digest: digest(&format!("{target} from {old}")),
            size: 1,
            format: Format::TarDiff,
            target: digest(target),
            sources: vec![digest(old)],
        });
        DeltaIndex {
            artifacts: artifacts.collect(),
            without: without.iter().copied().map(digest).collect(),
            ..DeltaIndex::default()
        }
    }

    #[test]
    fn an_entry_of_an_image_that_is_unknown_stays_only_while_images_are_missing() {
        let published = [
            ("a", "old a"),
            ("b", "older b"),
            ("c", "old c"),
            ("new", "old new"),
        ];
        let retained = |is_complete| {
            let mut index = index(&published, &["b", "d"]);
            wanted(is_complete).retain(&mut index);
            index
        };
        assert_eq!(retained(true), index(&published[..1], &["b"]));
        let all_but_b = [published[0], published[2], published[3]];
        assert_eq!(retained(false), index(&all_but_b, &["b", "d"]));
    }

    #[test]
    fn deltas_may_read_one_further_image_of_the_pair() {
        let allowed_when = |is_complete, sources: &[&str]| {
            let mut index = index(&[("a", "old a")], &[]);
            index.artifacts[0].sources = sources.iter().copied().map(digest).collect();
            wanted(is_complete).retain(&mut index);
            !index.artifacts.is_empty()
        };
        let allowed = |sources: &[&str]| allowed_when(true, sources);
        assert!(allowed(&["old a"]) && allowed(&["old a", "x"]) && allowed(&["old a", "y"]));
        for others in [&["old a", "z"][..], &["x", "old a"], &["old a", "x", "y"], &[]] {
            assert!(!allowed(others), "{others:?}");
        }
        assert!(allowed_when(false, &["old a", "missing"]));
        assert!(!allowed_when(false, &["missing", "x"]));
    }

    #[test]
    fn the_artifact_with_more_sources_comes_first() {
        let mut index = index(&[("a", "old a"), ("a", "old a")], &[]);
        index.artifacts[1].sources.push(digest("x"));
        let counts = |index: &DeltaIndex| -> Vec<usize> {
            let artifacts = index.artifacts.iter();
            artifacts.map(|artifact| artifact.sources.len()).collect()
        };
        wanted(true).merge(&mut index, DeltaIndex::default());
        assert_eq!(counts(&index), [2, 1]);
    }

    #[test]
    fn the_entries_of_another_creator_are_added_for_images_that_have_none() {
        let mut own = index(&[("a", "old a")], &[]);
        let other = index(&[("a", "old a"), ("c", "old c")], &["b"]);
        wanted(true).merge(&mut own, other.clone());
        assert_eq!(own, index(&[("a", "old a")], &["b"]));
        wanted(true).merge(&mut own, other);
        assert_eq!(own, index(&[("a", "old a")], &["b"]));
    }
}
