//! What came over the link.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// All blobs', since the beginning.
#[derive(Debug, Default)]
pub(super) struct TransferStats {
    received: AtomicU64,
}

impl TransferStats {
    /// Bytes that came so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Bytes a second.
pub(super) fn rate(bytes: u64, took: Duration) -> u64 {
    (bytes as f64 / took.as_secs_f64().max(1e-6)) as u64
}
