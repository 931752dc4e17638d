//! Decides which blob of a plan is downloaded next, and over how many connections.
//!
//! Blobs keep the plan's order, so that an interrupted run leaves complete images. That order has the largest blob last, and
//! one thread would unpack it while the link and the other cores are idle. So when the rest is a matter of moments, and will
//! arrive long before the deadline, the largest blob goes first, followed by the other blobs of its image. Then images
//! complete all the time, and are written to the disk while others are unpacked, instead of all at the end. While the cluster
//! updates to the release, the plan's order is that of the update, and always kept.
//!
//! Blobs that a medium has wait in a queue of their own: a slow medium does not take the places of downloads, and downloads not
//! those of a fast medium.
//!
//! If the upgrade ends the run, blobs wait here only after their image was begun (`image_queue`).

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::fetch::BlobRequest;
use crate::plan::{BlobTask, LayerSource, LayerTask, Plan, PlannedImage};

/// The largest blob goes first if the rest takes less than this. It saves the time in which a thread unpacks the largest layer,
/// some seconds; a link that needs longer than this for the rest would save less than a tenth.
const LARGEST_FIRST_BELOW: Duration = Duration::from_secs(60);

/// The rest may take at most one in so many of the time until the deadline, because the rate may drop.
const DEADLINE_MARGIN: u32 = 4;

/// If the rest takes fewer seconds, no blob gets several connections: waiting until as many are free would take a large share
/// of that time.
const ONE_CONNECTION_BELOW: f64 = 20.0;

/// The blobs that wait, and the download rate so far.
#[derive(Debug)]
pub(super) struct Scheduler<'a> {
    waiting: VecDeque<&'a BlobTask>,
    /// Blobs to copy from media.
    copies: VecDeque<&'a BlobTask>,
    /// Whether no blob overtakes another.
    keeps_order: bool,
    /// The image of the last blob that was chosen by size; its other blobs follow.
    current_image: Option<usize>,
    deadline: Option<Instant>,
    /// When the first byte could have arrived, and how many bytes arrived since.
    start: Instant,
    received: u64,
    /// How many bytes will have arrived in the end.
    total: u64,
}

impl<'a> Scheduler<'a> {
    /// `received` is how many bytes have arrived since `start`, for other plans.
    pub(super) fn new(
        blobs: &'a [BlobTask],
        keeps_order: bool,
        deadline: Option<Instant>,
        start: Instant,
        received: u64,
    ) -> Self {
        let (copies, waiting) = blobs.iter().partition(|blob| blob.is_on_medium());
        Self {
            waiting,
            copies,
            keeps_order,
            current_image: None,
            deadline,
            start,
            received,
            total: blobs
                .iter()
                .map(BlobTask::missing)
                .fold(received, u64::saturating_add),
        }
    }

    /// Takes no blob before [`Self::release`].
    pub(super) fn hold_all(&mut self) {
        self.waiting.clear();
        self.copies.clear();
    }

    /// Blobs of an image that is begun, in the plan's order.
    pub(super) fn release(&mut self, blobs: impl Iterator<Item = &'a BlobTask>) {
        let (copies, waiting): (Vec<_>, Vec<_>) = blobs.partition(|blob| blob.is_on_medium());
        self.waiting.extend(waiting);
        self.copies.extend(copies);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the next blob, when so many bytes have arrived.
    pub(super) fn next(&mut self, received: u64) -> Option<&'a BlobTask> {
        self.received = received;
        if self.keeps_order || !self.ends_soon(Instant::now()) {
            return self.waiting.pop_front();
        }
        let largest = |image: Option<usize>| {
            let is_of_image =
                |position: &usize| image.is_none_or(|image| self.waiting[*position].images.contains(&image));
            (0..self.waiting.len())
                .filter(is_of_image)
                .max_by_key(|position| self.waiting[*position].size)
        };
        let same_image = self.current_image.and_then(|image| largest(Some(image)));
        let blob = self.waiting.remove(same_image.or_else(|| largest(None))?)?;
        if same_image.is_none() {
            self.current_image = blob.images.first().copied();
        }
        Some(blob)
    }

