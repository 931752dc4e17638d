//! Runs disk and CPU work on a thread of its own.

use super::error::ExportError;

/// Runs `work` on a blocking thread, so that the calling task can be dropped meanwhile.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ExportError> + Send + 'static,
) -> Result<T, ExportError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(ExportError::Panicked(panic.to_string())))
}
