//! Defines the state of the open spool that its handles share: the directory, the lock, the verified blobs and the ranges.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use super::directory::SpoolDirectory;
use super::error::SpoolError;
use super::file_names::{FileNames, whole};
use super::syncer::Syncer;
use crate::oci::Digest;
use crate::write_back::WriteQueue;

/// Shared by the handles of one spool.
#[derive(Debug)]
pub(super) struct SpoolState {
    pub(super) dir: SpoolDirectory,
    /// Whole blobs that this process has hashed.
    verified: Mutex<HashSet<Digest>>,
    /// Ranges with a start above 0 that have a file.
    ranges: Mutex<BTreeSet<FileNames>>,
    pub(super) syncer: Syncer,
    /// Writes arriving bytes to the disk in small portions.
    pub(super) write_queue: WriteQueue,
    /// Locked as long as this value lives; the kernel releases it with the process.
    pub(super) lock: File,
}

impl SpoolState {
    pub(super) fn new(dir: SpoolDirectory, syncer: Syncer, write_queue: WriteQueue, lock: File) -> Self {
        Self {
            dir,
            verified: Mutex::default(),
            ranges: Mutex::default(),
            syncer,
            write_queue,
            lock,
        }
    }

    /// Keeps the first `confirmed` bytes of a whole blob with a wrong digest, as a partial blob. If another partial
    /// blob exists by now, nothing is kept.
    pub(super) fn demote(&self, digest: &Digest, confirmed: u64) -> Result<(), SpoolError> {
        let (whole, names) = (whole(digest), FileNames::first(digest));
        let partial = names.partial();
        if confirmed == 0 {
            self.dir.unlink(&whole)?;
            if self.dir.open(&partial, OFlags::RDONLY)?.is_none() {
                self.dir.unlink_if_possible(&names.journal());
            }
            return Ok(());
        }
        let Some(file) = self.dir.open(&whole, OFlags::RDWR)? else {
            return Ok(());
        };
        // A download that finds the file under its new name waits until it is truncated.
        file.lock().map_err(self.dir.error_at(&whole))?;
        let dir = &self.dir.fd;
        match rustix::fs::renameat_with(dir, &whole, dir, &partial, RenameFlags::NOREPLACE) {
            Ok(()) => file.set_len(confirmed).map_err(self.dir.error_at(&partial)),
            Err(Errno::NOENT) => Ok(()),
            // A partial blob exists, or the file system does not support this rename.
            Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS) => self.dir.unlink(&whole),
            Err(error) => Err(self.dir.error_at(&whole)(error.into())),
        }
    }

    /// Removes the bytes of a range and their journal.
    pub(super) fn remove_range(&self, names: &FileNames) -> Result<(), SpoolError> {
        self.dir.unlink(&names.partial())?;
        self.dir.unlink_if_possible(&names.journal());
        self.ranges().remove(names);
        Ok(())
    }

    /// The ranges of a blob with a start above 0, in order.
    pub(super) fn ranges_of(&self, blob: &Digest) -> Vec<FileNames> {
        let names = |start| FileNames { blob: *blob, start };
        self.ranges().range(names(1)..=names(u64::MAX)).copied().collect()
    }

    /// A set of names is consistent at every moment, even after a panic of its holder.
    pub(super) fn ranges(&self) -> MutexGuard<'_, BTreeSet<FileNames>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A set of digests is consistent at every moment, even after a panic of its holder.
    pub(super) fn verified(&self) -> MutexGuard<'_, HashSet<Digest>> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
