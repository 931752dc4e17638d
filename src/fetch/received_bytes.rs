//! Counts the bytes of all blobs that a run has received.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The bytes received since the start.
#[derive(Debug, Default)]
pub(super) struct TransferStats {
    received: AtomicU64,
}

impl TransferStats {
    /// Bytes received so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The average rate.
pub(super) fn bytes_per_second(bytes: u64, took: Duration) -> u64 {
    (bytes as f64 / took.as_secs_f64().max(1e-6)) as u64
}
