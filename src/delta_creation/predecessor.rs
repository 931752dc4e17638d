//! Chooses the old images whose files make a new image. Does no I/O.
//!
//! The predecessor is the old image with the same name. A new component has none; then it is one that was built from the same
//! source, and if there is none, one on the same base layers. Several images may be built from the same source. A component may
//! move files between them, so these others may have what the predecessor lacks.
//!
//! While an image of a release cannot be resolved, only names count: the best choice may be the image that is missing, and a
//! worse one would be published for good.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};

use super::creation_report::SourceReason;
use super::named_image::NamedImage;
use crate::oci::{DiffId, Digest, Layer};

/// The old image whose files make a new one.
#[derive(Clone, Debug)]
pub(super) struct Predecessor {
    pub(super) image: NamedImage,
    pub(super) reason: SourceReason,
}

/// The images of an old release as predecessors.
pub(super) struct OldRelease<'a> {
    images: &'a [NamedImage],
    /// Whether every image of both releases is known.
    is_complete: bool,
    by_name: HashMap<&'a str, &'a NamedImage>,
    /// By the source that they were built from.
    by_source: HashMap<String, Vec<&'a NamedImage>>,
    /// The images of the new release by name.
    successors: HashMap<&'a str, &'a NamedImage>,
}

impl<'a> OldRelease<'a> {
    pub(super) fn new(old: &'a [NamedImage], new: &'a [NamedImage], is_complete: bool) -> Self {
        let by_name = |images: &'a [NamedImage]| -> HashMap<&'a str, &'a NamedImage> {
            images.iter().map(|image| (image.name.as_str(), image)).collect()
        };
        let mut by_source: HashMap<String, Vec<&NamedImage>> = HashMap::new();
        for image in old {
            if let Some(source) = image.built_from() {
                by_source.entry(source).or_default().push(image);
            }
        }
        Self {
            images: old,
            is_complete,
            by_name: by_name(old),
            by_source,
            successors: by_name(new),
        }
    }

    /// The predecessor of a new image.
    pub(super) fn predecessor(&self, new: &NamedImage) -> Option<Predecessor> {
        let same_name = self.by_name.get(new.name.as_str()).copied();
        let same_source = || self.of_same_source(new).into_iter().next();
        let (image, reason) = same_name
            .map(|image| (image, SourceReason::Name))
            .or_else(|| Some((same_source()?, SourceReason::Source)))
            .or_else(|| Some((self.of_same_base(new)?, SourceReason::Base)))?;
        let image = image.clone();
        Some(Predecessor { image, reason })
    }

    /// Images that may have files of the new image which its predecessor lacks, the most promising one first.
    pub(super) fn further(&self, new: &NamedImage, predecessor: &Predecessor) -> Vec<NamedImage> {
        let mut known: HashSet<DiffId> = diff_ids(&predecessor.image).collect();
        let candidates = self.of_same_source(new).into_iter();
        let with_other_layers = candidates.filter(|image| {
            let before = known.len();
            known.extend(diff_ids(image));
            known.len() > before
        });
        with_other_layers.cloned().collect()
    }

    /// The images that were built from the same source, the one with the nearest name first.
    fn of_same_source(&self, new: &NamedImage) -> Vec<&'a NamedImage> {
        let source = new.built_from().filter(|_| self.is_complete);
        let found = source.and_then(|source| self.by_source.get(&source));
        let mut found = found.cloned().unwrap_or_default();
        found.sort_by_cached_key(|image| nearness(&new.name, image));
        found
    }

    /// The image with the most base layers in common, which it had before or got in the new release; of equals the one with
    /// the nearest name.
    fn of_same_base(&self, new: &NamedImage) -> Option<&'a NamedImage> {
        let common = |image: &NamedImage| {
            let successor = self.successors.get(image.name.as_str());
            let now = successor.map_or(0, |successor| common_layers(new, successor));
            now.max(common_layers(new, image))
        };
        let with_common = self.images.iter().map(|image| (common(image), image));
        let best = with_common
            .filter(|(common, _)| self.is_complete && *common > 0)
            .min_by_key(|(common, image)| (Reverse(*common), nearness(&new.name, image)));
        best.map(|(_, image)| image)
    }
}

/// Sorts images by how much their names differ from `name`: by the number of words that only one of them has. The rest makes
/// the order the same in every run.
fn nearness(name: &str, image: &NamedImage) -> (usize, String, Digest) {
    let words = |name: &str| -> BTreeSet<String> { name.split('-').map(str::to_owned).collect() };
    let differing = words(name).symmetric_difference(&words(&image.name)).count();
    (differing, image.name.clone(), image.image.manifest.digest())
}

