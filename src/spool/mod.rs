//! Stores downloaded blobs on disk by digest until they are unpacked; keeps partial downloads for the next run.
//!
//! ```text
//! spoke-precache/                      0700
//!   lock                               locked by the one process that may use the directory; contains its boot id
//!   sha256:<hex>.partial               the first bytes of a blob, from offset 0, without holes
//!   sha256:<hex>.journal               records about a large blob: (offset, SHA-256 of the bytes before it)
//!   sha256:<hex>.from-<n>.partial      a range: bytes from n on, received on another connection; has a .journal too
//!   sha256:<hex>                       a whole blob; renamed from .partial after its digest matched; that of a delta has an
//!                                      attribute with the layer that it makes
//!
//!   .partial   |=========durable=========|~~~~~~tail~~~~~~|
//!   .journal   2 MiB … 4 MiB …          ^ last record: continue from here after a reboot, otherwise from the end
//! ```
//!
//! A file name alone proves nothing. A `.partial` is hashed before it is continued. A whole file is hashed once per
//! process before it is returned as a [`VerifiedBlob`]: the unpacker reads it anyway, and reading is far cheaper than
//! the link. Writes therefore do not wait for the disk: a full disk fails the write, a failing disk fails the next
//! record or the sync of the file system before a commit.
//!
//! Bytes in the page cache survive the death of the process, so after a kill the whole `.partial` is continued. After
//! a power loss the tail is zeros or missing. A thread (`syncer`) therefore makes the bytes of large blobs durable,
//! about one blob per second, and then writes a record into the `journal` of the blob. After a reboot (`reboot`) each
//! `.partial` is truncated to its newest record. When it is hashed again, every record is compared. If one does not
//! match, bytes on the disk have changed, and only the bytes before the newest matching record are kept. A whole blob
//! with a wrong digest becomes a `.partial` again, up to its newest matching record. The digest of the whole blob
//! decides in the end, so the journal only determines how much a power loss costs: for each blob in transfer the bytes
//! since its last record, which are some MiB or a few seconds of the link.
//!
//! A range is a file of its own. So no file has holes, and a range is verified like the first bytes. It is appended to
//! the first bytes and removed when they reach it ([`Partial::append_range`]). If only some ranges of a blob are needed,
//! they are read where they are ([`BlobParts`]).
//!
//! All files of a blob are removed with the blob. A journal without a blob is removed when the spool is opened.

mod blob_parts;
mod blob_write_back;
mod directory;
mod error;
mod file_names;
mod journal;
mod layer_note;
mod listing;
mod partial;
mod prefix_hash;
mod recovery;
mod state;
mod syncer;
mod verified_blob;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::oci::Digest;
use crate::write_back::WriteQueue;

use directory::SpoolDirectory;
use file_names::{FileNames, whole};
use prefix_hash::PrefixHash;
use state::SpoolState;
use syncer::Syncer;

pub use blob_parts::BlobParts;
pub use error::SpoolError;
pub use listing::SpoolEntry;
pub use partial::Partial;
pub use verified_blob::VerifiedBlob;

/// The spool, opened and locked by this process. Clones share it.
#[derive(Clone, Debug)]
pub struct Spool(Arc<SpoolState>);

impl Spool {
    /// Opens the spool at `path`, creates the directory if necessary, and locks it against other processes. After a
    /// reboot, bytes that may not have reached the disk are removed.
    pub fn open(path: &Path) -> Result<Self, SpoolError> {
        Self::open_with(path, WriteQueue::off())
    }

