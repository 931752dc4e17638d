//! Decides which layers need a delta, and from which old image each is made. Does no I/O.
//!
//! A node has all layers of the old release, so only a layer whose diffID none of these has needs a delta. Several new images
//! may share such a layer; one of them gets its delta.

use std::collections::{HashMap, HashSet};

use super::creation_report::SourceReason;
use super::named_image::NamedImage;
use super::predecessor::{OldRelease, Predecessor};
use crate::oci::{DiffId, Digest, Layer};

/// A smaller blob costs less than the request for a delta.
const MIN_BLOB: u64 = 4 << 10;

/// How many old images besides the predecessor may be read for files that it lacks. Each costs a download.
const MAX_FURTHER: usize = 2;

/// How much larger than the new layers such an image may be: reading it takes disk space and time, although it may have nothing.
const MAX_FURTHER_RATIO: u64 = 2;

/// A new image that needs deltas.
#[derive(Clone, Debug)]
pub(super) struct ImagePair {
    pub(super) new: NamedImage,
    /// None for a new component that no old image resembles.
    pub(super) old: Option<Predecessor>,
    /// Old images that may have files which the predecessor lacks.
    pub(super) further: Vec<NamedImage>,
    /// The layers that get a delta with this image, base first; at least one.
    pub(super) layers: Vec<Layer>,
}

/// The pairs of two releases.
#[derive(Debug, Default)]
pub(super) struct Pairing {
    pub(super) pairs: Vec<ImagePair>,
    /// How many images both releases have.
    pub(super) equal: usize,
    /// How many new images consist of layers that the old release or other pairs have.
    pub(super) shared: usize,
}

/// Pairs the images of a new release with those of an old one. `is_complete`: every image of both is known.
pub(super) fn pair_images(old: &[NamedImage], new: &[NamedImage], is_complete: bool) -> Pairing {
    let known: HashSet<DiffId> = old.iter().flat_map(diff_ids).collect();
    let old_manifests: HashSet<Digest> = old.iter().map(manifest).collect();
    let old_release = OldRelease::new(old, new, is_complete);
    let mut pairing = Pairing::default();
    let mut seen = HashSet::new();
    let mut pairs: Vec<ImagePair> = Vec::new();
    for image in new {
        match old_manifests.contains(&manifest(image)) {
            true => pairing.equal += 1,
            false if seen.insert(manifest(image)) => {
                let old = old_release.predecessor(image);
                let further = old.as_ref().map(|old| old_release.further(image, old));
                pairs.push(ImagePair {
                    new: image.clone(),
                    old,
                    further: further.unwrap_or_default(),
                    layers: Vec::new(),
                });
            }
            false => {}
        }
    }
    let owners = owners(&pairs);
    for (index, pair) in pairs.iter_mut().enumerate() {
        let mut own = HashSet::new();
        let layers = pair.new.image.layers.iter().filter(|layer| {
            layer.size >= MIN_BLOB
                && !known.contains(&layer.diff_id())
                && owners.get(&layer.diff_id()) == Some(&index)
                && own.insert(layer.diff_id())
        });
        pair.layers = layers.cloned().collect();
    }
    let all = pairs.len();
    pairs.retain(|pair| !pair.layers.is_empty());
    pairs.iter_mut().for_each(ImagePair::limit_further);
    pairing.shared = all - pairs.len();
    pairing.pairs = pairs;
    pairing
}

