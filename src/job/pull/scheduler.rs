//! The blobs of a plan that nobody has begun with yet, and which of them is next.
//!
//! They go as the plan has them, so that a run which is cut off leaves whole images. That leaves the largest for the end,
//! and the last to come is unpacked by one thread while the link and the other cores idle. So when all the rest is a
//! matter of moments, and is there long before the deadline, the largest goes first, and what its image needs besides:
//! images get whole all the time, and are given to the disk while others are unpacked, instead of all at the end.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::fetch::BlobRequest;
use crate::plan::{BlobTask, Plan};

/// How long the rest may take at most for the largest blob to go first. What that gains is the time in which a thread
/// unpacks the largest layer, some seconds; a link that needs longer than this for the rest loses less than a tenth.
const SOON: Duration = Duration::from_secs(60);

/// The part of the time until the deadline that the rest may take for it: the rate may fall.
const PART: u32 = 4;

/// If all is here in fewer seconds, no blob gets connections of its own: the time in which it waits until as many are free
/// would be a large part of that.
const SHORT: f64 = 20.0;

/// What waits, and how fast the rest comes.
#[derive(Debug)]
pub(in crate::job) struct Queue<'a> {
    waiting: VecDeque<&'a BlobTask>,
    /// The image of the largest blob that was taken, when the largest goes first.
    image: Option<usize>,
    deadline: Option<Instant>,
    /// When the first byte might have come, and how many came since.
    start: Instant,
    came: u64,
    /// How many will have come in the end.
    all: u64,
}

impl<'a> Queue<'a> {
    /// `received` is how many bytes have come since `start`, for other plans.
    pub(in crate::job) fn new(
        blobs: &'a [BlobTask],
        deadline: Option<Instant>,
        start: Instant,
        received: u64,
    ) -> Self {
        Self {
            waiting: blobs.iter().collect(),
            image: None,
            deadline,
            start,
            came: received,
            all: blobs
                .iter()
                .map(BlobTask::missing)
                .fold(received, u64::saturating_add),
        }
    }

    pub(in crate::job) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the blob to begin with next, when so many bytes have come.
    pub(in crate::job) fn take(&mut self, received: u64) -> Option<&'a BlobTask> {
        self.came = received;
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

    /// Takes the next blob that one of these images has.
    pub(in crate::job) fn take_of(&mut self, images: &HashSet<usize>) -> Option<&'a BlobTask> {
        let is_of = |blob: &&BlobTask| blob.images.iter().any(|image| images.contains(image));
        let place = self.waiting.iter().position(is_of)?;
        self.waiting.remove(place)
    }

    /// How many of the connections are to be a blob's that was taken.
    pub(in crate::job) fn connections(&self, blob: &BlobTask, most: usize) -> usize {
        match self.needed(Instant::now()) >= SHORT {
            true => connections(blob.missing(), self.rest(), most),
            false => 1,
        }
    }

    /// Notes that a blob which was taken will never be here.
    pub(in crate::job) fn failed(&mut self, blob: &BlobTask) {
        self.all = self.all.saturating_sub(blob.missing());
    }

    fn rest(&self) -> u64 {
        self.all.saturating_sub(self.came)
    }

    /// How many seconds the rest needs, as fast as it came until now. Infinite, or not a number, if nothing came yet.
    fn needed(&self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.start).as_secs_f64();
        passed * self.rest() as f64 / self.came as f64
    }

    /// Whether all the rest will be here soon.
    fn ends_soon(&self, now: Instant) -> bool {
        let left = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(now) / PART);
        self.needed(now) < left.unwrap_or(SOON).min(SOON).as_secs_f64()
    }
}

/// How many of the connections are to be a blob's, where so many bytes of it and of all are to come. They share a link
/// evenly: one that is a large part of all gets more of it, or it would be awaited alone, and unpacked while the link has
/// nothing to do.
pub(in crate::job) fn connections(blob: u64, all: u64, most: usize) -> usize {
    let part = blob as f64 / all as f64 * most as f64;
    match part > 1.0 {
        // One more, so that it comes before the others; and no more than half, for it waits until so many are free.
        true => (part.ceil() as usize).saturating_add(1).min(most.div_ceil(2)),
        false => 1,
    }
}

/// The request for a blob of the plan, with every image that contains it.
pub(in crate::job) fn request_for(task: &BlobTask, plan: &Plan, connections: usize) -> BlobRequest {
    let references = task.images.iter().map(|index| &plan.images[*index].reference);
    BlobRequest {
        digest: task.digest,
        size: task.size,
        images: references.cloned().collect(),
        connections,
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
        let mut queue = Queue::new(&blobs, deadline.map(|after| start + after), start, 0);
        let (mut order, mut received) = (Vec::new(), 0);
        while let Some(blob) = queue.take(received) {
            let size = blob.size / MIB;
            order.push(size);
            received += blob.size;
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
        let mut queue = Queue::new(&blobs, None, Instant::now(), 0);
        let order: Vec<u64> = std::iter::from_fn(|| queue.take(1000 * MIB))
            .map(|blob| blob.size / MIB)
            .collect();
        assert_eq!(order, [50, 20, 40, 30, 1]);
    }

    #[test]
    fn a_blob_that_is_a_large_part_of_all_gets_a_large_part_of_the_connections() {
        for (sizes, expected) in [
            (&[1, 1, 1, 1, 1, 1, 1, 1][..], [1, 1]),
            (&[20, 10, 10, 10, 10, 10, 10], [3, 1]),
            (&[60, 20, 20], [4, 3]),
            (&[100], [4, 4]),
            (&[0, 0], [1, 1]),
        ] {
            let all = sizes.iter().sum();
            let connections = [sizes[0], sizes[sizes.len() - 1]].map(|size| connections(size, all, 8));
            assert_eq!(connections, expected, "{sizes:?}");
        }
    }

    #[test]
    fn where_all_is_here_shortly_no_blob_has_connections_of_its_own() {
        let blobs = blobs(&[100, 100]);
        let mut queue = Queue::new(&blobs, None, Instant::now(), 0);
        queue.start -= Duration::from_secs(10);
        for (received, expected) in [(0, 4), (50, 4), (110, 1)] {
            queue.came = received * MIB;
            assert_eq!(
                queue.connections(&blobs[0], 8),
                expected,
                "{received} of 200 in 10 s"
            );
        }
    }

    #[test]
    fn a_blob_that_cannot_be_had_is_not_waited_for() {
        let blobs = blobs(&[1, 2]);
        let mut queue = Queue::new(&blobs, None, Instant::now(), 0);
        assert!(!queue.ends_soon(Instant::now()), "nothing is known of the rate");
        queue.failed(&blobs[0]);
        queue.take(MIB);
        assert_eq!((queue.came, queue.rest()), (MIB, MIB));
    }
}
