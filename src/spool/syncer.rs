//! The thread that makes bytes durable, at a rate that neighbours on the disk can bear.
//!
//! # Design
//!
//! One thread for the whole spool takes requests from a short queue, one after the other, and rests after each. Nobody
//! waits for it: a download that finds the queue full asks again with its next bytes. So the socket never waits for
//! the disk, and etcd beside us sees a sync about once a second however many blobs travel.
//!
//! ```text
//! Partial::write ──┐                ┌─ write back in pieces ─→ fdatasync blob ─→ append record ─→ fdatasync journal
//! Partial::finish ─┴→ [QUEUE] ─→ thread
//!                                   └─ rest
//! ```
//!
//! Bytes are written back in pieces, each awaited: a neighbour's write is never behind more than one of them, and a
//! process that is to end has not to wait for a long sync.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::journal::{Journal, Record};
use crate::write_back;

/// Requests that may wait. With more, those that are served are too old to be of use.
const QUEUE: usize = 16;

/// From the beginning of one request to that of the next. A disk that is slower has as much rest as work.
const PACE: Duration = Duration::from_secs(1);

/// What is written back at once: a tenth of a second of a slow disk.
const PIECE: u64 = 8 << 20;

/// When so much came while bytes were written back, the link is faster than the disk: then a sync would take as long as
/// the download, and a process that is to end would have to wait for it.
const BEHIND: u64 = 256 << 20;

/// Bytes to be made durable.
#[derive(Debug)]
pub(super) struct Request {
    /// Of the blob. Nothing is done for one that was removed meanwhile.
    pub(super) file: Arc<File>,
    /// What comes before is durable.
    pub(super) from: u64,
    /// What is to be durable at least.
    pub(super) to: u64,
    /// Not before: most blobs of a fast link are unpacked and removed until then.
    pub(super) due: Instant,
    /// To be noted when it is done. A whole blob needs none: its name is its record, and is synced instead.
    pub(super) record: Option<(Arc<Mutex<Journal>>, Record)>,
}

/// Requests go in here. The thread ends when this is dropped and all is done.
#[derive(Debug)]
pub(super) struct Syncer(SyncSender<Request>);

impl Syncer {
    /// Starts the thread for the spool whose directory this is.
    pub(super) fn start(dir: File) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(QUEUE);
        std::thread::Builder::new()
            .name("spool-sync".into())
            .spawn(move || serve(&receiver, &dir))?;
        Ok(Self(sender))
    }

    /// Hands in a request, if there is room for it.
    pub(super) fn offer(&self, request: Request) -> bool {
        match self.0.try_send(request) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}

/// A journal is whole at every moment, also when its holder panicked.
pub(super) fn lock(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(requests: &Receiver<Request>, dir: &File) {
    for request in requests {
        std::thread::sleep(request.due.saturating_duration_since(Instant::now()));
        let began = Instant::now();
        let result = request.serve(dir);
        let has_worked = !matches!(result, Ok(false));
        match (request.record, result) {
            (Some((journal, _)), Ok(_)) => lock(&journal).is_syncing = false,
            (Some((journal, _)), Err(error)) => lock(&journal).failure = Some(error),
            // The store reads it again, and then fails or does not.
            (None, Err(error)) => tracing::warn!("a whole blob in the spool may not be durable: {error}"),
            (None, Ok(_)) => {}
        }
        drop(request.file);
        if has_worked {
            let took = began.elapsed();
            std::thread::sleep(took.max(PACE.saturating_sub(took)));
        }
    }
}

impl Request {
    /// False if there was nothing to do any more. True says nothing of the record: it is left out if the disk is slower
    /// than the link.
    fn serve(&self, dir: &File) -> io::Result<bool> {
        if self.file.metadata()?.nlink() == 0 {
            return Ok(false);
        }
        // All but the newest bytes, for a sync is not over before they are written too.
        let mut at = self.from;
        loop {
            let left = self.file.metadata()?.len().saturating_sub(at);
            if left == 0 || (left <= PIECE && at >= self.to) {
                break;
            }
            if at > self.to.saturating_add(BEHIND) {
                return Ok(true);
            }
            let length = PIECE.min(left);
            write_back::finish(&self.file, at..at + length)?;
            at += length;
        }
        rustix::fs::fdatasync(&self.file)?;
        match &self.record {
            None => rustix::fs::fsync(dir)?,
            Some((journal, record)) => {
                let (file, is_entered) = {
                    let mut journal = lock(journal);
                    if journal.is_closed {
                        return Ok(true);
                    }
                    journal.append(*record)?;
                    (journal.file()?, std::mem::replace(&mut journal.is_entered, true))
                };
                rustix::fs::fdatasync(&file)?;
                if !is_entered {
                    rustix::fs::fsync(dir)?;
                }
            }
        }
        Ok(true)
    }
}
