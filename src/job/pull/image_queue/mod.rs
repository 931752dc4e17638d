//! Decides which image of a pull is begun next if the upgrade ends the run, and forecasts which images any deadline leaves out.
//!
//! When the upgrade begins, CRI-O pulls what is missing, and does not read the spool: bytes of an image that is not whole by
//! then are lost, and other images lacked them. So an image is begun only if its missing bytes, with those under way, can
//! arrive in time ([`Capacity`]):
//!
//! ```text
//! the first image, in the plan's order, whose bytes are likely to arrive in time         → begin it
//! the link is busy                                                                       → wait; the rate may rise
//! the smallest image, if its bytes could arrive with twice the rate, or no rate is known → begin it: the link is free
//! nothing could arrive in time                                                           → give up
//! ```
//!
//! So a first image is always begun, and shows the rate; the link is never idle while something could fit; and images that
//! do not fit are considered again while others are downloaded. Images whose blobs are all in the spool, or were begun with
//! another image, cost nothing. Before any other deadline everything is begun: a later run continues from the spool.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use super::capacity::Capacity;
use crate::oci::Digest;
use crate::plan::{BlobTask, Plan};

/// Whether the link is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Bytes arrive.
    Busy,
    /// Bytes were requested, and none arrives.
    Stalled,
    /// Nothing is requested.
    Free,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Begin the image at this position.
    Begin(usize),
    /// Begin nothing now.
    Wait,
    /// Begin nothing any more.
    GiveUp,
}

/// Chooses among images by the bytes that each would add, in the plan's order. `under_way` are bytes of images that were
/// begun.
pub(super) fn choose(costs: &[u64], under_way: u64, link: Link, capacity: &Capacity) -> Choice {
    let arrives = |cost: u64, capacity: u64| cost == 0 || under_way.saturating_add(cost) <= capacity;
    if let Some(position) = costs.iter().position(|cost| arrives(*cost, capacity.likely)) {
        return Choice::Begin(position);
    }
    let smallest = costs.iter().enumerate().min_by_key(|(_, cost)| **cost);
    let possible = smallest.filter(|(_, cost)| arrives(**cost, capacity.at_most));
    match (link, possible) {
        (Link::Free | Link::Stalled, Some((position, _))) => Choice::Begin(position),
        (Link::Free, None) => Choice::GiveUp,
        (Link::Busy, _) | (Link::Stalled, None) => Choice::Wait,
    }
}

/// The images of a plan that need blobs, and how far their blobs are.
#[derive(Debug)]
pub(super) struct ImageQueue {
    /// In the order in which the plan completes them.
    images: Vec<QueuedImage>,
    /// In the plan's order.
    blobs: Vec<QueuedBlob>,
    positions: HashMap<Digest, usize>,
    /// Bytes that had arrived when nothing was under way.
    received_before: u64,
    /// Missing bytes of the blobs that were begun and have ended since then.
    ended: u64,
    /// Bytes of blobs that are downloaded instead of deltas.
    more: u64,
}

#[derive(Debug)]
struct QueuedImage {
    /// In [`Plan::images`].
    index: usize,
    is_begun: bool,
    /// Indexes of the blobs that it needs.
    blobs: Vec<usize>,
}

#[derive(Debug)]
struct QueuedBlob {
    missing: u64,
    is_begun: bool,
    is_ended: bool,
}

impl ImageQueue {
    /// For the images of `plan`, when `received` bytes have arrived for other plans.
    pub(super) fn new(plan: &Plan, received: u64) -> Self {
        let positions = plan.blobs.iter().enumerate();
        let positions: HashMap<Digest, usize> = positions.map(|(index, blob)| (blob.digest, index)).collect();
        let mut blobs = vec![Vec::new(); plan.images.len()];
        for task in &plan.layers {
            if let Some(blob) = positions.get(&task.download().0) {
                for image in &task.images {
                    blobs[*image].push(*blob);
                }
            }
        }
        let mut images: Vec<QueuedImage> = Vec::new();
        for (index, mut blobs) in blobs
            .into_iter()
            .enumerate()
            .filter(|(_, blobs)| !blobs.is_empty())
        {
            blobs.sort_unstable();
            blobs.dedup();
            images.push(QueuedImage {
                index,
                is_begun: false,
                blobs,
            });
        }
        images.sort_by_key(|image| image.blobs.last().copied());
        let queued = |blob: &BlobTask| QueuedBlob {
            missing: blob.missing(),
            is_begun: false,
            is_ended: false,
        };
        Self {
            images,
            blobs: plan.blobs.iter().map(queued).collect(),
            positions,
            received_before: received,
            ended: 0,
            more: 0,
        }
    }

    /// Whether images wait that were not begun.
    pub(super) fn is_waiting(&self) -> bool {
        self.images.iter().any(|image| !image.is_begun)
    }

