//! A blob that is being written.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use crate::oci::{Digest, Hasher};

use super::{Shared, SpoolError, VerifiedBlob};

/// The first bytes of a blob. Grows at its end only; dropped, it stays in the spool as it is and a later
/// [`Spool::partial`](super::Spool::partial) goes on with it.
///
/// Nothing is buffered here: what [`write`](Self::write) was given is in the page cache when it returns, and
/// survives the process.
#[derive(Debug)]
pub struct Partial {
    spool: Arc<Shared>,
    digest: Digest,
    size: u64,
    file: File,
    offset: u64,
    hasher: HasherState,
}

/// The hash of the first `offset` bytes, without a `Debug` of its own.
struct HasherState(Hasher);

impl std::fmt::Debug for HasherState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hasher")
    }
}

impl Partial {
    pub(super) fn open(spool: Arc<Shared>, digest: Digest, size: u64) -> Result<Self, SpoolError> {
        let name = super::partial(&digest);
        let file = Self::lock(&spool, &name)?;
        let length = spool.regular_size(&file, &name)?;
        let mut partial = Self {
            spool,
            digest,
            size,
            file,
            offset: 0,
            hasher: HasherState(Hasher::default()),
        };
        if length > size {
            // It was begun for a manifest that gave another size; one of the two is wrong.
            partial.restart()?;
        } else {
            let (hasher, offset) = partial.spool.hash(&partial.file, &name, length)?;
            (partial.hasher, partial.offset) = (HasherState(hasher), offset);
        }
        Ok(partial)
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

    /// How many bytes are there.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The blob's length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Appends the next bytes. After an error of the file system this value is of no more use.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SpoolError> {
        if bytes.len() as u64 > self.size - self.offset {
            return Err(SpoolError::TooLong {
                digest: self.digest,
                size: self.size,
            });
        }
        self.file
            .write_all_at(bytes, self.offset)
            .map_err(|error| self.at()(error))?;
        self.hasher.0.update(bytes);
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Throws away what is there.
    pub fn restart(&mut self) -> Result<(), SpoolError> {
        self.file.set_len(0).map_err(|error| self.at()(error))?;
        self.hasher = HasherState(Hasher::default());
        self.offset = 0;
        Ok(())
    }

    /// Makes it a blob if the digest of its bytes is the one that was asked for. Otherwise the bytes are thrown
    /// away if they are as many as they should be, and kept if there are fewer.
    pub fn finish(self) -> Result<VerifiedBlob, SpoolError> {
        if self.offset < self.size {
            return Err(SpoolError::TooShort {
                digest: self.digest,
                size: self.size,
                found: self.offset,
            });
        }
        let found = self.hasher.0.clone().finish();
        let name = super::partial(&self.digest);
        if found != self.digest {
            self.spool.unlink(&name)?;
            return Err(SpoolError::Mismatch {
                expected: self.digest,
                found,
                size: self.size,
            });
        }
        let whole = super::whole(&self.digest);
        rustix::fs::renameat(&self.spool.dir, &name, &self.spool.dir, &whole)
            .map_err(|error| self.at()(error.into()))?;
        self.spool.verified().insert(self.digest);
        Ok(VerifiedBlob::new(self.spool.clone(), self.digest, self.size))
    }

    fn at(&self) -> impl Fn(std::io::Error) -> SpoolError + use<> {
        self.spool.at(&super::partial(&self.digest))
    }
}
