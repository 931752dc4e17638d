//! Builds the plan from the requested images and from what the node already has.
//!
//! Three passes over the images by priority: fail images whose manifest contradicts an earlier one; add each missing layer
//! once, with the blob that is cheapest to fetch; add each of these blobs once. Every pass visits a layer once, so 200 images
//! of 5 layers take milliseconds.

use std::collections::HashMap;

use super::{
    BlobTask, ExcludedImage, ImageAction, ImageToPlan, LayerAction, LayerTask, Plan, PlanTotals,
    PlannedImage, PlannedLayer, Present, TarLength, layer_order, merge_requests,
};
use crate::oci::{Digest, Layer, Reference, ResolvedImage};

impl Plan {
    /// Plans `images`, given what is `present`. An image that is requested twice is planned once. An image fails if its
    /// manifest contradicts one of higher priority about the size of a blob.
    pub fn build(images: Vec<ImageToPlan>, excluded: Vec<ExcludedImage>, present: &Present) -> Self {
        let mut images = merge_requests::merge(images);
        let excluded = merge_requests::excluded(excluded, &images);
        fail_contradictions(&mut images);
        let images = images.into_iter().map(|image| planned_image(image, present));
        let mut images: Vec<PlannedImage> = images.collect();
        let layers = layer_tasks(&mut images, present);
        let blobs = blob_tasks(&mut images, &layers, present);
        let totals = PlanTotals::of(&images, &excluded, &layers, &blobs);
        Self {
            images,
            excluded,
            layers,
            blobs,
            totals,
        }
    }
}

/// One digest has one length: fails every image that states another length than an earlier image or than itself.
fn fail_contradictions(images: &mut [ImageToPlan]) {
    let mut sizes: HashMap<Digest, (u64, Reference)> = HashMap::new();
    for image in images {
        let ImageAction::Pull(resolved) = &image.action else {
            continue;
        };
        if let Some(reason) = contradiction(resolved, &sizes) {
            image.action = ImageAction::Failed(reason);
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
                "contradictory manifest: layer `{blob}` has both {earlier} and {size} bytes"
            ));
        }
        if let Some((other_size, other)) = sizes.get(&blob)
            && *other_size != size
        {
            return Some(format!(
                "contradictory manifests: layer `{blob}` has {size} bytes here and {other_size} bytes in `{other}`"
            ));
        }
    }
    None
}

/// The image with its layers. A missing layer is [`LayerAction::Share`] until [`layer_tasks`] finds its first image.
fn planned_image(image: ImageToPlan, present: &Present) -> PlannedImage {
    let layers = match &image.action {
        ImageAction::Pull(resolved) => resolved.layers.as_slice(),
        ImageAction::Present | ImageAction::Failed(_) => &[],
    };
    let layers = layers.iter().map(|layer| PlannedLayer {
        layer: layer.clone(),
        action: match present.layers.contains(&layer.id()) {
            true => LayerAction::Reuse,
            false => LayerAction::Share,
        },
    });
    PlannedImage {
        layers: layers.collect(),
        reference: image.reference,
        requesters: image.requesters,
        action: image.action,
        bytes: 0,
    }
}

/// Each missing layer once; parents first, because images list base layers first.
fn layer_tasks(images: &mut [PlannedImage], present: &Present) -> Vec<LayerTask> {
    let mut tasks: Vec<LayerTask> = Vec::new();
    let mut positions = HashMap::new();
    for (index, image) in images.iter_mut().enumerate() {
        for PlannedLayer { layer, action } in &mut image.layers {
            if *action == LayerAction::Reuse {
                continue;
            }
            let position = *positions.entry(layer.id()).or_insert_with(|| {
                *action = LayerAction::Fetch;
                tasks.push(LayerTask {
                    layer: layer.clone(),
                    deltas: Vec::new(),
                    tar: tar_length(layer, present),
                    images: Vec::new(),
                });
                tasks.len() - 1
            });
            let task = &mut tasks[position];
            if cost(layer, present) < cost(&task.layer, present) {
                task.layer = layer.clone();
                task.tar = tar_length(layer, present);
            }
            task.images.push(index);
        }
    }
    tasks
}

fn tar_length(layer: &Layer, present: &Present) -> TarLength {
    let known = present.tars.get(&layer.blob).copied();
    known.unwrap_or_else(|| TarLength::estimate(&layer.media_type, layer.size))
}

/// The missing bytes of the layer's blob. The digest decides between equals, so that the order of the input does not
/// matter.
fn cost(layer: &Layer, present: &Present) -> (u64, Digest) {
    (layer.size - spooled(layer, present), layer.blob)
}

/// Bytes of the layer's blob in the spool. More than the whole blob means that another manifest stated a wrong size; the
/// digest check finds out which.
fn spooled(layer: &Layer, present: &Present) -> u64 {
    let bytes = present.blobs.get(&layer.blob).copied().unwrap_or(0);
    bytes.min(layer.size)
}

/// Each blob of a task once. Its missing bytes count for the first image that needs it.
fn blob_tasks(images: &mut [PlannedImage], layers: &[LayerTask], present: &Present) -> Vec<BlobTask> {
    let mut tasks: Vec<(u8, BlobTask)> = Vec::new();
    let mut positions = HashMap::new();
    for LayerTask {
        layer,
        images: waiting,
        ..
    } in layers
    {
        let position = *positions.entry(layer.blob).or_insert_with(|| {
            let task = BlobTask {
                digest: layer.blob,
                delta: None,
                size: layer.size,
                spooled: spooled(layer, present),
                layers: Vec::new(),
                images: Vec::new(),
            };
            // Layers are ordered by the first image that needs them, so a blob's first layer has the blob's first image.
            let first = &mut images[waiting[0]];
            first.bytes = first.bytes.saturating_add(task.missing());
            tasks.push((first.priority(), task));
            tasks.len() - 1
        });
        tasks[position].1.layers.push(layer.id());
    }
    for (index, image) in images.iter().enumerate() {
        for PlannedLayer { layer, action } in &image.layers {
            if *action != LayerAction::Reuse
                && let Some(position) = positions.get(&layer.blob)
                && tasks[*position].1.images.last() != Some(&index)
            {
                tasks[*position].1.images.push(index);
            }
        }
    }
    let missing = |task: &LayerTask| tasks[positions[&task.layer.blob]].1.missing();
    let order = layer_order::by_images_per_byte(images, layers, missing);
    let mut rank = vec![usize::MAX; tasks.len()];
    for (turn, layer) in order.into_iter().enumerate() {
        let rank = &mut rank[positions[&layers[layer].layer.blob]];
        *rank = turn.min(*rank);
    }
    let mut tasks: Vec<_> = tasks.into_iter().zip(rank).collect();
    tasks.sort_by_key(|((priority, task), rank)| (*priority, task.missing() > 0, *rank));
    tasks.into_iter().map(|((_, task), _)| task).collect()
}
