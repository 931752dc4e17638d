//! Stores finished deltas and the documents that describe them: in a repository of a registry, or in an OCI layout.

use std::fs::File;

use bytes::Bytes;

use crate::cancel::Cancel;
use crate::oci::{Content, Digest};
use crate::oci_layout::{OciLayout, OciLayoutError};
use crate::registry::{RegistryError, Upload};

/// Where deltas are stored. Clones share its locks.
#[derive(Clone, Debug)]
pub enum Destination {
    /// A repository of a registry: `--push`.
    Registry(Upload),
    /// A directory with an OCI image layout: `--output`.
    Layout(OciLayout),
}

/// Why something cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum DestinationError {
    /// The registry refuses it, or is unreachable.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The directory cannot be used.
    #[error(transparent)]
    Layout(#[from] OciLayoutError),
}

impl Destination {
    /// Stores the first `size` bytes of `file`, whose digest this is.
    pub async fn put_blob(
        &self,
        digest: Digest,
        size: u64,
        file: File,
        cancel: &Cancel,
    ) -> Result<(), DestinationError> {
        match self {
            Self::Registry(upload) => Ok(upload.put_blob(digest, size, file, cancel).await?),
            Self::Layout(layout) => Ok(layout.put_blob(digest, size, file, cancel).await?),
        }
    }

    /// Stores a manifest or an index, also under `tag`. If it has a subject, it is listed among the referrers of that
    /// subject.
    pub async fn put_manifest(
        &self,
        tag: Option<&str>,
        media_type: &str,
        bytes: Bytes,
        cancel: &Cancel,
    ) -> Result<(), DestinationError> {
        match self {
            Self::Registry(upload) => {
                upload.put_manifest(tag, media_type, bytes, cancel).await?;
            }
            Self::Layout(layout) => layout.put_manifest(tag, media_type, bytes, cancel).await?,
        }
        Ok(())
    }

    /// Stores a small blob, if it is not there.
    pub async fn put_bytes(&self, bytes: Bytes, cancel: &Cancel) -> Result<(), DestinationError> {
        match self {
            Self::Registry(upload) => Ok(upload.put_bytes(bytes, cancel).await?),
            Self::Layout(layout) => Ok(layout.put_bytes(bytes, cancel).await?),
        }
    }

    /// The manifest or index with this tag or digest; nothing if there is none.
    pub async fn manifest(&self, name: &str, cancel: &Cancel) -> Result<Option<Content>, DestinationError> {
        match self {
            Self::Registry(upload) => Ok(upload.manifest(name, cancel).await?),
            Self::Layout(layout) => Ok(layout.manifest(name)?),
        }
    }
}
