//! Decides which layers need a delta, and from which old image each is made. Does no I/O.
//!
//! A node has all layers of the old release, so only a layer whose diffID none of these has needs a delta. Several new images
//! may share such a layer; one of them gets its delta. The old image is the predecessor: the image with the same name.

use std::collections::{HashMap, HashSet};

use super::named_image::NamedImage;
use crate::oci::{DiffId, Digest, Layer};

/// A smaller blob costs less than the request for a delta.
const MIN_BLOB: u64 = 4 << 10;

/// A new image that needs deltas.
#[derive(Clone, Debug)]
pub(super) struct ImagePair {
    pub(super) new: NamedImage,
    /// The predecessor; none for a new component.
    pub(super) old: Option<NamedImage>,
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

/// Pairs the images of a new release with those of an old one.
pub(super) fn pair_images(old: &[NamedImage], new: &[NamedImage]) -> Pairing {
    let known: HashSet<DiffId> = old.iter().flat_map(diff_ids).collect();
    let old_manifests: HashSet<Digest> = old.iter().map(manifest).collect();
    let predecessors: HashMap<&str, &NamedImage> =
        old.iter().map(|image| (image.name.as_str(), image)).collect();
    let mut pairing = Pairing::default();
    let mut seen = HashSet::new();
    let mut pairs: Vec<ImagePair> = Vec::new();
    for image in new {
        match old_manifests.contains(&manifest(image)) {
            true => pairing.equal += 1,
            false if seen.insert(manifest(image)) => pairs.push(ImagePair {
                new: image.clone(),
                old: predecessors.get(image.name.as_str()).copied().cloned(),
                layers: Vec::new(),
            }),
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
    pairing.shared = all - pairs.len();
    pairing.pairs = pairs;
    pairing
}

/// The pair that gets the delta of each layer. Of several, it is the first whose predecessor has the most common base: most
/// likely that is the base from which the layer's own base was updated.
fn owners(pairs: &[ImagePair]) -> HashMap<DiffId, usize> {
    let mut candidates: HashMap<DiffId, Vec<usize>> = HashMap::new();
    for (index, pair) in pairs.iter().enumerate() {
        for diff_id in diff_ids(&pair.new) {
            candidates.entry(diff_id).or_default().push(index);
        }
    }
    let base = |index: &usize| Some(pairs[*index].old.as_ref()?.image.layers.first()?.diff_id());
    let owners = candidates.into_iter().map(|(diff_id, candidates)| {
        let mut counts: HashMap<DiffId, usize> = HashMap::new();
        for base in candidates.iter().filter_map(base) {
            *counts.entry(base).or_default() += 1;
        }
        let count = |index: &usize| base(index).and_then(|base| counts.get(&base).copied());
        // The first of the best: `max_by_key` returns the last.
        let owner = candidates.iter().rev().max_by_key(|index| count(index));
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
        let (old, new) = (&old.image.layers, &self.new.image.layers);
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

    /// Bytes of the blobs that deltas replace.
    pub(super) fn whole_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.size).sum()
    }
}

fn diff_ids(image: &NamedImage) -> impl Iterator<Item = DiffId> {
    image.image.layers.iter().map(Layer::diff_id)
}

fn manifest(image: &NamedImage) -> Digest {
    image.image.manifest.digest()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::oci::{Content, LayerDescriptor, ResolvedImage};

    fn image(name: &str, layers: &[&str]) -> NamedImage {
        let content = |what: &str| Content::new(format!("{what} {name} {layers:?}").into());
        let chain = layers.iter().map(|layer| {
            let blob = Digest::of(format!("blob {layer}").as_bytes());
            let descriptor = LayerDescriptor {
                blob,
                size: 1 << 20,
                media_type: "application/vnd.oci.image.layer.v1.tar+gzip".to_owned(),
            };
            (descriptor, diff_id(layer))
        });
        let image = ResolvedImage {
            list: None,
            manifest: content("manifest"),
            config: content("config"),
            layers: Layer::chain(chain),
            created: None,
            signatures: Vec::new(),
        };
        NamedImage {
            name: name.to_owned(),
            reference: "localhost/a:1".parse().expect("a reference"),
            image: Arc::new(image),
        }
    }

    fn diff_id(layer: &str) -> DiffId {
        DiffId(Digest::of(layer.as_bytes()))
    }

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
        let pairs = pair_images(old, new).pairs;
        let shown = pairs.iter().map(|pair| {
            let (layers, old) = (list(&pair.layers), list(pair.old_layers()));
            format!("{}: {layers} from {old}", pair.new.name)
        });
        shown.collect()
    }

    #[test]
    fn a_layer_on_an_unchanged_base_is_made_from_its_predecessor_alone() {
        let old = [image("t", &["b", "t1"]), image("u", &["b", "u1"])];
        let new = [image("t", &["b", "t2"]), image("u", &["b", "u1"])];
        assert_eq!(shown(&old, &new), ["t: t2 from t1"]);
        assert_eq!(pair_images(&old, &new).equal, 1);
    }

    #[test]
    fn one_image_gets_the_delta_of_a_shared_base() {
        let old = [image("t", &["b1", "m1", "t1"]), image("u", &["b1", "m1", "u1"])];
        let new = [image("t", &["b2", "m2", "t2"]), image("u", &["b2", "m2", "u2"])];
        let expected = ["t: b2 m2 t2 from b1 m1 t1", "u: u2 from u1"];
        assert_eq!(shown(&old, &new), expected);
    }

    #[test]
    fn the_delta_of_a_shared_base_is_made_from_the_base_that_most_images_had() {
        let old = [
            image("t", &["c1", "t1"]),
            image("u", &["b1", "u1"]),
            image("v", &["b1"]),
        ];
        let new = [
            image("t", &["b2", "t2"]),
            image("u", &["b2", "u2"]),
            image("v", &["b2", "v2"]),
        ];
        let expected = ["t: t2 from t1", "u: b2 u2 from b1 u1", "v: v2 from b1"];
        assert_eq!(shown(&old, &new), expected);
    }

    #[test]
    fn a_new_component_has_no_predecessor_and_other_images_get_its_base() {
        let old = [image("t", &["b1", "t1"])];
        let new = [image("u", &["b2", "u2"]), image("t", &["b2", "t2"])];
        assert_eq!(shown(&old, &new), ["u: u2 from ", "t: b2 t2 from b1 t1"]);
    }

    #[test]
    fn an_image_made_of_known_layers_needs_nothing() {
        let old = [image("t", &["b", "t1"]), image("u", &["b", "u1"])];
        let new = [image("t", &["b", "u1"])];
        assert_eq!(shown(&old, &new), [""; 0]);
        assert_eq!(pair_images(&old, &new).shared, 1);
    }

    #[test]
    fn a_layer_on_top_of_all_old_layers_is_made_from_the_top_one() {
        let old = [image("t", &["b", "t1"])];
        let new = [image("t", &["b", "t1", "t2"])];
        assert_eq!(shown(&old, &new), ["t: t2 from t1"]);
    }
}
