//! A blob whose digest matched.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::oci::Digest;

use super::{Shared, SpoolError};

/// Evidence that the spool holds the blob, whole: this process hashed it. Made by [`Partial::finish`] and
/// [`Spool::verified`] alone.
///
/// [`Partial::finish`]: super::Partial::finish
/// [`Spool::verified`]: super::Spool::verified
#[derive(Clone, Debug)]
pub struct VerifiedBlob {
    spool: Arc<Shared>,
    digest: Digest,
    size: u64,
}

impl VerifiedBlob {
    pub(super) fn new(spool: Arc<Shared>, digest: Digest, size: u64) -> Self {
        Self { spool, digest, size }
    }

    /// The digest of the bytes.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Their number.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Opens it for reading, at its start.
    pub fn open(&self) -> Result<File, SpoolError> {
        let name = super::whole(&self.digest);
        let missing = || self.spool.at(&name)(io::ErrorKind::NotFound.into());
        self.spool.open(&name, OFlags::RDONLY)?.ok_or_else(missing)
    }

    /// Removes it: its layer is in the store. Done already is an ordinary answer.
    pub fn remove(self) -> Result<(), SpoolError> {
        self.spool.verified().remove(&self.digest);
        self.spool.unlink(&super::whole(&self.digest))?;
        self.spool
            .unlink_if_possible(&super::file_names::FileNames::first(&self.digest).journal());
        Ok(())
    }
}
