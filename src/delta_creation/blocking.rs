//! Runs disk and CPU work on a thread of its own, when the host has room for it.

use tokio::sync::{Semaphore, SemaphorePermit};

use super::error::CreationError;
use crate::cancel::{Cancel, Stopped};

/// Runs `work` on a blocking thread, so that the calling task can be dropped meanwhile.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CreationError> + Send + 'static,
) -> Result<T, CreationError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(CreationError::Panicked(panic.to_string())))
}

/// Waits for so many permits, or until the creation is stopped.
pub(super) async fn acquire<'s>(
    semaphore: &'s Semaphore,
    permits: u32,
    cancel: &Cancel,
) -> Result<SemaphorePermit<'s>, CreationError> {
    tokio::select! {
        permit = semaphore.acquire_many(permits) => Ok(permit.expect("the semaphore is never closed")),
        Stopped(reason) = cancel.stopped() => Err(Stopped(reason).into()),
    }
}
