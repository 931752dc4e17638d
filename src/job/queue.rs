//! The blobs of a plan that nobody has begun with yet, and which of them is next.
//!
//! They go as the plan has them, so that a run which is cut off leaves whole images. That leaves the largest for the end,
//! and the last to come is unpacked by one thread while the link and the other cores idle. So when all the rest is a
//! matter of moments, and is there long before the deadline, the largest goes first, and what its image needs besides:
//! images get whole all the time, and are given to the disk while others are unpacked, instead of all at the end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::plan::BlobTask;

/// How long the rest may take at most for the largest blob to go first. What that gains is the time in which a thread
/// unpacks the largest layer, some seconds; a link that needs longer than this for the rest loses less than a tenth.
const SOON: Duration = Duration::from_secs(60);

/// The part of the time until the deadline that the rest may take for it: the rate may fall.
const PART: u32 = 4;

/// What waits, and how fast the rest comes.
#[derive(Debug)]
pub(super) struct Queue<'a> {
    waiting: VecDeque<&'a BlobTask>,
    /// The image of the largest blob that was taken, when the largest goes first.
    image: Option<usize>,
    deadline: Option<Instant>,
    start: Instant,
    /// Bytes that came since the start.
    came: u64,
    /// Bytes that are still to come, those on their way among them.
    rest: u64,
}

impl<'a> Queue<'a> {
    pub(super) fn new(blobs: &'a [BlobTask], deadline: Option<Instant>) -> Self {
        Self {
            waiting: blobs.iter().collect(),
            image: None,
            deadline,
            start: Instant::now(),
            came: 0,
            rest: blobs.iter().map(BlobTask::missing).fold(0, u64::saturating_add),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the blob to begin with next.
    pub(super) fn take(&mut self) -> Option<&'a BlobTask> {
        if !self.ends_soon(Instant::now()) {
            return self.waiting.pop_front();
        }
        let largest = |image: Option<usize>| {
            let of_image =
                |place: &usize| image.is_none_or(|image| self.waiting[*place].images.contains(&image));
            (0..self.waiting.len())
                .filter(of_image)
                .max_by_key(|place| self.waiting[*place].size)
        };
        let same_image = self.image.and_then(|image| largest(Some(image)));
        let blob = self.waiting.remove(same_image.or_else(|| largest(None))?)?;
        if same_image.is_none() {
            self.image = blob.images.first().copied();
        }
        Some(blob)
    }

    /// How many of the connections stand in line for a blob that was taken. They share a link evenly: one that is a large part
    /// of all that is to come gets more of it, or it would be awaited alone, and unpacked while the link has nothing to do.
    pub(super) fn connections(&self, blob: &BlobTask, all: usize) -> usize {
        let part = blob.missing() as f64 / self.rest as f64 * all as f64;
        match part > 1.0 {
            // One more, so that it comes before the others.
            true => (part.ceil() as usize).saturating_add(1).min(all),
            false => 1,
        }
    }

    /// Notes what became of a blob that was taken: its bytes are here, or will never be.
    pub(super) fn ended(&mut self, blob: &BlobTask, is_here: bool) {
        let bytes = blob.missing();
        self.rest = self.rest.saturating_sub(bytes);
        if is_here {
            self.came = self.came.saturating_add(bytes);
        }
    }

    /// Whether all the rest will be here soon, as fast as it came until now.
    fn ends_soon(&self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.start).as_secs_f64();
        let needed = passed * self.rest as f64 / self.came as f64;
        let left = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(now) / PART);
        // Nothing came yet: infinite, or not a number, and neither is less.
        needed < left.unwrap_or(SOON).min(SOON).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::Digest;

    const MIB: u64 = 1 << 20;

    fn blobs(sizes: &[u64]) -> Vec<BlobTask> {
        let blob = |size: &u64| BlobTask {
            digest: Digest::of(&size.to_be_bytes()),
            size: size * MIB,
            spooled: 0,
            layers: Vec::new(),
            images: Vec::new(),
        };
        sizes.iter().map(blob).collect()
    }

    /// The order of sizes if each blob takes `pace` for a MiB, and one is on its way at a time.
    fn order(sizes: &[u64], pace: Duration, deadline: Option<Duration>) -> Vec<u64> {
        let (blobs, start) = (blobs(sizes), Instant::now());
        let mut queue = Queue::new(&blobs, deadline.map(|after| start + after));
        let mut order = Vec::new();
        while let Some(blob) = queue.take() {
            let size = blob.size / MIB;
            order.push(size);
            queue.ended(blob, true);
            let took = pace * size as u32;
            queue.start -= took;
            queue.deadline = queue.deadline.map(|deadline| deadline - took);
        }
        order
    }

    #[test]
    fn the_largest_goes_first_when_the_rest_is_a_matter_of_moments() {
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
            "all come in time if nothing goes wrong"
        );
    }

    #[test]
    fn what_its_image_needs_besides_follows_the_largest() {
        let mut blobs = blobs(&[1, 50, 40, 30, 20]);
        for (blob, images) in blobs.iter_mut().zip([&[2][..], &[0], &[1, 2], &[1], &[0, 1]]) {
            blob.images = images.to_vec();
        }
        let mut queue = Queue::new(&blobs, None);
        queue.came = 1000 * MIB;
        let order: Vec<u64> = std::iter::from_fn(|| queue.take())
            .map(|blob| blob.size / MIB)
            .collect();
        assert_eq!(order, [50, 20, 40, 30, 1]);
    }

    #[test]
    fn a_blob_that_is_a_large_part_of_all_gets_a_large_part_of_the_connections() {
        for (sizes, expected) in [
            (&[1, 1, 1, 1, 1, 1, 1, 1][..], [1, 1]),
            (&[20, 10, 10, 10, 10, 10, 10], [3, 1]),
            (&[60, 20, 20], [6, 3]),
            (&[100], [8, 8]),
            (&[0, 0], [1, 1]),
        ] {
            let blobs = blobs(sizes);
            let queue = Queue::new(&blobs, None);
            let connections = [&blobs[0], &blobs[blobs.len() - 1]].map(|blob| queue.connections(blob, 8));
            assert_eq!(connections, expected, "{sizes:?}");
        }
    }

    #[test]
    fn a_blob_that_cannot_be_had_is_not_waited_for_and_says_nothing_of_the_rate() {
        let blobs = blobs(&[1, 2]);
        let mut queue = Queue::new(&blobs, None);
        queue.ended(&blobs[0], false);
        assert!(!queue.ends_soon(Instant::now()));
        assert_eq!((queue.came, queue.rest), (0, 2 * MIB));
    }
}
