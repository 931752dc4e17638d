//! What came over the link, and how fast.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A new figure counts for one part of so many.
const WEIGHT: u64 = 4;

/// Fewer bytes say nothing of a rate.
const TELLING: u64 = 256 << 10;

/// All blobs', since the beginning.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    received: AtomicU64,
    pace: AtomicU64,
}

impl Traffic {
    /// Bytes that came so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What one connection brings, in bytes a second; 0 as long as nobody knows.
    pub(super) fn pace(&self) -> u64 {
        self.pace.load(Ordering::Relaxed)
    }

    /// Notes what one connection brought, and in which time.
    pub(super) fn note_pace(&self, bytes: u64, took: Duration) {
        if bytes < TELLING {
            return;
        }
        let pace = rate(bytes, took).max(1);
        let mixed = match self.pace() {
            0 => pace,
            known => (known / WEIGHT)
                .saturating_mul(WEIGHT - 1)
                .saturating_add(pace / WEIGHT),
        };
        // Two who do so at the same time: one of them is not noted.
        self.pace.store(mixed.max(1), Ordering::Relaxed);
    }
}

/// Bytes a second.
pub(super) fn rate(bytes: u64, took: Duration) -> u64 {
    (bytes as f64 / took.as_secs_f64().max(1e-6)) as u64
}
