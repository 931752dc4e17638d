//! Makes spooled bytes durable on a thread of its own, at a rate that leaves the disk to etcd and other programs.
//!
//! # Design
//!
//! One thread for the whole spool takes requests from a short queue, one after the other, and sleeps after each. No
//! download waits for it: if the queue is full, the next write of the download requests the sync again. So a socket
//! never waits for the disk, and etcd on the same disk sees about one sync per second, however many blobs are in
//! transfer.
//!
//! ```text
//! Partial::write ──┐                ┌─ write back in chunks ─→ fdatasync blob ─→ append record ─→ fdatasync journal
//! Partial::finish ─┴→ [QUEUE] ─→ thread
//!                                   └─ sleep
//! ```
//!
//! Bytes are written back in chunks, and each is awaited: a write of another program waits for one chunk at most, and
//! the end of the process does not wait for a long sync.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::journal::{Journal, JournalRecord};
use crate::write_back;

/// Length of the queue. With a longer one, requests would be too old when they are served.
const QUEUE: usize = 16;

/// Minimum time between the starts of two requests. On a slower disk the thread sleeps as long as it has worked.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes that are written back at once: a tenth of a second of a slow disk.
const CHUNK: u64 = 8 << 20;

/// If this many bytes arrive during a write-back, the link is faster than the disk. Then a sync would take as long as
/// the download, and the end of the process would wait for it.
const MAX_LAG: u64 = 256 << 20;

/// Bytes that should become durable.
#[derive(Debug)]
pub(super) struct SyncRequest {
    /// The file of the blob. A request for a removed file is skipped.
    pub(super) file: Arc<File>,
    /// The bytes before this offset are durable.
    pub(super) from: u64,
    /// The bytes before this offset must become durable.
    pub(super) to: u64,
    /// Earliest time. On a fast link most blobs are unpacked and removed before it.
    pub(super) due: Instant,
    /// The record to write afterwards. A whole blob has none: the directory is synced instead, for its name.
    pub(super) record: Option<(Arc<Mutex<Journal>>, JournalRecord)>,
}

/// The sender of requests. The thread ends after this is dropped and the queue is empty.
#[derive(Debug)]
pub(super) struct Syncer(SyncSender<SyncRequest>);

impl Syncer {
    /// Starts the thread for the spool whose directory this is.
    pub(super) fn start(dir: File) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(QUEUE);
        std::thread::Builder::new()
            .name("spool-sync".into())
            .spawn(move || serve(&receiver, &dir))?;
        Ok(Self(sender))
    }

    /// Queues a request. Returns false if the queue is full.
    pub(super) fn offer(&self, request: SyncRequest) -> bool {
        match self.0.try_send(request) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}

/// A journal is consistent at every moment, even after a panic of its holder.
pub(super) fn lock(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(requests: &Receiver<SyncRequest>, dir: &File) {
    for request in requests {
        std::thread::sleep(request.due.saturating_duration_since(Instant::now()));
        let began = Instant::now();
        let result = request.serve(dir);
        let has_worked = !matches!(result, Ok(false));
        match (request.record, result) {
            (Some((journal, _)), Ok(_)) => lock(&journal).is_syncing = false,
            (Some((journal, _)), Err(error)) => lock(&journal).sync_error = Some(error),
            // The unpacker reads the blob again and reports a real failure.
            (None, Err(error)) => tracing::warn!("a whole blob in the spool may not be durable: {error}"),
            (None, Ok(_)) => {}
        }
        drop(request.file);
        if has_worked {
            let took = began.elapsed();
            std::thread::sleep(took.max(MIN_INTERVAL.saturating_sub(took)));
        }
    }
}

impl SyncRequest {
    /// Returns false if the file was removed. After true the record may still be missing: it is skipped if the disk is
    /// slower than the link.
    fn serve(&self, dir: &File) -> io::Result<bool> {
        if self.file.metadata()?.nlink() == 0 {
            return Ok(false);
        }
        // All but the newest bytes are written back first, because the sync waits for every byte written by then.
        let mut at = self.from;
        loop {
            let left = self.file.metadata()?.len().saturating_sub(at);
            if left == 0 || (left <= CHUNK && at >= self.to) {
                break;
            }
            if at > self.to.saturating_add(MAX_LAG) {
                return Ok(true);
            }
            let length = CHUNK.min(left);
            write_back::finish(&self.file, at..at + length)?;
            at += length;
        }
        rustix::fs::fdatasync(&self.file)?;
        match &self.record {
            None => rustix::fs::fsync(dir)?,
            Some((journal, record)) => {
                let (file, has_durable_name) = {
                    let mut journal = lock(journal);
                    if journal.is_closed {
                        return Ok(true);
                    }
                    journal.append(*record)?;
                    (
                        journal.file()?,
                        std::mem::replace(&mut journal.has_durable_name, true),
                    )
                };
                rustix::fs::fdatasync(&file)?;
                if !has_durable_name {
                    rustix::fs::fsync(dir)?;
                }
            }
        }
        Ok(true)
    }
}