    /// Takes the next blob to copy from a medium.
    pub(super) fn next_copy(&mut self) -> Option<&'a BlobTask> {
        self.copies.pop_front()
    }

    /// Takes the next blob of one of these images.
    pub(super) fn next_of(&mut self, images: &HashSet<usize>) -> Option<&'a BlobTask> {
        let is_of = |blob: &&BlobTask| blob.images.iter().any(|image| images.contains(image));
        let position = self.waiting.iter().position(is_of)?;
        self.waiting.remove(position)
    }

    /// How many of at most `max` connections a blob gets that was taken.
    pub(super) fn connections(&self, blob: &BlobTask, max: usize) -> usize {
        match self.seconds_left(Instant::now()) >= ONE_CONNECTION_BELOW {
            true => connections(blob.missing(), self.bytes_left(), max),
            false => 1,
        }
    }

    /// Notes that a blob which was taken will not be downloaded.
    pub(super) fn drop_blob(&mut self, blob: &BlobTask) {
        self.total = self.total.saturating_sub(blob.missing());
    }

    /// Adds bytes that the plan does not contain.
    pub(super) fn add(&mut self, bytes: u64) {
        self.total = self.total.saturating_add(bytes);
    }

    fn bytes_left(&self) -> u64 {
        self.total.saturating_sub(self.received)
    }

    /// How long the rest takes at the rate so far. Infinite or not a number if no byte has arrived.
    fn seconds_left(&self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.start).as_secs_f64();
        passed * self.bytes_left() as f64 / self.received as f64
    }

    /// Whether the rest arrives soon.
    fn ends_soon(&self, now: Instant) -> bool {
        let until_deadline = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(now) / DEADLINE_MARGIN);
        let limit = until_deadline
            .unwrap_or(LARGEST_FIRST_BELOW)
            .min(LARGEST_FIRST_BELOW);
        self.seconds_left(now) < limit.as_secs_f64()
    }
}

/// How many of at most `max` connections a blob gets, given the missing bytes of the blob and of all blobs. Connections share
/// a link evenly. So a blob with a large share of all bytes gets several: otherwise it would arrive last, and be unpacked while
/// the link is idle.
pub(in crate::job) fn connections(blob: u64, total: u64, max: usize) -> usize {
    let share = blob as f64 / total as f64 * max as f64;
    match share > 1.0 {
        // One more, so that it arrives before the others. At most half, because it waits until so many are free.
        true => (share.ceil() as usize).saturating_add(1).min(max.div_ceil(2)),
        false => 1,
    }
}

/// The request for a blob of the plan, with every image that contains it, or the repository of the delta; none for layers of
/// the store, tars on media and chunks.
pub(in crate::job) fn request_for(task: &BlobTask, plan: &Plan, connections: usize) -> Option<BlobRequest> {
    let references = task.images.iter().map(|index| &plan.images[*index].reference);
    Some(BlobRequest {
        digest: task.digest,
        size: task.size,
        images: match &task.source {
            Some(LayerSource::Stored(_) | LayerSource::MediumTar(_) | LayerSource::Chunked(_)) => {
                return None;
            }
            Some(LayerSource::Delta(option)) => vec![option.repository.clone()],
            None => references.cloned().collect(),
        },
        connections,
        is_optional: task.source.is_some(),
        is_on_medium: task.is_on_medium(),
    })
}

