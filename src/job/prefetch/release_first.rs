//! Gives a release image's blobs the link for themselves until they are nearly complete, because nothing else can be
//! planned without them.
//!
//! On a slow link every other download delays them by as much as it receives, and the payload may be worth more than
//! everything that arrives in the remaining time. On a fast link they are complete before it matters.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::oci::Digest;
use crate::plan::BlobTask;

/// Other downloads start if all these blobs will arrive within this time at the current rate: an idle link at their end
/// would cost more than they lose.
const NEARLY_COMPLETE: Duration = Duration::from_secs(1);

/// Other downloads start after this time with less than [`MIN_PROGRESS`], because these blobs do not use the link.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// In bytes. A source that trickles must not delay the operator indexes of another one.
const MIN_PROGRESS: u64 = 16 << 10;

/// How often a pull calls [`ReleaseFirst::is_alone`] while nothing else happens.
pub(in crate::job) const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The progress of the release image's blobs during one pull.
#[derive(Debug)]
pub(in crate::job) struct ReleaseFirst {
    /// The release images, as indices in the plan.
    images: HashSet<usize>,
    /// Their blobs that were neither staged nor failed.
    pending: HashSet<Digest>,
    /// How many bytes of their blobs were missing at the start.
    bytes: u64,
    start: Instant,
    /// How many bytes of all blobs were received before the start.
    received: u64,
    /// How many bytes were received when [`MIN_PROGRESS`] was last made, and when.
    progress: (u64, Instant),
    /// Whether other downloads were allowed; this is final.
    is_over: bool,
    /// Publishes whether the release image has the link for itself.
    alone: watch::Sender<bool>,
}

impl ReleaseFirst {
    /// For the blobs of these images; `received` is how many bytes were downloaded before. Also returns the receiver of
    /// whether they have the link for themselves.
    pub(super) fn new(
        blobs: &[BlobTask],
        images: HashSet<usize>,
        received: u64,
    ) -> (Self, watch::Receiver<bool>) {
        let is_of = |blob: &&BlobTask| blob.images.iter().any(|image| images.contains(image));
        let first = || blobs.iter().filter(is_of);
        let start = Instant::now();
        let (alone, is_alone) = watch::channel(!images.is_empty());
        let release_first = Self {
            pending: first().map(|blob| blob.digest).collect(),
            bytes: first().map(BlobTask::missing).sum(),
            images,
            start,
            received,
            progress: (received, start),
            is_over: false,
            alone,
        };
        (release_first, is_alone)
    }

    /// The release images, as indices in the plan.
    pub(in crate::job) fn images(&self) -> &HashSet<usize> {
        &self.images
    }

    /// Records that a blob was staged or failed.
    pub(in crate::job) fn blob_ended(&mut self, blob: &BlobTask) {
        self.pending.remove(&blob.digest);
    }

    /// Whether no other blob may be downloaded: these are not nearly complete, and they make progress.
    pub(in crate::job) fn is_alone(&mut self, received: u64) -> bool {
        if received.saturating_sub(self.progress.0) >= MIN_PROGRESS {
            self.progress = (received, Instant::now());
        }
        let arrived = received.saturating_sub(self.received);
        let left = self.bytes.saturating_sub(arrived);
        // Infinite if nothing has arrived yet.
        let time_left = self.start.elapsed().as_secs_f64() * left as f64 / arrived as f64;
        self.is_over |= self.pending.is_empty()
            || left == 0
            || time_left < NEARLY_COMPLETE.as_secs_f64()
            || self.progress.1.elapsed() >= STALL_TIMEOUT;
        let is_alone = !self.is_over;
        self.alone
            .send_if_modified(|alone| std::mem::replace(alone, is_alone) != is_alone);
        is_alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn blob(size: u64, images: &[usize]) -> BlobTask {
        BlobTask {
            source: None,
            digest: Digest::of(&size.to_be_bytes()),
            size: size * MIB,
            spooled: 0,
            medium: None,
            layers: Vec::new(),
            images: images.to_vec(),
        }
    }

    #[test]
    fn the_release_image_is_downloaded_alone_until_it_is_nearly_complete() {
        let blobs = [blob(5, &[1]), blob(30, &[0]), blob(10, &[0, 1])];
        let started = |received: u64| {
            let (mut first, is_alone) = ReleaseFirst::new(&blobs, HashSet::from([0]), received * MIB);
            assert_eq!((first.pending.len(), first.bytes), (2, 40 * MIB));
            first.start -= Duration::from_secs(20);
            (first, is_alone)
        };
        let (mut first, is_alone) = started(7);
        assert!(first.is_alone(7 * MIB), "nothing has arrived yet");
        assert!(first.is_alone((7 + 37) * MIB), "2 s are left");
        assert!(*is_alone.borrow());
        assert!(!first.is_alone((7 + 39) * MIB), "half a second is left");
        assert!(!*is_alone.borrow());
        assert!(!first.is_alone((7 + 39) * MIB), "and other downloads continue");

        let (mut first, _) = started(0);
        first.progress.1 -= STALL_TIMEOUT;
        assert!(!first.is_alone(0), "the registry does not answer");
        let (mut first, _) = started(0);
        first.progress.1 -= STALL_TIMEOUT;
        assert!(first.is_alone(MIB), "it has just made progress");
        first.blob_ended(&blobs[1]);
        first.blob_ended(&blobs[2]);
        assert!(!first.is_alone(MIB), "all its blobs ended");
        let (mut first, is_alone) = ReleaseFirst::new(&blobs, HashSet::new(), 0);
        assert!(!first.is_alone(0) && !*is_alone.borrow());
    }
}