    /// Begins images by [`choose`] until one adds blobs, and returns their indexes in the plan. `received` bytes have
    /// arrived.
    pub(super) fn begin(&mut self, received: u64, is_stalled: bool, capacity: &Capacity) -> Begun {
        loop {
            let waiting = self
                .images
                .iter()
                .enumerate()
                .filter(|(_, image)| !image.is_begun);
            let waiting: Vec<usize> = waiting.map(|(position, _)| position).collect();
            let costs: Vec<u64> = waiting.iter().map(|position| self.cost(*position)).collect();
            let under_way = self.under_way(received);
            let link = match (under_way, is_stalled) {
                (0, _) => Link::Free,
                (_, true) => Link::Stalled,
                (_, false) => Link::Busy,
            };
            if waiting.is_empty() {
                return Begun::Nothing;
            }
            match choose(&costs, under_way, link, capacity) {
                Choice::Begin(chosen) => {
                    let blobs = self.begin_image(waiting[chosen]);
                    if !blobs.is_empty() {
                        return Begun::Blobs(blobs);
                    }
                }
                Choice::Wait => return Begun::Nothing,
                Choice::GiveUp => {
                    for position in &waiting {
                        self.images[*position].is_begun = true;
                    }
                    let given_up = waiting.iter().zip(costs);
                    let given_up = given_up.map(|(position, cost)| (self.images[*position].index, cost));
                    return Begun::GivenUp(given_up.collect());
                }
            }
        }
    }

    /// Notes that a blob was begun.
    pub(super) fn blob_begun(&mut self, blob: &BlobTask) {
        if let Some(index) = self.positions.get(&blob.digest) {
            self.blobs[*index].is_begun = true;
        }
    }

    /// Notes that a blob was begun and has ended: it is in the spool, was copied or failed. `received` bytes have arrived.
    pub(super) fn blob_ended(&mut self, blob: &BlobTask, received: u64) {
        let Some(index) = self.positions.get(&blob.digest) else {
            return;
        };
        let blob = &mut self.blobs[*index];
        if !blob.is_begun || std::mem::replace(&mut blob.is_ended, true) {
            return;
        }
        self.ended = self.ended.saturating_add(blob.missing);
        if !self.is_under_way() {
            // What was copied, or downloaded twice, counts no longer.
            (self.received_before, self.ended, self.more) = (received, 0, 0);
        }
    }

    /// Adds bytes that the plan does not contain, of an image that was begun. If nothing is under way, they have arrived.
    pub(super) fn add(&mut self, bytes: u64) {
        if self.is_under_way() {
            self.more = self.more.saturating_add(bytes);
        }
    }

    /// The images that will be missing if `capacity` more bytes arrive in the plan's order, each with its bytes.
    /// `begins_all`: an image that does not fit delays those after it; otherwise it is left out.
    pub(super) fn missing(&self, received: u64, capacity: u64, begins_all: bool) -> Vec<(usize, u64)> {
        let mut left = capacity.saturating_add(self.partial(received));
        let mut counts: Vec<bool> = self.blobs.iter().map(|blob| !blob.is_ended).collect();
        let mut missing = Vec::new();
        for image in &self.images {
            let own = || image.blobs.iter().filter(|blob| counts[**blob]);
            let cost = own().fold(0_u64, |sum, blob| sum.saturating_add(self.blobs[*blob].missing));
            match cost <= left {
                true => {
                    left -= cost;
                    image.blobs.iter().for_each(|blob| counts[*blob] = false);
                }
                false => {
                    missing.push((image.index, cost));
                    if begins_all {
                        left = 0;
                    }
                }
            }
        }
        missing
    }

    /// Bytes that an image adds to those of the images that were begun.
    fn cost(&self, position: usize) -> u64 {
        let blobs = self.images[position].blobs.iter().map(|blob| &self.blobs[*blob]);
        blobs
            .filter(|blob| !blob.is_begun)
            .fold(0, |sum, blob| sum.saturating_add(blob.missing))
    }

    fn begin_image(&mut self, position: usize) -> Vec<usize> {
        let image = &mut self.images[position];
        image.is_begun = true;
        let mut begun = Vec::new();
        for index in &image.blobs {
            if !std::mem::replace(&mut self.blobs[*index].is_begun, true) {
                begun.push(*index);
            }
        }
        begun
    }

    fn is_under_way(&self) -> bool {
        self.blobs.iter().any(|blob| blob.is_begun && !blob.is_ended)
    }

    /// Bytes that have not arrived of what was begun.
    fn under_way(&self, received: u64) -> u64 {
        let open = self.blobs.iter().filter(|blob| blob.is_begun && !blob.is_ended);
        let open = open.fold(self.more, |sum, blob| sum.saturating_add(blob.missing));
        open.saturating_sub(self.partial(received))
    }

    /// Bytes that have arrived of blobs that have not ended.
    fn partial(&self, received: u64) -> u64 {
        received.saturating_sub(self.received_before.saturating_add(self.ended))
    }
}

/// The result of [`ImageQueue::begin`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// Nothing is begun now.
    Nothing,
    /// These blobs, as indexes in the plan.
    Blobs(Vec<usize>),
    /// Nothing is begun any more. These images are not, as indexes in the plan, each with its missing bytes.
    GivenUp(Vec<(usize, u64)>),
}