/// The pair that gets the delta of each layer. Of several, it is the first whose predecessor has the most common base: most
/// likely that is the base from which the layer's own base was updated. A predecessor of the same name is a better sign of that.
fn owners(pairs: &[ImagePair]) -> HashMap<DiffId, usize> {
    let mut candidates: HashMap<DiffId, Vec<usize>> = HashMap::new();
    for (index, pair) in pairs.iter().enumerate() {
        for diff_id in diff_ids(&pair.new) {
            candidates.entry(diff_id).or_default().push(index);
        }
    }
    let old = |index: &usize| pairs[*index].old.as_ref();
    let base = |index: &usize| Some(old(index)?.image.image.layers.first()?.diff_id());
    let owners = candidates.into_iter().map(|(diff_id, candidates)| {
        let mut counts: HashMap<DiffId, usize> = HashMap::new();
        for base in candidates.iter().filter_map(base) {
            *counts.entry(base).or_default() += 1;
        }
        let count = |index: &usize| base(index).and_then(|base| counts.get(&base).copied());
        let has_name = |index: &usize| old(index).is_some_and(|old| old.reason == SourceReason::Name);
        // The first of the best: `max_by_key` returns the last.
        let owner = candidates
            .iter()
            .rev()
            .max_by_key(|index| (count(index), has_name(index)));
        (diff_id, owner.copied().unwrap_or_default())
    });
    owners.collect()
}

impl ImagePair {
    /// The layers of the predecessor whose files are sources, base first.
    ///
    /// Layers below those that correspond to the new layers are left out, because they would only take time: they are still
    /// in the new image, or another pair has their deltas. All layers above one that is read are read too, because they may
    /// hide its files.
    pub(super) fn old_layers(&self) -> &[Layer] {
        let Some(old) = &self.old else {
            return &[];
        };
        let (old, new) = (&old.image.image.layers, &self.new.image.layers);
        let wanted: HashSet<DiffId> = self.layers.iter().map(Layer::diff_id).collect();
        let first = new.iter().position(|layer| wanted.contains(&layer.diff_id()));
        let above = new.len() - first.unwrap_or_default();
        let common = old
            .iter()
            .zip(new)
            .take_while(|(old, new)| old.diff_id() == new.diff_id());
        let common = common.count().min(old.len().saturating_sub(1));
        &old[old.len().saturating_sub(above).max(common)..]
    }

    fn limit_further(&mut self) {
        let most = self.whole_bytes().saturating_mul(MAX_FURTHER_RATIO);
        let mut further = std::mem::take(&mut self.further);
        further.retain(|image| bytes(self.further_layers(image)) <= most);
        further.truncate(MAX_FURTHER);
        self.further = further;
    }

    /// The layers of a further image, base first, without those at its base that the predecessor has too.
    pub(super) fn further_layers<'i>(&self, image: &'i NamedImage) -> &'i [Layer] {
        let known: HashSet<DiffId> = self.old.iter().flat_map(|old| diff_ids(&old.image)).collect();
        let layers = &image.image.layers;
        let other = layers.iter().position(|layer| !known.contains(&layer.diff_id()));
        &layers[other.unwrap_or(layers.len())..]
    }

    /// Bytes of the blobs that deltas replace.
    pub(super) fn whole_bytes(&self) -> u64 {
        bytes(&self.layers)
    }
}

fn bytes(layers: &[Layer]) -> u64 {
    layers.iter().map(|layer| layer.size).sum()
}

fn diff_ids(image: &NamedImage) -> impl Iterator<Item = DiffId> {
    image.image.layers.iter().map(Layer::diff_id)
}

fn manifest(image: &NamedImage) -> Digest {
    image.image.manifest.digest()
}

#[cfg(test)]
mod tests {
    use super::super::named_image::tests::{diff_id, image};
    use super::*;

    /// `name: layers from layers of the predecessor`, for each pair.
    fn shown(old: &[NamedImage], new: &[NamedImage]) -> Vec<String> {
        let names = [
            "b", "c", "b1", "b2", "c1", "m1", "m2", "t1", "t2", "u1", "u2", "v2",
        ];
        let name = |layer: &Layer| {
            let name = names.iter().find(|name| diff_id(name) == layer.diff_id());
            name.copied().unwrap_or("?").to_owned()
        };
        let list = |layers: &[Layer]| layers.iter().map(name).collect::<Vec<_>>().join(" ");
        let pairs = pair_images(old, new, true).pairs;
        let shown = pairs.iter().map(|pair| {
            let (layers, old) = (list(&pair.layers), list(pair.old_layers()));
            format!("{}: {layers} from {old}", pair.new.name)
        });
        shown.collect()
    }

