//! Orders layers so that images complete as early as possible: a run that is cut off leaves as many complete images as its
//! bytes allow. The pull may download the largest blob earlier (`job::pull::scheduler`). During an update this order is one among
//! the images of a run level.
//!
//! Layers form a forest, because each has one parent. A layer costs its missing bytes; the last layer of its chain completes
//! an image. This is single-machine scheduling with weights and out-tree precedence. Horn (1972, "Single-machine job
//! sequencing with treelike precedence ordering and linear delay penalties") gives an optimal order: no other has a smaller
//! sum, over all images, of the bytes until the image is complete. A layer and the layers above it form one block as long as
//! the block above completes more images per byte than the block below, and blocks are ordered by that ratio.
//!
//! For example, a base of 80 MB under 100 small images goes before a single image of 50 MB, and after one of 5 MB.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use super::{LayerAction, LayerTask, PlannedImage, Priority};

/// Indexes into `layers`, in the order to pull them; layers of images with higher priority first. `missing` returns the
/// bytes that a layer costs. `layers` has parents before their children.
pub(super) fn by_images_per_byte(
    images: &[PlannedImage],
    layers: &[LayerTask],
    missing: impl Fn(&LayerTask) -> u64,
) -> Vec<usize> {
    let positions: HashMap<_, _> = layers
        .iter()
        .enumerate()
        .map(|(position, task)| (task.layer.id(), position))
        .collect();
    let mut completes = vec![0; layers.len()];
    for image in images {
        let last = image
            .layers
            .iter()
            .rfind(|planned| planned.action != LayerAction::Reuse);
        if let Some(position) = last.and_then(|planned| positions.get(&planned.layer.id())) {
            completes[*position] += 1;
        }
    }
    let priority = |task: &LayerTask| images[task.images[0]].priority();
    // The finished blocks above each layer, until the layer's own block takes them.
    let mut above: Vec<BinaryHeap<Block>> = layers.iter().map(|_| BinaryHeap::new()).collect();
    let mut roots: BinaryHeap<(Reverse<Priority>, Block)> = BinaryHeap::new();
    for (position, task) in layers.iter().enumerate().rev() {
        let mut block = Block {
            images: completes[position],
            // A layer without missing bytes still costs work, and a ratio needs a divisor.
            bytes: u128::from(missing(task)) + 1,
            layers: vec![position],
            above: std::mem::take(&mut above[position]),
        };
        block.grow();
        let parent = task.layer.parent().and_then(|parent| positions.get(&parent));
        match parent.filter(|parent| priority(&layers[**parent]) == priority(task)) {
            Some(parent) => above[*parent].push(block),
            None => roots.push((Reverse(priority(task)), block)),
        }
    }
    let mut order = Vec::with_capacity(layers.len());
    while let Some((priority, block)) = roots.pop() {
        order.extend(block.layers);
        roots.extend(block.above.into_iter().map(|block| (priority, block)));
    }
    order
}

/// Layers that are pulled together, each after its parent; the greater block goes first.
struct Block {
    /// Number of images that it completes.
    images: u64,
    /// Its cost.
    bytes: u128,
    layers: Vec<usize>,
    /// Blocks that may follow this one.
    above: BinaryHeap<Block>,
}

impl Block {
    /// Merges blocks from above as long as they complete more images per byte.
    fn grow(&mut self) {
        while self.above.peek().is_some_and(|best| best.ratio(self).is_ge())
            && let Some(mut best) = self.above.pop()
        {
            self.images += best.images;
            self.bytes += best.bytes;
            self.layers.append(&mut best.layers);
            self.above.append(&mut best.above);
        }
    }

    /// Which of the two completes more images per byte.
    fn ratio(&self, other: &Self) -> Ordering {
        (u128::from(self.images) * other.bytes).cmp(&(u128::from(other.images) * self.bytes))
    }
}

impl Ord for Block {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ratio(other)
            .then_with(|| other.layers[0].cmp(&self.layers[0]))
    }
}

impl PartialOrd for Block {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Block {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Block {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use bytes::Bytes;
    use proptest::prelude::*;

    use crate::image_request::Requester;
    use crate::oci::{Content, DiffId, Digest, Layer, LayerDescriptor, ResolvedImage};
    use crate::plan::{ImageAction, ImageToPlan, Plan, Present};

    /// Layers as `(parent, bytes)`, the parent one of those before, and for each how many images end with it.
    #[derive(Clone, Debug)]
    struct Forest(Vec<(Option<usize>, u64, usize)>);

