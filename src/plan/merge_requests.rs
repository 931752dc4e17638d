//! Merges requests for the same image, and orders images by priority.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::{ExcludedImage, ImageAction, ImageToPlan, priority};
use crate::image_request::Requester;
use crate::oci::Reference;

/// Each reference once, ordered by its most important requester and by its rank, otherwise in the given order. Duplicates are ordinary:
/// additional images may name components of the release, and a payload may list one pullspec under several tags.
pub(super) fn merge(images: Vec<ImageToPlan>) -> Vec<ImageToPlan> {
    let mut positions = HashMap::new();
    let mut merged: Vec<ImageToPlan> = Vec::with_capacity(images.len());
    for image in images {
        match positions.entry(image.reference.clone()) {
            Entry::Vacant(position) => {
                position.insert(merged.len());
                merged.push(image);
            }
            Entry::Occupied(position) => {
                let first = &mut merged[*position.get()];
                first.authenticated |= image.authenticated;
                first.rank = [first.rank, image.rank].into_iter().flatten().min();
                if precedence(&image.action) > precedence(&first.action) {
                    first.action = image.action;
                }
                for requester in image.requesters {
                    if !first.requesters.contains(&requester) {
                        first.requesters.push(requester);
                    }
                }
            }
        }
    }
    for image in &mut merged {
        image.requesters.sort_by_key(Requester::priority);
    }
    merged.sort_by_key(|image| priority(&image.requesters, image.rank));
    merged
}

/// Which of two actions for one reference applies. Pulling a present image only costs a commit; skipping a missing one
/// would report success for it.
fn precedence(action: &ImageAction) -> u8 {
    match action {
        ImageAction::Failed(_) => 0,
        ImageAction::Present => 1,
        ImageAction::Pull(_) => 2,
    }
}

/// Each excluded image once, without those that another requester wants.
pub(super) fn excluded(images: Vec<ExcludedImage>, requested: &[ImageToPlan]) -> Vec<ExcludedImage> {
    let requested = requested.iter().map(|image| image.reference.clone());
    let mut seen: HashSet<Reference> = requested.collect();
    let images = images
        .into_iter()
        .filter(|image| seen.insert(image.reference.clone()));
    images.collect()
}
