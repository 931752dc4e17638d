//! Writes the received bytes of one blob to the spool, and counts them.
//!
//! ```text
//! socket ─→ BlobStream ─→ [channel, CHUNKS] ─→ Partial::write ─→ page cache
//!   task        task                              thread
//! ```
//!
//! A thread and not `block_in_place`: the next chunk is received while the last one is hashed, and a disk that stalls stops
//! only its own download. A chunk is what one read of the socket returns, some hundred KiB at most; so the memory is bounded
//! by connections × [`CHUNKS`] and does not depend on the sizes of blobs.

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::cancel::Cancel;
use crate::registry::{Attempts, BlobStream, Registries, RegistryError};
use crate::report::{Event, Observer};
use crate::spool::{Partial, Spool, SpoolError};

use super::BlobRequest;
use super::download_slot::DownloadSlots;
use super::received_bytes::TransferStats;

/// Chunks that wait between socket and disk: enough to bridge a short stall of the disk.
const CHUNKS: usize = 16;

/// What all connections of one blob share.
pub(super) struct Transfer<'a> {
    pub(super) registries: &'a Registries,
    pub(super) spool: &'a Spool,
    pub(super) observer: &'a dyn Observer,
    pub(super) slots: &'a DownloadSlots,
    pub(super) stats: &'a TransferStats,
    pub(super) request: BlobRequest,
    pub(super) cancel: &'a Cancel,
}

impl Transfer<'_> {
    /// Appends the bytes of an answer. The outer error is the spool's, which ends the download; the inner one is the source's.
    pub(super) async fn write(
        &self,
        mut stream: BlobStream,
        partial: Partial,
        attempts: &mut Attempts,
    ) -> Result<(Partial, Result<(), RegistryError>), SpoolError> {
        let offset = partial.offset();
        let (chunks, writer) = self.start_writer(partial);
        let received = self.receive(&mut stream, offset, chunks, attempts).await;
        Ok((finished(writer).await?, received))
    }

    /// Starts a thread that appends what it is sent, until the sender is dropped.
    pub(super) fn start_writer(
        &self,
        mut partial: Partial,
    ) -> (mpsc::Sender<Bytes>, JoinHandle<Result<Partial, SpoolError>>) {
        let (chunks, mut queue) = mpsc::channel::<Bytes>(CHUNKS);
        let writer = tokio::task::spawn_blocking(move || {
            while let Some(chunk) = queue.blocking_recv() {
                partial.write(&chunk)?;
            }
            Ok(partial)
        });
        (chunks, writer)
    }

    /// Sends the bytes from `offset` on to the writer, until the end, an error, or the end of the writer.
    async fn receive(
        &self,
        stream: &mut BlobStream,
        offset: u64,
        chunks: mpsc::Sender<Bytes>,
        attempts: &mut Attempts,
    ) -> Result<(), RegistryError> {
        // A registry that ignores ranges starts at 0.
        let mut repeated = offset.saturating_sub(stream.start());
        while let Some(mut chunk) = stream.next(self.cancel).await? {
            let skipped = usize::try_from(repeated).unwrap_or(usize::MAX).min(chunk.len());
            repeated -= skipped as u64;
            let chunk = chunk.split_off(skipped);
            if skipped > 0 {
                self.observer.observe(Event::BlobRepeated {
                    blob: self.request.digest,
                    bytes: skipped as u64,
                });
            }
            if chunk.is_empty() {
                continue;
            }
            let bytes = chunk.len() as u64;
            attempts.received(bytes);
            self.observer.observe(Event::BlobReceived {
                blob: self.request.digest,
                bytes,
            });
            self.stats.add(bytes);
            if chunks.send(chunk).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Runs work that waits for the disk on a thread of its own.
pub(super) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SpoolError> + Send + 'static,
) -> Result<T, SpoolError> {
    finished(tokio::task::spawn_blocking(work)).await
}

/// Waits for such work.
pub(super) async fn finished<T>(task: JoinHandle<Result<T, SpoolError>>) -> Result<T, SpoolError> {
    match task.await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // Only the runtime aborts these, when it shuts down, and then this task ends too.
        Err(_) => std::future::pending().await,
    }
}
