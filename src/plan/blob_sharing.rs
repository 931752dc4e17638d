//! Chooses one blob for all layers with the same content: images may list it under different compressions, on different
//! parents.
//!
//! Only blobs of one registry replace each other, because a registry that fails must not fail images of another one. A blob
//! that no authenticated image lists never replaces one that such an image lists: its content may be another.

use std::collections::HashMap;

use super::source_choice::SourceChoice;
use super::{LayerTask, PlannedImage};
use crate::oci::DiffId;

/// A smaller blob is downloaded in the time of its request. Its layer keeps the record of its own blob, which podman and CRI-O
/// look for when they pull the image again.
const MIN_SIZE: u64 = 64 << 10;

/// Gives all layers with one content the blob that is authenticated, if one is, and otherwise has the fewest missing bytes.
pub(super) fn share_blobs(tasks: &mut [LayerTask], images: &[PlannedImage], choice: &SourceChoice<'_>) {
    let domain = |task: &LayerTask| {
        let mut images = task.images.iter().map(|index| &images[*index]);
        let image = images.find(|image| image.lists(&task.layer.blob))?;
        Some(image.reference.domain())
    };
    let rank = |task: &LayerTask| (!task.authenticated, choice.cost(task));
    let mut best: HashMap<(DiffId, &str), LayerTask> = HashMap::new();
    for task in tasks.iter().filter(|task| !choice.is_contradicted(&task.layer)) {
        let Some(domain) = domain(task) else { continue };
        let key = (task.layer.diff_id(), domain);
        if best.get(&key).is_none_or(|known| rank(task) < rank(known)) {
            best.insert(key, task.clone());
        }
    }
    for task in tasks {
        let key = domain(task).map(|domain| (task.layer.diff_id(), domain));
        let Some(best) = key.and_then(|key| best.get(&key)) else {
            continue;
        };
        let (missing, ..) = choice.cost(task);
        if best.layer.blob != task.layer.blob && missing >= MIN_SIZE {
            let mut layer = task.layer.clone();
            (layer.blob, layer.size) = (best.layer.blob, best.layer.size);
            layer.media_type.clone_from(&best.layer.media_type);
            *task = LayerTask {
                layer,
                images: std::mem::take(&mut task.images),
                ..best.clone()
            };
        }
    }
}
