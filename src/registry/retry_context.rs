//! Shares the state of retries between all operations: when bytes last arrived, and which registries asked to wait.
//!
//! The time without progress is common to all operations. On a slow link one registry may get nothing because another one
//! uses all of the link, so an operation gives up only when no operation has received anything. Operations that waited for
//! their turn behind others that received nothing try once and give up with them, not each after a time of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::report::{Observer, Operation};

use super::mirror_speed::MirrorSpeeds;
use super::rate_limit::Rate;

/// A registry whose `Retry-After` is longer than this is asked again nevertheless.
pub(super) const LONGEST_THROTTLE: Duration = Duration::from_secs(15 * 60);

/// Bytes a second, over all of `give_up_after` and by all connections, that count as progress. A release of 10 GB would take
/// most of a year at that.
const MIN_PROGRESS: u64 = 512;

/// Shared by all operations of a run.
pub(super) struct RetryContext {
    pub(super) observer: Arc<dyn Observer>,
    pub(super) speeds: Arc<MirrorSpeeds>,
    next_operation: AtomicU64,
    give_up_after: Option<Duration>,
    progress: Mutex<Progress>,
    /// Until when a registry asked to wait, by domain (`Retry-After`: RFC 9110, 10.2.3).
    throttled_until: Mutex<HashMap<String, Instant>>,
}

/// The last progress of all operations together.
struct Progress {
    /// When it was made, or when the first of the current operations began.
    at: Instant,
    /// Bytes received since then, not yet enough to count.
    received: u64,
    /// Operations under way.
    operations: usize,
}

impl std::fmt::Debug for RetryContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RetryContext")
            .field("give_up_after", &self.give_up_after)
            .finish_non_exhaustive()
    }
}

impl RetryContext {
    pub(super) fn new(
        observer: Arc<dyn Observer>,
        give_up_after: Option<Duration>,
        lowest_limit: Option<Rate>,
    ) -> Self {
        Self {
            observer,
            speeds: Arc::new(MirrorSpeeds::new(lowest_limit)),
            next_operation: AtomicU64::default(),
            give_up_after,
            progress: Mutex::new(Progress {
                at: Instant::now(),
                received: 0,
                operations: 0,
            }),
            throttled_until: Mutex::default(),
        }
    }

    /// Starts an operation on behalf of `images`, which ends with [`end_operation`](Self::end_operation).
    pub(super) fn begin_operation(&self, images: Vec<String>) -> Arc<Operation> {
        let mut progress = self.progress();
        if progress.operations == 0 {
            (progress.at, progress.received) = (Instant::now(), 0);
        }
        progress.operations += 1;
        Arc::new(Operation {
            id: self.next_operation.fetch_add(1, Ordering::Relaxed),
            images,
        })
    }

    pub(super) fn end_operation(&self) {
        self.progress().operations -= 1;
    }

    /// Records that the registry asked to wait for `wait`.
    pub(super) fn throttle(&self, domain: &str, wait: Duration) {
        let until = Instant::now() + wait.min(LONGEST_THROTTLE);
        let mut all = self.all_throttled();
        let known = all.entry(domain.to_owned()).or_insert(until);
        *known = until.max(*known);
    }

    /// Until when the registry must not be asked; nothing if it may be asked now.
    pub(super) fn throttled_until(&self, domain: &str) -> Option<Instant> {
        let until = self.all_throttled().get(domain).copied();
        until.filter(|until| *until > Instant::now())
    }

    /// The configured time without progress, if that much has passed.
    pub(super) fn stalled(&self) -> Option<Duration> {
        let elapsed = self.progress().at.elapsed();
        self.give_up_after.filter(|after| elapsed >= *after)
    }

    /// Counts bytes that were received for the first time.
    pub(super) fn received(&self, bytes: u64) {
        let mut progress = self.progress();
        progress.received = progress.received.saturating_add(bytes);
        let enough = self.give_up_after.unwrap_or_default().as_secs_f64() * MIN_PROGRESS as f64;
        if progress.received as f64 >= enough {
            (progress.at, progress.received) = (Instant::now(), 0);
        }
    }

    /// Records that an operation succeeded, which is progress however few bytes it received.
    pub(super) fn succeeded(&self) {
        let mut progress = self.progress();
        (progress.at, progress.received) = (Instant::now(), 0);
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all_throttled(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.throttled_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