/// How many layers both images have at their base.
fn common_layers(a: &NamedImage, b: &NamedImage) -> usize {
    let both = diff_ids(a).zip(diff_ids(b));
    both.take_while(|(a, b)| a == b).count()
}

fn diff_ids(image: &NamedImage) -> impl Iterator<Item = DiffId> {
    image.image.layers.iter().map(Layer::diff_id)
}

#[cfg(test)]
mod tests {
    use super::super::named_image::tests::image;
    use super::*;

    const SOURCE: &str = "https://github.com/openshift/oc";

    /// The predecessor of the first new image, and the further images.
    fn shown(old: &[NamedImage], new: &[NamedImage]) -> String {
        chosen(old, new, true)
    }

    fn chosen(old: &[NamedImage], new: &[NamedImage], is_complete: bool) -> String {
        let release = OldRelease::new(old, new, is_complete);
        let Some(predecessor) = release.predecessor(&new[0]) else {
            return "none".to_owned();
        };
        let further = release.further(&new[0], &predecessor);
        let further: Vec<&str> = further.iter().map(|image| image.name.as_str()).collect();
        let (name, reason) = (predecessor.image.name, predecessor.reason);
        format!("{name} by {reason:?} {further:?}")
    }

    #[test]
    fn the_name_counts_most_then_the_source_then_the_base() {
        let cli = image("cli", &["b1", "c1"], Some(SOURCE));
        let pod = image(
            "pod",
            &["b1", "p1"],
            Some("https://github.com/openshift/kubernetes"),
        );
        let old = [pod, cli];
        let new = |name, source| [image(name, &["b1", "n"], source)];
        let shown = |name, source| shown(&old, &new(name, source));
        assert_eq!(shown("pod", Some(SOURCE)), "pod by Name [\"cli\"]");
        assert_eq!(shown("tools", Some(SOURCE)), "cli by Source []");
        assert_eq!(shown("tools", None), "cli by Base []");
        assert_eq!(shown("pod-2", None), "pod by Base []");
    }

    #[test]
    fn an_image_with_neither_the_source_nor_the_base_is_no_predecessor() {
        let old = [image("cli", &["b1", "c1"], None)];
        let new = [image("tools", &["b2", "t"], None)];
        assert_eq!(shown(&old, &new), "none");
    }

    #[test]
    fn while_an_image_is_missing_only_the_name_counts() {
        let of_source = |name| image(name, &["b1", name], Some(SOURCE));
        let old = [of_source("cli"), of_source("deployer")];
        assert_eq!(chosen(&old, &[of_source("cli")], false), "cli by Name []");
        assert_eq!(chosen(&old, &[of_source("tools")], false), "none");
    }

    #[test]
    fn of_several_images_of_one_source_the_one_with_the_nearest_name_serves() {
        let names = ["cli", "cli-artifacts", "must-gather", "deployer"];
        let mut old = names.map(|name| image(name, &["b1", name], Some(SOURCE)));
        let new = [image("oc-cli-artifacts", &["b2", "n"], Some(SOURCE))];
        let expected = "cli-artifacts by Source [\"cli\", \"deployer\", \"must-gather\"]";
        assert_eq!(shown(&old, &new), expected);
        old.reverse();
        assert_eq!(shown(&old, &new), expected, "the order of the payload");
    }

    #[test]
    fn an_updated_base_is_the_same_base() {
        let old = [
            image("cli", &["b1", "c1"], None),
            image("pod", &["a1", "p1"], None),
        ];
        let new = [
            image("tools", &["b2", "t"], None),
            image("pod", &["a2", "p1"], None),
            image("cli", &["b2", "c2"], None),
        ];
        assert_eq!(shown(&old, &new), "cli by Base []");
    }

    #[test]
    fn an_image_whose_layers_the_predecessor_has_is_no_further_one() {
        let of_source = |name, layers: &[&str]| image(name, layers, Some(SOURCE));
        let old = [
            of_source("cli", &["b1", "c1"]),
            of_source("cli-copy", &["b1", "c1"]),
            of_source("tools", &["b1", "c1", "t1"]),
        ];
        let new = [of_source("cli", &["b2", "c2"])];
        assert_eq!(shown(&old, &new), "cli by Name [\"tools\"]");
    }
}