    /// The same, and adds the bytes of blobs to the queue while they arrive.
    pub fn open_with(path: &Path, write_queue: WriteQueue) -> Result<Self, SpoolError> {
        let error_at = SpoolError::at(path);
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(&error_at)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|e| error_at(e.into()))?);
        // Another user with write permission could replace a blob between hashing and unpacking.
        dir.set_permissions(std::fs::Permissions::from_mode(0o700))
            .map_err(&error_at)?;

        let lock_path = path.join("lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&dir, "lock", flags, Mode::RUSR | Mode::WUSR)
            .map(File::from)
            .map_err(|e| SpoolError::at(&lock_path)(e.into()))?;
        lock.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => SpoolError::Busy { path: path.into() },
            std::fs::TryLockError::Error(error) => SpoolError::at(&lock_path)(error),
        })?;
        let syncer = dir.try_clone().and_then(Syncer::start).map_err(&error_at)?;
        let dir = SpoolDirectory {
            fd: dir,
            path: path.into(),
        };
        let state = SpoolState::new(dir, syncer, write_queue, lock);
        recovery::recover(&state)?;
        Ok(Self(Arc::new(state)))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0.dir.path
    }

    /// The blob with this digest, if the spool contains all of it. Hashes the file unless this process has done so. If
    /// the digest is wrong, the bytes that the journal confirms become a partial blob again.
    pub fn verified(&self, digest: &Digest) -> Result<Option<VerifiedBlob>, SpoolError> {
        let (name, dir) = (whole(digest), &self.0.dir);
        let Some(file) = dir.open(&name, OFlags::RDONLY)? else {
            self.0.verified().remove(digest);
            return Ok(None);
        };
        let size = dir.regular_size(&file, &name)?;
        if !self.0.verified().contains(digest) {
            let records = journal::records(dir, &FileNames::first(digest));
            let hash = PrefixHash::of(&file, size, &records).map_err(dir.error_at(&name))?;
            if hash.hasher.finish() != *digest {
                self.0.demote(digest, hash.confirmed.1)?;
                return Ok(None);
            }
            self.0.verified().insert(*digest);
        }
        Ok(Some(VerifiedBlob::new(self.0.clone(), *digest, size)))
    }

    /// Starts or continues the blob with this digest and a length of `size` bytes. Bytes that are present are hashed
    /// first. Waits while another [`Partial`] of the same digest exists; a thread that has one must not request it
    /// again.
    pub fn partial(&self, digest: &Digest, size: u64) -> Result<Partial, SpoolError> {
        self.range(digest, size, 0)
    }

    /// Starts or continues the range that begins with byte `start`, as [`partial`](Self::partial) does for the first
    /// bytes.
    pub fn range(&self, digest: &Digest, size: u64, start: u64) -> Result<Partial, SpoolError> {
        let names = FileNames { blob: *digest, start };
        Partial::open(self.0.clone(), names, size)
    }

    /// The starts of the ranges of this blob that are present, in order. Their bytes have not been verified.
    pub fn range_starts(&self, digest: &Digest) -> Vec<u64> {
        self.0.ranges_of(digest).iter().map(|names| names.start).collect()
    }

    /// Those bytes of this blob that are present, for reading. They have not been verified.
    pub fn parts(&self, digest: &Digest) -> Result<BlobParts, SpoolError> {
        BlobParts::of(Arc::clone(&self.0), digest)
    }

    /// All blobs in the spool, whole and partial, in no order. Files with other names are ignored.
    pub fn list(&self) -> Result<Vec<SpoolEntry>, SpoolError> {
        listing::list(&self.0.dir.fd, &self.0.dir.path)
    }

    /// Lists the spool at `path` without its lock and without writing, for a report. A missing directory is an empty
    /// spool. While another process uses the spool the list is soon out of date, and after a reboot the next process
    /// that opens the spool may keep less.
    pub fn list_unlocked(path: &Path) -> Result<Vec<SpoolEntry>, SpoolError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(dir) => listing::list(&File::from(dir), path),
            Err(Errno::NOENT) => Ok(Vec::new()),
            Err(error) => Err(SpoolError::at(path)(error.into())),
        }
    }

    /// These bytes of a blob, if the spool at `path` contains them: in the whole blob, in its first bytes, or in a range
    /// with the same start. They are not verified, and the lock is not taken, as in
    /// [`list_unlocked`](Self::list_unlocked).
    pub fn peek(path: &Path, digest: &Digest, range: Range<u64>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(range.end.checked_sub(range.start)?).ok()?];
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let start = range.start;
        let same_start = FileNames { blob: *digest, start };
        [
            (whole(digest), start),
            (FileNames::first(digest).partial(), start),
            (same_start.partial(), 0),
        ]
        .into_iter()
        .find_map(|(name, offset)| {
            let file = File::from(rustix::fs::open(path.join(name), flags, Mode::empty()).ok()?);
            file.read_exact_at(&mut bytes, offset).ok()?;
            Some(bytes.clone())
        })
    }

    /// Removes all files of the blob, whole or partial. A blob that is not present is not an error.
    pub fn remove(&self, digest: &Digest) -> Result<(), SpoolError> {
        self.0.verified().remove(digest);
        self.0.dir.unlink(&whole(digest))?;
        for range in self.0.ranges_of(digest) {
            self.0.remove_range(&range)?;
        }
        self.0.remove_range(&FileNames::first(digest))
    }
}

#[cfg(test)]
mod tests;
