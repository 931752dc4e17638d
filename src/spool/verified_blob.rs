//! A blob in the spool whose digest this process has verified.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, OFlags};
use rustix::io::Errno;

use super::error::SpoolError;
use super::file_names::{FileNames, whole};
use super::layer_note;
use super::state::SpoolState;
use crate::oci::{Digest, LayerId};

/// The mode of a blob's file outside the spool.
const READABLE: u32 = 0o644;

/// Evidence that the spool contains the whole blob: this process hashed it. Only [`Partial::finish`] and
/// [`Spool::verified`] create this value.
///
/// [`Partial::finish`]: super::Partial::finish
/// [`Spool::verified`]: super::Spool::verified
#[derive(Clone, Debug)]
pub struct VerifiedBlob {
    spool: Arc<SpoolState>,
    digest: Digest,
    size: u64,
}

impl VerifiedBlob {
    pub(super) fn new(spool: Arc<SpoolState>, digest: Digest, size: u64) -> Self {
        Self { spool, digest, size }
    }

    /// The digest of the bytes.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The number of bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Opens the blob for reading, at its start.
    pub fn open(&self) -> Result<File, SpoolError> {
        let (name, dir) = (whole(&self.digest), &self.spool.dir);
        let missing = || dir.error_at(&name)(io::ErrorKind::NotFound.into());
        dir.open(&name, OFlags::RDONLY)?.ok_or_else(missing)
    }

    /// Notes that the blob is a delta which makes this layer. Of several layers, the last one is remembered.
    pub fn note_layer(&self, layer: LayerId) -> Result<(), SpoolError> {
        layer_note::write(&self.open()?, layer).map_err(self.spool.dir.error_at(&whole(&self.digest)))
    }

    /// Moves the blob's file to `path`, replacing what is there, and syncs it. Returns false if `path` is on another file
    /// system; then nothing changes.
    pub fn move_to(&self, path: &Path) -> Result<bool, SpoolError> {
        let (name, dir) = (whole(&self.digest), &self.spool.dir);
        let file = self.open()?;
        file.sync_all().map_err(dir.error_at(&name))?;
        match rustix::fs::renameat(&dir.fd, &name, CWD, path) {
            Ok(()) => {}
            Err(Errno::XDEV) => return Ok(false),
            Err(error) => return Err(SpoolError::at(path)(error.into())),
        }
        self.spool.verified().remove(&self.digest);
        let journal = FileNames::first(&self.digest).journal();
        dir.unlink_if_possible(&journal);
        // In the spool, only this user may read it.
        let mode = std::fs::Permissions::from_mode(READABLE);
        file.set_permissions(mode).map_err(SpoolError::at(path))?;
        Ok(true)
    }

    /// Removes the blob, after its layer was stored. A blob that is gone already is not an error.
    pub fn remove(self) -> Result<(), SpoolError> {
        self.spool.verified().remove(&self.digest);
        self.spool.dir.unlink(&whole(&self.digest))?;
        let journal = FileNames::first(&self.digest).journal();
        self.spool.dir.unlink_if_possible(&journal);
        Ok(())
    }
}
