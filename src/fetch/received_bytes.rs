//! Counts the bytes of all blobs that a run has received.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The bytes received since the start.
#[derive(Debug, Default)]
pub(super) struct TransferStats {
    received: AtomicU64,
    not_on_media: AtomicU64,
}

impl TransferStats {
    /// Bytes received so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that will be received although they were expected from a medium.
    pub(super) fn add_not_on_media(&self, bytes: u64) {
        self.not_on_media.fetch_add(bytes, Ordering::Relaxed);
    }

    /// These bytes since the last call.
    pub(super) fn take_not_on_media(&self) -> u64 {
        self.not_on_media.swap(0, Ordering::Relaxed)
    }
}

/// The average rate.
pub(super) fn bytes_per_second(bytes: u64, took: Duration) -> u64 {
    (bytes as f64 / took.as_secs_f64().max(1e-6)) as u64
}
