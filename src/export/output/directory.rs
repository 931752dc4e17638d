//! Stores an export in a directory.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{OutputError, at};
use super::{BlobReader, Documents, EXPORT, SPEC};
use crate::cancel::Cancel;
use crate::oci::Digest;
use crate::oci_layout::OciLayout;
use crate::spool::VerifiedBlob;

/// A directory with an OCI layout. Another export into it adds images, and describes only its own.
pub(in crate::export) struct DirectoryOutput {
    path: PathBuf,
    layout: OciLayout,
    /// `oci-layout`, locked as long as this value lives.
    _lock: File,
}

impl DirectoryOutput {
    pub(super) fn open(path: &Path) -> Result<Self, OutputError> {
        let layout = OciLayout::open(path)?;
        let marker = path.join("oci-layout");
        let lock = File::open(&marker).map_err(at(&marker))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => OutputError::Busy {
                path: path.to_owned(),
            },
            TryLockError::Error(error) => at(&marker)(error),
        })?;
        layout.remove_file(EXPORT)?;
        Ok(Self {
            path: path.to_owned(),
            layout,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn blob(&self, digest: Digest) -> Result<Option<BlobReader>, OutputError> {
        let Some(file) = self.layout.blob(digest)? else {
            return Ok(None);
        };
        let path = self.layout.blob_path(digest);
        let size = file.metadata().map_err(at(&path))?.len();
        Ok(Some(BlobReader::new(Arc::new(file), 0, size)))
    }

    pub(super) fn discard(&self, digest: Digest) -> Result<(), OutputError> {
        Ok(self.layout.remove_blob(digest)?)
    }

    pub(super) fn put_blob(&self, blob: VerifiedBlob, cancel: &Cancel) -> Result<(), OutputError> {
        if blob.move_to(&self.layout.blob_path(blob.digest()))? {
            return Ok(());
        }
        self.layout
            .copy_blob(blob.digest(), blob.size(), &blob.open()?, cancel)?;
        Ok(blob.remove()?)
    }

    pub(super) fn put(&self, bytes: &[u8]) -> Result<(), OutputError> {
        Ok(self.layout.put(bytes)?)
    }

    pub(super) fn put_file(&self, name: &str, bytes: &[u8]) -> Result<(), OutputError> {
        Ok(self.layout.put_file(name, bytes)?)
    }

    pub(super) fn finish(&self, documents: &Documents) -> Result<(), OutputError> {
        let tags = documents.tags.iter();
        let tags: Vec<_> = tags.map(|(tag, descriptor)| (tag.as_str(), descriptor)).collect();
        self.layout.tag_all(&tags)?;
        self.layout.put_file(SPEC, documents.spec.as_bytes())?;
        self.layout.sync()?;
        self.layout.put_file(EXPORT, documents.export.as_bytes())?;
        Ok(self.layout.sync()?)
    }
}
