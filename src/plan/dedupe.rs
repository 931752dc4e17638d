//! Every image once, in the order of importance.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::{ExcludedImage, Need, Wanted};

/// Merges what has the same name and orders by the most important source, otherwise as given. Additional images name
/// components of the release now and then, and a payload may list one pullspec under several tags.
pub(super) fn wanted(images: Vec<Wanted>) -> Vec<Wanted> {
    let mut places = HashMap::new();
    let mut selected: Vec<Wanted> = Vec::with_capacity(images.len());
    for image in images {
        match places.entry(image.name.clone()) {
            Entry::Vacant(place) => {
                place.insert(selected.len());
                selected.push(image);
            }
            Entry::Occupied(place) => {
                let first = &mut selected[*place.get()];
                if rank(&image.state) > rank(&first.state) {
                    first.state = image.state;
                }
                for source in image.sources {
                    if !first.sources.contains(&source) {
                        first.sources.push(source);
                    }
                }
            }
        }
    }
    for image in &mut selected {
        image.sources.sort_by_key(|source| source.priority());
    }
    selected.sort_by_key(|image| image.sources.first().map_or(u8::MAX, |source| source.priority()));
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

/// Drops exclusions of images that another source wants, and repetitions.
pub(super) fn excluded(images: Vec<ExcludedImage>, wanted: &[Wanted]) -> Vec<ExcludedImage> {
    let mut seen: HashSet<String> = wanted.iter().map(|image| image.name.clone()).collect();
    let unseen = images.into_iter().filter(|image| seen.insert(image.name.clone()));
    unseen.collect()
}
