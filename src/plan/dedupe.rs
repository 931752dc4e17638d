//! Every image once, in the order of importance.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::{ExcludedImage, Need, Wanted};
use crate::oci::Reference;

/// Merges what has the same name and orders by the most important requester, otherwise as given. Additional images name
/// components of the release now and then, and a payload may list one pullspec under several tags.
pub(super) fn wanted(images: Vec<Wanted>) -> Vec<Wanted> {
    let mut places = HashMap::new();
    let mut selected: Vec<Wanted> = Vec::with_capacity(images.len());
    for image in images {
        match places.entry(image.reference.clone()) {
            Entry::Vacant(place) => {
                place.insert(selected.len());
                selected.push(image);
            }
            Entry::Occupied(place) => {
                let first = &mut selected[*place.get()];
                if rank(&image.state) > rank(&first.state) {
                    first.state = image.state;
                }
                for requester in image.requesters {
                    if !first.requesters.contains(&requester) {
                        first.requesters.push(requester);
                    }
                }
            }
        }
    }
    for image in &mut selected {
        image.requesters.sort_by_key(|requester| requester.priority());
    }
    selected.sort_by_key(|image| {
        image
            .requesters
            .first()
            .map_or(u8::MAX, |requester| requester.priority())
    });
    selected
}

/// Which of two things known about one name stands. Work is safer than no work: pulling what is present costs a
/// commit, taking for present what is not would be a lie.
fn rank(need: &Need) -> u8 {
    match need {
        Need::Failed(_) => 0,
        Need::Present => 1,
        Need::Resolved(_) => 2,
    }
}

/// Drops exclusions of images that another requester wants, and repetitions.
pub(super) fn excluded(images: Vec<ExcludedImage>, wanted: &[Wanted]) -> Vec<ExcludedImage> {
    let mut seen: HashSet<Reference> = wanted.iter().map(|image| image.reference.clone()).collect();
    let unseen = images
        .into_iter()
        .filter(|image| seen.insert(image.reference.clone()));
    unseen.collect()
}
