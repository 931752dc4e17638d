//! Runs disk and CPU work on a thread of its own.

use super::error::CreationError;

/// Runs `work` on a blocking thread, so that the calling task can be dropped meanwhile.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CreationError> + Send + 'static,
) -> Result<T, CreationError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(CreationError::Panicked(panic.to_string())))
}
