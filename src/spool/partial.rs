//! Bytes of a blob that are being written.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use crate::oci::Hasher;

use super::file_names::FileNames;
use super::journal::{self, Journal, Record};
use super::syncer::{self, Request};
use super::{HASH_BUFFER, Shared, SpoolError, VerifiedBlob};

/// A blob has a journal if it is at least this long. A power loss costs all of a smaller one.
const JOURNALED: u64 = 4 << 20;

/// From one record to the next there are at least so many bytes: what a power loss costs on a slow link, for each blob
/// that travels.
const STEP: u64 = 1 << 20;

/// And at most so many records are made of one blob as it grows, so that the journal of a large one stays small.
const STEPS: u64 = 4096;

/// Bytes are this old before they are synced: what a power loss costs on a fast link. Blobs that come faster than this
/// are never synced by us.
const AGE: Duration = Duration::from_secs(2);

/// The first bytes of a blob, or a piece of it: those from another offset on. Grows at its end only; dropped, it stays in
/// the spool as it is and a later [`Spool::partial`](super::Spool::partial) or [`Spool::piece`](super::Spool::piece) goes on
/// with it.
///
/// Nothing is buffered here: what [`write`](Self::write) was given is in the page cache when it returns, and
/// survives the process. What survives a power loss is said in the module.
#[derive(Debug)]
pub struct Partial {
    spool: Arc<Shared>,
    stem: FileNames,
    /// The blob's.
    size: u64,
    file: Arc<File>,
    /// Bytes in the file.
    length: u64,
    hasher: HasherState,
    /// None as long as there is no record, and if it could not be made.
    journal: Option<Arc<Mutex<Journal>>>,
    /// How much of the file the last record covers that was made or asked for, and when the next byte after it came.
    recorded: u64,
    since: Instant,
    /// The file does not bear this name any more.
    is_gone: bool,
}

/// The hash of the file's bytes, without a `Debug` of its own.
struct HasherState(Hasher);

impl std::fmt::Debug for HasherState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hasher")
    }
}

impl Partial {
    pub(super) fn open(spool: Arc<Shared>, stem: FileNames, size: u64) -> Result<Self, SpoolError> {
        let name = stem.partial();
        let file = Self::lock(&spool, &name)?;
        let length = spool.regular_size(&file, &name)?;
        if stem.from > 0 {
            spool.pieces().insert(stem);
        }
        let mut partial = Self {
            spool,
            stem,
            size,
            file: Arc::new(file),
            length: 0,
            hasher: HasherState(Hasher::default()),
            journal: None,
            recorded: 0,
            since: Instant::now(),
            is_gone: false,
        };
        if stem.from.saturating_add(length) > size {
            // It was begun for a manifest that gave another size; one of the two is wrong.
            partial.restart()?;
        } else {
            partial.resume(length)?;
        }
        Ok(partial)
    }

    /// Takes what is there for as much as its journal does not contradict.
    fn resume(&mut self, length: u64) -> Result<(), SpoolError> {
        if length == 0 {
            return Ok(());
        }
        let mut records = journal::records(&self.spool, &self.stem);
        let name = self.stem.partial();
        let read = self.spool.hash(&self.file, &name, length, &records)?;
        let proven = read.proven.1;
        let (hasher, length) = match read.is_contradicted {
            true => {
                let blob = self.stem.blob;
                tracing::warn!(
                    "blob {blob}: the {length} bytes in the spool are not those that were written, {proven} are kept"
                );
                self.file.set_len(proven).map_err(self.at())?;
                read.proven
            }
            false => (read.hasher, read.offset),
        };
        (self.hasher, self.length, self.recorded) = (HasherState(hasher), length, proven);
        if !records.is_empty() {
            records.retain(|record| record.offset <= proven);
            match records.is_empty() {
                true => self.spool.unlink_if_possible(&self.stem.journal()),
                false => self.journal = self.journal_with(&records),
            }
        }
        Ok(())
    }

