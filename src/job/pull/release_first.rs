//! Blobs that go first and alone: those of a release image, without which nothing can be planned.
//!
//! On a slow link any company costs them as much as it gets, and the payload may be worth more than all that the rest of the
//! time brings. On a fast one they are here before it matters.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::oci::Digest;
use crate::plan::BlobTask;

/// If they are all here in less, at the rate so far, others may begin: a link that would idle at their end gains more than
/// these lose.
const SOON: Duration = Duration::from_secs(1);

/// After so long in which less than [`PROGRESS`] came they have no use for the link, and others begin.
const PATIENCE: Duration = Duration::from_secs(5);

/// In bytes. A source that trickles must not hold up the operator indexes of another one.
const PROGRESS: u64 = 16 << 10;

/// How often it is looked whether that is so.
pub(in crate::job) const GLANCE: Duration = Duration::from_millis(100);

/// How far they are.
#[derive(Debug)]
pub(in crate::job) struct Vanguard {
    /// Those that have not ended.
    open: HashSet<Digest>,
    /// Bytes to come of them all.
    bytes: u64,
    since: Instant,
    /// Bytes of all blobs that had come by then.
    received: u64,
    /// How many had come when [`PROGRESS`] was made last.
    moved: (u64, Instant),
    /// Others may travel, and stay on their way.
    is_over: bool,
}

impl Vanguard {
    /// Of the blobs that these images have; `received` is what came before.
    pub(in crate::job) fn new(blobs: &[BlobTask], images: &HashSet<usize>, received: u64) -> Self {
        let is_of = |blob: &&BlobTask| blob.images.iter().any(|image| images.contains(image));
        let first = || blobs.iter().filter(is_of);
        let since = Instant::now();
        Self {
            open: first().map(|blob| blob.digest).collect(),
            bytes: first().map(BlobTask::missing).sum(),
            since,
            received,
            moved: (received, since),
            is_over: false,
        }
    }

    /// Notes that a blob was staged, or cannot be had.
    pub(in crate::job) fn has_ended(&mut self, blob: &BlobTask) {
        self.open.remove(&blob.digest);
    }

    /// Whether no other blob may travel: these are not nearly here, and they move.
    pub(in crate::job) fn is_alone(&mut self, received: u64) -> bool {
        if received.saturating_sub(self.moved.0) >= PROGRESS {
            self.moved = (received, Instant::now());
        }
        let came = received.saturating_sub(self.received);
        let left = self.bytes.saturating_sub(came);
        // Infinite if nothing came yet.
        let needed = self.since.elapsed().as_secs_f64() * left as f64 / came as f64;
        self.is_over |= self.open.is_empty()
            || left == 0
            || needed < SOON.as_secs_f64()
            || self.moved.1.elapsed() >= PATIENCE;
        !self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn blob(size: u64, images: &[usize]) -> BlobTask {
        BlobTask {
            digest: Digest::of(&size.to_be_bytes()),
            size: size * MIB,
            spooled: 0,
            layers: Vec::new(),
            images: images.to_vec(),
        }
    }

    #[test]
    fn the_release_image_travels_alone_until_it_is_nearly_here() {
        let blobs = [blob(5, &[1]), blob(30, &[0]), blob(10, &[0, 1])];
        let images = HashSet::from([0]);
        let begun = |received: u64| {
            let mut first = Vanguard::new(&blobs, &images, received * MIB);
            assert_eq!((first.open.len(), first.bytes), (2, 40 * MIB));
            first.since -= Duration::from_secs(20);
            first
        };
        let mut first = begun(7);
        assert!(first.is_alone(7 * MIB), "nothing came yet");
        assert!(first.is_alone((7 + 37) * MIB), "2 s are left");
        assert!(!first.is_alone((7 + 39) * MIB), "half a second is left");
        assert!(!first.is_alone((7 + 39) * MIB), "and others stay on their way");

        let mut first = begun(0);
        first.moved.1 -= PATIENCE;
        assert!(!first.is_alone(0), "they wait for a registry");
        let mut first = begun(0);
        first.moved.1 -= PATIENCE;
        assert!(first.is_alone(MIB), "they moved just now");
        first.has_ended(&blobs[1]);
        first.has_ended(&blobs[2]);
        assert!(!first.is_alone(MIB), "they cannot be had");
        assert!(!Vanguard::new(&blobs, &HashSet::new(), 0).is_alone(0));
    }
}
