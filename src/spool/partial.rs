//! Writes the bytes of one blob, or of one range of it, as they arrive; verifies the digest when all are present.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use crate::oci::Hasher;

use super::blob_write_back::BlobWriteBack;
use super::error::SpoolError;
use super::file_names::{FileNames, whole};
use super::journal::{self, Journal, JournalRecord};
use super::prefix_hash::{HASH_BUFFER, PrefixHash};
use super::state::SpoolState;
use super::syncer::{self, SyncRequest};
use super::verified_blob::VerifiedBlob;

/// The length from which a blob has a journal. A power loss costs all bytes of a smaller one.
const JOURNALED: u64 = 4 << 20;

/// Minimum of bytes between two records: the cost of a power loss on a slow link, for each blob in transfer.
const RECORD_INTERVAL: u64 = 1 << 20;

/// Maximum of records for one blob, so that the journal of a large blob stays small.
const MAX_RECORDS: u64 = 4096;

/// Minimum age of bytes before they are synced: the cost of a power loss on a fast link. A blob that is downloaded
/// faster is never synced here.
const SYNC_AGE: Duration = Duration::from_secs(2);

/// The first bytes of a blob, or a range of it that begins at another offset. It grows only at its end. A dropped value
/// leaves its bytes in the spool, and a later [`Spool::partial`](super::Spool::partial) or
/// [`Spool::range`](super::Spool::range) continues them.
///
/// Nothing is buffered here: when [`write`](Self::write) returns, the bytes are in the page cache and survive the
/// process. The module describes which bytes survive a power loss.
#[derive(Debug)]
pub struct Partial {
    spool: Arc<SpoolState>,
    names: FileNames,
    /// Length of the blob.
    size: u64,
    file: Arc<File>,
    /// Bytes in the file.
    length: u64,
    hasher: HasherState,
    /// `None` until the first record, or if the journal could not be created.
    journal: Option<Arc<Mutex<Journal>>>,
    /// Bytes of the file that the last written or requested record covers.
    recorded: u64,
    /// When the first byte after those arrived.
    since: Instant,
    write_back: BlobWriteBack,
    /// The file was renamed or removed.
    is_gone: bool,
}

/// The hash of the file's bytes, with a `Debug` that [`Hasher`] lacks.
struct HasherState(Hasher);

impl std::fmt::Debug for HasherState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hasher")
    }
}

impl Partial {
    pub(super) fn open(spool: Arc<SpoolState>, names: FileNames, size: u64) -> Result<Self, SpoolError> {
        let name = names.partial();
        let file = Self::lock(&spool, &name)?;
        let length = spool.dir.regular_size(&file, &name)?;
        if names.start > 0 {
            spool.ranges().insert(names);
        }
        let write_back = BlobWriteBack::new(&spool.write_queue, &spool.dir, &name, size);
        let mut partial = Self {
            spool,
            names,
            size,
            file: Arc::new(file),
            length: 0,
            hasher: HasherState(Hasher::default()),
            journal: None,
            recorded: 0,
            since: Instant::now(),
            write_back,
            is_gone: false,
        };
        if names.start.saturating_add(length) > size {
            // An earlier manifest stated another size; one of the two is wrong.
            partial.restart()?;
        } else {
            partial.resume(length)?;
        }
        Ok(partial)
    }

    /// Continues the bytes in the file, unless the journal contradicts them.
    fn resume(&mut self, length: u64) -> Result<(), SpoolError> {
        if length == 0 {
            return Ok(());
        }
        let mut records = journal::records(&self.spool.dir, &self.names);
        let hash = PrefixHash::of(&self.file, length, &records).map_err(self.error_at())?;
        let confirmed = hash.confirmed.1;
        let (hasher, length) = match hash.is_contradicted {
            true => {
                let blob = self.names.blob;
                tracing::warn!(
                    "blob {blob}: the {length} bytes in the spool differ from those that were written, keeping {confirmed}"
                );
                self.file.set_len(confirmed).map_err(self.error_at())?;
                hash.confirmed
            }
            false => (hash.hasher, hash.offset),
        };
        (self.hasher, self.length, self.recorded) = (HasherState(hasher), length, confirmed);
        self.write_back.start_at(length);
        if !records.is_empty() {
            records.retain(|record| record.offset <= confirmed);
            match records.is_empty() {
                true => self.spool.dir.unlink_if_possible(&self.names.journal()),
                false => self.journal = self.journal_with(&records),
            }
        }
        Ok(())
    }