    #[test]
    fn a_layer_on_an_unchanged_base_is_made_from_its_predecessor_alone() {
        let old = [image("t", &["b", "t1"], None), image("u", &["b", "u1"], None)];
        let new = [image("t", &["b", "t2"], None), image("u", &["b", "u1"], None)];
        assert_eq!(shown(&old, &new), ["t: t2 from t1"]);
        assert_eq!(pair_images(&old, &new, true).equal, 1);
    }

    #[test]
    fn one_image_gets_the_delta_of_a_shared_base() {
        let old = [
            image("t", &["b1", "m1", "t1"], None),
            image("u", &["b1", "m1", "u1"], None),
        ];
        let new = [
            image("t", &["b2", "m2", "t2"], None),
            image("u", &["b2", "m2", "u2"], None),
        ];
        let expected = ["t: b2 m2 t2 from b1 m1 t1", "u: u2 from u1"];
        assert_eq!(shown(&old, &new), expected);
    }

    #[test]
    fn the_delta_of_a_shared_base_is_made_from_the_base_that_most_images_had() {
        let old = [
            image("t", &["c1", "t1"], None),
            image("u", &["b1", "u1"], None),
            image("v", &["b1"], None),
        ];
        let new = [
            image("t", &["b2", "t2"], None),
            image("u", &["b2", "u2"], None),
            image("v", &["b2", "v2"], None),
        ];
        let expected = ["t: t2 from t1", "u: b2 u2 from b1 u1", "v: v2 from b1"];
        assert_eq!(shown(&old, &new), expected);
    }

    #[test]
    fn a_component_of_the_same_name_gets_the_base_that_a_new_one_shares() {
        let old = [image("t", &["b1", "t1"], None)];
        let new = [image("u", &["b2", "u2"], None), image("t", &["b2", "t2"], None)];
        assert_eq!(shown(&old, &new), ["u: u2 from t1", "t: b2 t2 from b1 t1"]);
    }

    #[test]
    fn a_new_component_that_resembles_nothing_has_no_old_layers() {
        let old = [image("t", &["b1", "t1"], None)];
        let new = [image("u", &["c1", "u2"], None)];
        assert_eq!(shown(&old, &new), ["u: c1 u2 from "]);
    }

    #[test]
    fn a_further_image_is_read_above_the_layers_of_the_predecessor() {
        let of_source = |name, layers: &[&str]| image(name, layers, Some("https://a/b"));
        let old = [
            of_source("t", &["b1", "t1"]),
            of_source("t-u", &["b1", "m1", "u1"]),
            of_source("t-large", &["c1", "c2", "c3"]),
        ];
        let new = [of_source("t", &["b1", "t2"])];
        let pair = &pair_images(&old, &new, true).pairs[0];
        let names: Vec<&str> = pair.further.iter().map(|image| image.name.as_str()).collect();
        assert_eq!(names, ["t-u"], "the other one is too large");
        let layers = pair.further_layers(&pair.further[0]);
        let diff_ids: Vec<DiffId> = layers.iter().map(Layer::diff_id).collect();
        assert_eq!(diff_ids, [diff_id("m1"), diff_id("u1")]);
    }

    #[test]
    fn an_image_made_of_known_layers_needs_nothing() {
        let old = [image("t", &["b", "t1"], None), image("u", &["b", "u1"], None)];
        let new = [image("t", &["b", "u1"], None)];
        assert_eq!(shown(&old, &new), [""; 0]);
        assert_eq!(pair_images(&old, &new, true).shared, 1);
    }

    #[test]
    fn a_layer_on_top_of_all_old_layers_is_made_from_the_top_one() {
        let old = [image("t", &["b", "t1"], None)];
        let new = [image("t", &["b", "t1", "t2"], None)];
        assert_eq!(shown(&old, &new), ["t: t2 from t1"]);
    }
}