    impl Forest {
        fn chain(&self, mut layer: usize) -> Vec<usize> {
            let mut chain = vec![layer];
            while let Some(parent) = self.0[layer].0 {
                chain.insert(0, parent);
                layer = parent;
            }
            chain
        }

        fn images(&self) -> Vec<ImageToPlan> {
            let ends = self
                .0
                .iter()
                .enumerate()
                .flat_map(|(layer, (_, _, images))| (0..*images).map(move |n| (layer, n)));
            let image = |(end, number)| {
                let layers = self.chain(end).into_iter().map(|layer| {
                    let descriptor = LayerDescriptor {
                        blob: blob(layer),
                        size: self.0[layer].1,
                        media_type: "application/vnd.oci.image.layer.v1.tar".into(),
                    };
                    (descriptor, DiffId(blob(layer)))
                });
                let config = Bytes::from(format!("{end} {number}"));
                ImageToPlan {
                    reference: format!("example.com/image-{end}:{number}").parse().unwrap(),
                    requesters: vec![Requester::Additional],
                    rank: None,
                    action: ImageAction::Pull(Arc::new(ResolvedImage {
                        list: None,
                        manifest: Content::new(config.clone()),
                        config: Content::new(config),
                        layers: Layer::chain(layers),
                        created: None,
                        signatures: Vec::new(),
                    })),
                    authenticated: false,
                }
            };
            ends.map(image).collect()
        }

        /// The sum over all images of the bytes until each is complete, if layers arrive in this order.
        fn delay(&self, order: &[usize]) -> u64 {
            let mut sum = 0;
            for (end, (_, _, images)) in self.0.iter().enumerate() {
                let chain = self.chain(end);
                let last = order.iter().rposition(|layer| chain.contains(layer)).unwrap();
                let bytes: u64 = order[..=last].iter().map(|layer| self.0[*layer].1).sum();
                sum += bytes * *images as u64;
            }
            sum
        }

        fn best_delay(&self) -> u64 {
            fn permutations(done: &mut Vec<usize>, all: usize, seen: &mut impl FnMut(&[usize])) {
                if done.len() == all {
                    return seen(done);
                }
                for next in 0..all {
                    if !done.contains(&next) {
                        done.push(next);
                        permutations(done, all, seen);
                        done.pop();
                    }
                }
            }
            let mut best = u64::MAX;
            permutations(&mut Vec::new(), self.0.len(), &mut |order| {
                best = best.min(self.delay(order))
            });
            best
        }
    }

    fn blob(layer: usize) -> Digest {
        Digest::of(format!("layer {layer}").as_bytes())
    }

    prop_compose! {
        fn some_forest()(layers in prop::collection::vec((any::<prop::sample::Index>(), 0..4u8, 1..9u64, 0..3usize), 1..7)) -> Forest {
            let layers = layers.into_iter().enumerate().map(|(layer, (parent, is_root, size, images))| {
                let parent = (layer > 0 && is_root > 0).then(|| parent.index(layer));
                // Large beside the byte that every layer costs more than its size.
                (parent, size * 1_000_000, images)
            });
            Forest(layers.collect())
        }
    }

    proptest! {
        #[test]
        fn no_other_order_completes_images_earlier(forest in some_forest()) {
            let plan = Plan::build(forest.images(), vec![], &Present::default());
            let mut order: Vec<usize> = plan
                .blobs
                .iter()
                .map(|task| (0..forest.0.len()).find(|layer| blob(*layer) == task.digest).unwrap())
                .collect();
            // Layers without an image are not planned.
            order.extend((0..forest.0.len()).filter(|layer| !order.contains(layer)).collect::<Vec<_>>());
            prop_assert_eq!(forest.delay(&order), forest.best_delay());
        }
    }

    #[test]
    fn a_base_goes_first_if_it_completes_more_images_per_byte_than_a_single_image() {
        const MB: u64 = 1_000_000;
        let mut layers = vec![(None, 80 * MB, 0), (None, 50 * MB, 1), (None, 5 * MB / 10, 1)];
        layers.extend([(Some(0), MB, 1); 100]);
        let plan = Plan::build(Forest(layers).images(), vec![], &Present::default());
        let sizes: Vec<u64> = plan.blobs.iter().map(|task| task.size).collect();
        assert_eq!(sizes[..3], [5 * MB / 10, 80 * MB, MB]);
        assert_eq!(*sizes.last().unwrap(), 50 * MB);
    }
}