    /// Opens and locks the file, and waits while another [`Partial`] has it. The hash covers the bytes that this value
    /// writes and not those on the disk, so a second writer would make it wrong.
    fn lock(spool: &SpoolState, name: &str) -> Result<File, SpoolError> {
        let dir = &spool.dir;
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE;
            let missing = || dir.error_at(name)(std::io::ErrorKind::NotFound.into());
            let file = dir.open(name, flags)?.ok_or_else(missing)?;
            file.lock().map_err(dir.error_at(name))?;
            let ours = file.metadata().map_err(dir.error_at(name))?.ino();
            // The previous holder may have renamed or removed the file during the wait.
            match rustix::fs::statat(&dir.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if stat.st_ino == ours => return Ok(file),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(error) => return Err(dir.error_at(name)(error.into())),
            }
        }
    }

    /// The offset in the blob of the first byte.
    pub fn start(&self) -> u64 {
        self.names.start
    }

    /// The offset in the blob of the next byte to write.
    pub fn offset(&self) -> u64 {
        self.names.start + self.length
    }

    /// The blob's length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Appends the next bytes. After an error of the file system this value must not be used again.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SpoolError> {
        if bytes.len() as u64 > self.size.saturating_sub(self.offset()) {
            return Err(SpoolError::TooLong {
                digest: self.names.blob,
                size: self.size,
            });
        }
        if self.length == self.recorded {
            self.since = Instant::now();
        }
        self.file
            .write_all_at(bytes, self.length)
            .map_err(|error| self.error_at()(error))?;
        self.hasher.0.update(bytes);
        self.length += bytes.len() as u64;
        self.write_back.grown_to(self.length);
        self.request_record()
    }

    /// Requests a record of the bytes since the last one, if they are enough and old enough and the queue of the
    /// syncer has space. Otherwise the next write tries again.
    fn request_record(&mut self) -> Result<(), SpoolError> {
        if self.size < JOURNALED
            || self.length - self.recorded < RECORD_INTERVAL.max(self.size / MAX_RECORDS)
            || self.since.elapsed() < SYNC_AGE
        {
            return Ok(());
        }
        if self.journal.is_none() {
            self.journal = self.journal_with(&[]);
        }
        let Some(journal) = &self.journal else {
            // Another attempt would fail too, and a warning was logged.
            self.recorded = self.length;
            return Ok(());
        };
        let mut open = syncer::lock(journal);
        if let Some(error) = open.sync_error.take() {
            return Err(self.error_at()(error));
        }
        if open.is_syncing || !open.has_space() {
            return Ok(());
        }
        let request = SyncRequest {
            file: Arc::clone(&self.file),
            from: self.recorded,
            to: self.length,
            due: Instant::now(),
            record: Some((Arc::clone(journal), self.record())),
        };
        if self.spool.syncer.offer(request) {
            open.is_syncing = true;
            drop(open);
            (self.recorded, self.since) = (self.length, Instant::now());
        }
        Ok(())
    }

    fn record(&self) -> JournalRecord {
        JournalRecord {
            offset: self.length,
            prefix: self.hasher.0.clone().finish(),
        }
    }

    /// `None` after a warning: a blob can do without a journal.
    fn journal_with(&self, records: &[JournalRecord]) -> Option<Arc<Mutex<Journal>>> {
        match Journal::with(&self.spool.dir, self.names, records) {
            Ok(journal) => Some(Arc::new(Mutex::new(journal))),
            Err(error) => {
                let blob = self.names.blob;
                tracing::warn!("cannot write a journal, a power loss would cost all of blob {blob}: {error}");
                None
            }
        }
    }

    /// Removes all bytes.
    pub fn restart(&mut self) -> Result<(), SpoolError> {
        self.close_journal();
        self.spool.dir.unlink_if_possible(&self.names.journal());
        self.file.set_len(0).map_err(|error| self.error_at()(error))?;
        self.hasher = HasherState(Hasher::default());
        (self.length, self.recorded) = (0, 0);
        self.write_back.start_at(0);
        Ok(())
    }

    /// A queued request writes no record after this.
    fn close_journal(&mut self) {
        if let Some(journal) = self.journal.take() {
            syncer::lock(&journal).is_closed = true;
        }
    }

    /// Appends the bytes of `range` that this value lacks, and removes `range`, which must not start after this one's
    /// end.
    pub fn append_range(&mut self, range: Self) -> Result<(), SpoolError> {
        debug_assert!(self.names.blob == range.names.blob && range.start() <= self.offset());
        let mut buffer = vec![0; HASH_BUFFER];
        while self.offset() < range.offset() {
            let left = usize::try_from(range.offset() - self.offset()).unwrap_or(usize::MAX);
            let wanted = left.min(HASH_BUFFER);
            let at = self.offset().saturating_sub(range.start());
            range
                .file
                .read_exact_at(&mut buffer[..wanted], at)
                .map_err(range.error_at())?;
            self.write(&buffer[..wanted])?;
        }
        range.discard()
    }

    /// Removes the file and its journal.
    pub fn discard(mut self) -> Result<(), SpoolError> {
        self.is_gone = true;
        self.spool.remove_range(&self.names)
    }

    /// Turns the bytes into a verified blob if their digest matches. If it does not, they are removed. If bytes are
    /// missing, the present ones are kept.
    pub fn finish(mut self) -> Result<VerifiedBlob, SpoolError> {
        if self.start() > 0 || self.length < self.size {
            return Err(SpoolError::TooShort {
                digest: self.names.blob,
                size: self.size,
                found: self.length,
            });
        }
        if let Some(journal) = &self.journal
            && let Some(error) = syncer::lock(journal).sync_error.take()
        {
            return Err(self.error_at()(error));
        }
        let (blob, size) = (self.names.blob, self.size);
        let found = self.hasher.0.clone().finish();
        if found != blob {
            self.discard()?;
            return Err(SpoolError::Mismatch {
                expected: blob,
                found,
                size,
            });
        }
        self.is_gone = true;
        let (dir, name) = (&self.spool.dir.fd, self.names.partial());
        rustix::fs::renameat(dir, &name, dir, whole(&blob)).map_err(|error| self.error_at()(error.into()))?;
        self.spool.verified().insert(blob);
        if self.length - self.recorded >= RECORD_INTERVAL {
            // If the queue is full, the kernel writes the bytes within half a minute.
            self.spool.syncer.offer(SyncRequest {
                file: Arc::clone(&self.file),
                from: self.recorded,
                to: self.length,
                due: self.since + SYNC_AGE,
                record: None,
            });
        }
        Ok(VerifiedBlob::new(self.spool.clone(), blob, size))
    }

    fn error_at(&self) -> impl Fn(std::io::Error) -> SpoolError + use<> {
        self.spool.dir.error_at(&self.names.partial())
    }
}

impl Drop for Partial {
    /// Writes a last record without a sync, for a node that is shut down cleanly. After a power loss the record may be
    /// wrong. Then it does not match the bytes, and the record before it counts.
    fn drop(&mut self) {
        if !self.is_gone && self.size >= JOURNALED && self.length > 0 {
            if self.journal.is_none() {
                self.journal = self.journal_with(&[]);
            }
            if let Some(journal) = &self.journal {
                let mut open = syncer::lock(journal);
                if (self.length > self.recorded || open.is_syncing)
                    && open.has_space()
                    && let Err(error) = open.append(self.record())
                {
                    tracing::warn!(
                        "cannot write the last record of blob {}: {error}",
                        self.names.blob
                    );
                }
            }
        }
        self.close_journal();
        // The syncer may keep the file open for a while, and another `Partial` may wait for the lock.
        if let Err(error) = self.file.unlock() {
            tracing::warn!("cannot unlock blob {}: {error}", self.names.blob);
        }
    }
}
