//! From what is wanted and what is here to what is to be done.
//!
//! Three passes over the images in the order of their importance: refuse those whose manifests contradict one that
//! came before, note each missing layer once with the blob that is cheapest to get, then note each such blob once. Each
//! pass looks at a layer once; 200 images of 5 layers take milliseconds.

use std::collections::HashMap;

use super::{
    Action, BlobTask, ExcludedImage, Here, LayerTask, Need, Plan, PlannedImage, PlannedLayer, TarLength,
    Totals, Wanted, dedupe, layer_order,
};
use crate::oci::{Digest, Reference, ResolvedImage};

impl Plan {
    /// Plans to bring `wanted` into the store, given what is `here`. An image that is asked for twice is planned once;
    /// an image whose manifest contradicts a more important one about a blob's size becomes a failed one.
    pub fn build(wanted: Vec<Wanted>, excluded: Vec<ExcludedImage>, here: &Here) -> Self {
        let mut wanted = dedupe::wanted(wanted);
        let excluded = dedupe::excluded(excluded, &wanted);
        refuse_contradictions(&mut wanted);
        let mut images: Vec<PlannedImage> = wanted.into_iter().map(|image| unplanned(image, here)).collect();
        let layers = plan_layers(&mut images, here);
        let blobs = plan_blobs(&mut images, &layers, here);
        let totals = Totals::of(&images, &excluded, &layers, &blobs);
        Self {
            images,
            excluded,
            layers,
            blobs,
            totals,
        }
    }
}

/// One digest has one length. Whoever says otherwise later, or within one manifest, is not believed.
fn refuse_contradictions(wanted: &mut [Wanted]) {
    let mut sizes: HashMap<Digest, (u64, Reference)> = HashMap::new();
    for image in wanted {
        let Need::Resolved(resolved) = &image.state else {
            continue;
        };
        if let Some(reason) = contradiction(resolved, &sizes) {
            image.state = Need::Failed(reason);
            continue;
        }
        for layer in &resolved.layers {
            sizes
                .entry(layer.blob)
                .or_insert_with(|| (layer.size, image.reference.clone()));
        }
    }
}

fn contradiction(image: &ResolvedImage, sizes: &HashMap<Digest, (u64, Reference)>) -> Option<String> {
    let mut own = HashMap::new();
    for layer in &image.layers {
        let (blob, size) = (layer.blob, layer.size);
        let earlier = *own.entry(blob).or_insert(size);
        if earlier != size {
            return Some(format!(
                "contradictory manifest: gives layer `{blob}` both {earlier} and {size} bytes"
            ));
        }
        if let Some((other_size, other)) = sizes.get(&blob)
            && *other_size != size
        {
            return Some(format!(
                "contradictory manifests: this one gives layer `{blob}` {size} bytes, that of `{other}` {other_size}"
            ));
        }
    }
    None
}

/// The image with its layers, each to be reused or, until more is known, shared.
fn unplanned(image: Wanted, here: &Here) -> PlannedImage {
    let mut layers = Vec::new();
    if let Need::Resolved(resolved) = &image.state {
        let mut parent = None;
        for (layer, id) in resolved.layers.iter().zip(resolved.layer_ids()) {
            layers.push(PlannedLayer {
                id,
                parent,
                diff_id: layer.diff_id,
                blob: layer.blob,
                size: layer.size,
                media_type: layer.media_type.clone(),
                action: if here.layers.contains(&id) {
                    Action::Reuse
                } else {
                    Action::Share
                },
            });
            parent = Some(id);
        }
    }
    PlannedImage {
        reference: image.reference,
        requesters: image.requesters,
        need: image.state,
        layers,
        bytes: 0,
    }
}

/// Each missing layer once, parents first, for images list their layers so.
fn plan_layers(images: &mut [PlannedImage], here: &Here) -> Vec<LayerTask> {
    let mut tasks: Vec<LayerTask> = Vec::new();
    let mut places = HashMap::new();
    for (index, image) in images.iter_mut().enumerate() {
        for layer in &mut image.layers {
            if layer.action == Action::Reuse {
                continue;
            }
            let place = *places.entry(layer.id).or_insert_with(|| {
                layer.action = Action::Fetch;
                tasks.push(LayerTask {
                    id: layer.id,
                    parent: layer.parent,
                    diff_id: layer.diff_id,
                    blob: layer.blob,
                    size: layer.size,
                    media_type: layer.media_type.clone(),
                    tar: tar_of(layer, here),
                    images: Vec::new(),
                });
                tasks.len() - 1
            });
            let task = &mut tasks[place];
            if cost(layer.blob, layer.size, here) < cost(task.blob, task.size, here) {
                task.blob = layer.blob;
                task.size = layer.size;
                task.media_type.clone_from(&layer.media_type);
                task.tar = tar_of(layer, here);
            }
            task.images.push(index);
        }
    }
    tasks
}

fn tar_of(layer: &PlannedLayer, here: &Here) -> TarLength {
    let known = here.tars.get(&layer.blob).copied();
    known.unwrap_or_else(|| TarLength::unasked(&layer.media_type, layer.size))
}

/// What a layer costs by way of this blob: the bytes that are missing. The digest decides between equals, so that the
/// order in which images are given does not matter.
fn cost(blob: Digest, size: u64, here: &Here) -> (u64, Digest) {
    (size - spooled(blob, size, here), blob)
}

/// What the spool has of a blob. A spool that has more than the whole has it from somebody who was wrong: the digest
/// will tell.
fn spooled(blob: Digest, size: u64, here: &Here) -> u64 {
    here.blobs.get(&blob).copied().unwrap_or(0).min(size)
}

/// Each blob that a task unpacks, once, and its missing bytes added to the first image that waits for it.
fn plan_blobs(images: &mut [PlannedImage], layers: &[LayerTask], here: &Here) -> Vec<BlobTask> {
    let mut tasks: Vec<(u8, BlobTask)> = Vec::new();
    let mut places = HashMap::new();
    for layer in layers {
        let place = *places.entry(layer.blob).or_insert_with(|| {
            let task = BlobTask {
                digest: layer.blob,
                size: layer.size,
                spooled: spooled(layer.blob, layer.size, here),
                layers: Vec::new(),
                images: Vec::new(),
            };
            // Layers come in the order of the first image that waits for them, so the first layer of a blob has the
            // blob's first image.
            let first = &mut images[layer.images[0]];
            first.bytes = first.bytes.saturating_add(task.missing());
            tasks.push((first.priority(), task));
            tasks.len() - 1
        });
        tasks[place].1.layers.push(layer.id);
    }
    for (index, image) in images.iter().enumerate() {
        for layer in &image.layers {
            if layer.action != Action::Reuse
                && let Some(place) = places.get(&layer.blob)
                && tasks[*place].1.images.last() != Some(&index)
            {
                tasks[*place].1.images.push(index);
            }
        }
    }
    let missing = |layer: &LayerTask| tasks[places[&layer.blob]].1.missing();
    let mut rank = vec![usize::MAX; tasks.len()];
    for (turn, layer) in layer_order::whole_images_first(images, layers, missing)
        .into_iter()
        .enumerate()
    {
        let rank = &mut rank[places[&layers[layer].blob]];
        *rank = turn.min(*rank);
    }
    let mut tasks: Vec<_> = tasks.into_iter().zip(rank).collect();
    tasks.sort_by_key(|((priority, task), rank)| (*priority, task.missing() > 0, *rank));
    tasks.into_iter().map(|((_, task), _)| task).collect()
}
