//! A blob in the spool whose digest this process has verified.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::error::SpoolError;
use super::file_names::{FileNames, whole};
use super::layer_note;
use super::state::SpoolState;
use crate::oci::{Digest, LayerId};

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

    /// Removes the blob, after its layer was stored. A blob that is gone already is not an error.
    pub fn remove(self) -> Result<(), SpoolError> {
        self.spool.verified().remove(&self.digest);
        self.spool.dir.unlink(&whole(&self.digest))?;
        let journal = FileNames::first(&self.digest).journal();
        self.spool.dir.unlink_if_possible(&journal);
        Ok(())
    }
}