    /// Opens the file for us alone, waiting for another [`Partial`] of the same digest to go away. The hash is taken
    /// of what is written, not of what is read back: a second writer would make it a lie.
    fn lock(spool: &Shared, name: &str) -> Result<File, SpoolError> {
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE;
            let missing = || spool.at(name)(std::io::ErrorKind::NotFound.into());
            let file = spool.open(name, flags)?.ok_or_else(missing)?;
            file.lock().map_err(spool.at(name))?;
            let ours = file.metadata().map_err(spool.at(name))?.ino();
            // The one before us may have renamed or removed the file while we waited for it.
            match rustix::fs::statat(&spool.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if stat.st_ino == ours => return Ok(file),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(error) => return Err(spool.at(name)(error.into())),
            }
        }
    }

    /// The offset in the blob of the first byte.
    pub fn from(&self) -> u64 {
        self.stem.from
    }

    /// The offset in the blob of the byte that is to come next.
    pub fn offset(&self) -> u64 {
        self.stem.from + self.length
    }

    /// The blob's length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Appends the next bytes. After an error of the file system this value is of no more use.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SpoolError> {
        if bytes.len() as u64 > self.size.saturating_sub(self.offset()) {
            return Err(SpoolError::TooLong {
                digest: self.stem.blob,
                size: self.size,
            });
        }
        if self.length == self.recorded {
            self.since = Instant::now();
        }
        self.file
            .write_all_at(bytes, self.length)
            .map_err(|error| self.at()(error))?;
        self.hasher.0.update(bytes);
        self.length += bytes.len() as u64;
        self.ask_for_record()
    }

    /// Has what came since the last record made durable, if it is much enough and old enough, and the thread that does
    /// it has a place in its queue; otherwise the next bytes ask again.
    fn ask_for_record(&mut self) -> Result<(), SpoolError> {
        if self.size < JOURNALED
            || self.length - self.recorded < STEP.max(self.size / STEPS)
            || self.since.elapsed() < AGE
        {
            return Ok(());
        }
        if self.journal.is_none() {
            self.journal = self.journal_with(&[]);
        }
        let Some(journal) = &self.journal else {
            // It will not work the next time either, and has been said.
            self.recorded = self.length;
            return Ok(());
        };
        let mut open = syncer::lock(journal);
        if let Some(error) = open.failure.take() {
            return Err(self.at()(error));
        }
        if open.is_syncing || !open.has_room() {
            return Ok(());
        }
        let request = Request {
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

    fn record(&self) -> Record {
        Record {
            offset: self.length,
            prefix: self.hasher.0.clone().finish(),
        }
    }

    /// A blob can do without a journal.
    fn journal_with(&self, records: &[Record]) -> Option<Arc<Mutex<Journal>>> {
        match Journal::with(&self.spool, self.stem, records) {
            Ok(journal) => Some(Arc::new(Mutex::new(journal))),
            Err(error) => {
                let blob = self.stem.blob;
                tracing::warn!("a power loss would cost all of blob {blob}, it can have no journal: {error}");
                None
            }
        }
    }

    /// Throws away what is there.
    pub fn restart(&mut self) -> Result<(), SpoolError> {
        self.close_journal();
        self.spool.unlink_if_possible(&self.stem.journal());
        self.file.set_len(0).map_err(|error| self.at()(error))?;
        self.hasher = HasherState(Hasher::default());
        (self.length, self.recorded) = (0, 0);
        Ok(())
    }

    /// A request that is still under way writes no record any more.
    fn close_journal(&mut self) {
        if let Some(journal) = self.journal.take() {
            syncer::lock(&journal).is_closed = true;
        }
    }

    /// Appends what `piece` has and this one lacks, and removes it. It must not begin after this one's end.
    pub fn absorb(&mut self, piece: Self) -> Result<(), SpoolError> {
        debug_assert!(self.stem.blob == piece.stem.blob && piece.from() <= self.offset());
        let mut buffer = vec![0; HASH_BUFFER];
        while self.offset() < piece.offset() {
            let left = usize::try_from(piece.offset() - self.offset()).unwrap_or(usize::MAX);
            let wanted = left.min(HASH_BUFFER);
            let at = self.offset().saturating_sub(piece.from());
            piece
                .file
                .read_exact_at(&mut buffer[..wanted], at)
                .map_err(piece.at())?;
            self.write(&buffer[..wanted])?;
        }
        piece.discard()
    }

    /// Removes it.
    pub fn discard(mut self) -> Result<(), SpoolError> {
        self.is_gone = true;
        self.spool.remove_part(&self.stem)
    }

    /// Makes it a blob if the digest of its bytes is the one that was asked for. Otherwise the bytes are thrown
    /// away if they are as many as they should be, and kept if there are fewer.
    pub fn finish(mut self) -> Result<VerifiedBlob, SpoolError> {
        if self.from() > 0 || self.length < self.size {
            return Err(SpoolError::TooShort {
                digest: self.stem.blob,
                size: self.size,
                found: self.length,
            });
        }
        if let Some(journal) = &self.journal
            && let Some(error) = syncer::lock(journal).failure.take()
        {
            return Err(self.at()(error));
        }
        let (blob, size) = (self.stem.blob, self.size);
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
        let (name, whole) = (self.stem.partial(), super::whole(&blob));
        rustix::fs::renameat(&self.spool.dir, &name, &self.spool.dir, &whole)
            .map_err(|error| self.at()(error.into()))?;
        self.spool.verified().insert(blob);
        if self.length - self.recorded >= STEP {
            // If there is no place for it, the kernel writes it within half a minute.
            self.spool.syncer.offer(Request {
                file: Arc::clone(&self.file),
                from: self.recorded,
                to: self.length,
                due: self.since + AGE,
                record: None,
            });
        }
        Ok(VerifiedBlob::new(self.spool.clone(), blob, size))
    }

    fn at(&self) -> impl Fn(std::io::Error) -> SpoolError + use<> {
        self.spool.at(&self.stem.partial())
    }
}

impl Drop for Partial {
    /// Notes how far it came, for a node that is shut down in order. That this may not be true after a power loss does no
    /// harm, for then the record does not hold and the one before it does.
    fn drop(&mut self) {
        if !self.is_gone && self.size >= JOURNALED && self.length > 0 {
            if self.journal.is_none() {
                self.journal = self.journal_with(&[]);
            }
            if let Some(journal) = &self.journal {
                let mut open = syncer::lock(journal);
                if (self.length > self.recorded || open.is_syncing)
                    && open.has_room()
                    && let Err(error) = open.append(self.record())
                {
                    tracing::warn!("the journal of blob {} is behind: {error}", self.stem.blob);
                }
            }
        }
        self.close_journal();
        // The thread that syncs may have the file for a while yet, and somebody may want to go on.
        if let Err(error) = self.file.unlock() {
            tracing::warn!("blob {} stays locked for a while: {error}", self.stem.blob);
        }
    }
}