/// The request for a layer's whole blob, with every image of the plan whose manifest lists it.
pub(super) fn request_for_layer(task: &LayerTask, plan: &Plan, connections: usize) -> BlobRequest {
    let lists_it = |image: &&PlannedImage| image.lists(&task.layer.blob);
    let images = plan.images.iter();
    BlobRequest {
        digest: task.layer.blob,
        size: task.layer.size,
        images: images
            .filter(lists_it)
            .map(|image| image.reference.clone())
            .collect(),
        connections,
        is_optional: false,
        is_on_medium: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::Digest;

    const MIB: u64 = 1 << 20;

    fn blobs(sizes: &[u64]) -> Vec<BlobTask> {
        let blob = |size: &u64| BlobTask {
            source: None,
            digest: Digest::of(&size.to_be_bytes()),
            size: size * MIB,
            spooled: 0,
            medium: None,
            layers: Vec::new(),
            images: Vec::new(),
        };
        sizes.iter().map(blob).collect()
    }

    /// The order of sizes if a MiB takes `per_mib`, and blobs are downloaded one at a time.
    fn order(sizes: &[u64], per_mib: Duration, deadline: Option<Duration>) -> Vec<u64> {
        let (blobs, start) = (blobs(sizes), Instant::now());
        let mut scheduler = Scheduler::new(&blobs, false, deadline.map(|after| start + after), start, 0);
        let (mut order, mut received) = (Vec::new(), 0);
        while let Some(blob) = scheduler.next(received) {
            let size = blob.size / MIB;
            order.push(size);
            received += blob.size;
            let took = per_mib * size as u32;
            scheduler.start -= took;
            scheduler.deadline = scheduler.deadline.map(|deadline| deadline - took);
        }
        order
    }

    #[test]
    fn the_largest_blob_goes_first_when_the_rest_arrives_soon() {
        let sizes = [1, 2, 3, 40, 50];
        let fast = Duration::from_millis(10);
        assert_eq!(
            order(&sizes, fast, None),
            [1, 50, 40, 3, 2],
            "the rate is known after the first"
        );
        assert_eq!(
            order(&sizes, fast * 100, None),
            [1, 2, 3, 40, 50].map(|size| size),
            "a minute and a half"
        );
        let hour = Some(Duration::from_secs(3_600));
        assert_eq!(order(&sizes, fast, hour), [1, 50, 40, 3, 2]);
        let tight = Some(Duration::from_millis(1_200));
        assert_eq!(
            order(&sizes, fast, tight),
            sizes,
            "the rate may drop before the deadline"
        );
    }

    #[test]
    fn blobs_on_media_have_a_queue_of_their_own_and_cost_no_time_of_the_link() {
        let mut blobs = blobs(&[1, 50, 40]);
        blobs[1].medium = Some("/media/a".into());
        let mut scheduler = Scheduler::new(&blobs, true, None, Instant::now(), 0);
        assert_eq!(scheduler.bytes_left(), 41 * MIB);
        assert_eq!(scheduler.next_copy(), Some(&blobs[1]));
        assert_eq!(scheduler.next_copy(), None);
        let order: Vec<_> = std::iter::from_fn(|| scheduler.next(0)).collect();
        assert_eq!(order, [&blobs[0], &blobs[2]]);
        scheduler.release(blobs.iter());
        assert_eq!((scheduler.copies.len(), scheduler.waiting.len()), (1, 2));
        scheduler.hold_all();
        assert_eq!((scheduler.next_copy(), scheduler.next(0)), (None, None));
    }

    #[test]
    fn the_order_of_an_update_is_kept() {
        let blobs = blobs(&[1, 50, 40, 60]);
        let mut scheduler = Scheduler::new(&blobs, true, None, Instant::now(), 0);
        let order = std::iter::from_fn(|| scheduler.next(1000 * MIB));
        assert!(order.eq(&blobs));
    }

    #[test]
    fn the_other_blobs_of_its_image_follow_the_largest() {
        let mut blobs = blobs(&[1, 50, 40, 30, 20]);
        for (blob, images) in blobs.iter_mut().zip([&[2][..], &[0], &[1, 2], &[1], &[0, 1]]) {
            blob.images = images.to_vec();
        }
        let mut scheduler = Scheduler::new(&blobs, false, None, Instant::now(), 0);
        let order: Vec<u64> = std::iter::from_fn(|| scheduler.next(1000 * MIB))
            .map(|blob| blob.size / MIB)
            .collect();
        assert_eq!(order, [50, 20, 40, 30, 1]);
    }

    #[test]
    fn a_blob_with_a_large_share_of_the_bytes_gets_several_connections() {
        for (sizes, expected) in [
            (&[1, 1, 1, 1, 1, 1, 1, 1][..], [1, 1]),
            (&[20, 10, 10, 10, 10, 10, 10], [3, 1]),
            (&[60, 20, 20], [4, 3]),
            (&[100], [4, 4]),
            (&[0, 0], [1, 1]),
        ] {
            let total = sizes.iter().sum();
            let connections = [sizes[0], sizes[sizes.len() - 1]].map(|size| connections(size, total, 8));
            assert_eq!(connections, expected, "{sizes:?}");
        }
    }

    #[test]
    fn shortly_before_the_end_every_blob_gets_one_connection() {
        let blobs = blobs(&[100, 100]);
        let mut scheduler = Scheduler::new(&blobs, false, None, Instant::now(), 0);
        scheduler.start -= Duration::from_secs(10);
        for (received, expected) in [(0, 4), (50, 4), (110, 1)] {
            scheduler.received = received * MIB;
            assert_eq!(
                scheduler.connections(&blobs[0], 8),
                expected,
                "{received} of 200 in 10 s"
            );
        }
    }

    #[test]
    fn a_blob_that_failed_does_not_count_as_left() {
        let blobs = blobs(&[1, 2]);
        let mut scheduler = Scheduler::new(&blobs, false, None, Instant::now(), 0);
        assert!(!scheduler.ends_soon(Instant::now()), "the rate is unknown");
        scheduler.drop_blob(&blobs[0]);
        scheduler.next(MIB);
        assert_eq!((scheduler.received, scheduler.bytes_left()), (MIB, MIB));
    }
}
