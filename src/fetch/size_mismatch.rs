//! Finds out whether the manifest or the registries are wrong about a blob's length: the manifest, if the registries' bytes match
//! the blob's digest.

use crate::cancel::Cancel;
use crate::oci::{Digest, Hasher};
use crate::registry::{BlobRange, PullSource, Registries, RegistryError};

/// The most bytes that are downloaded to find out. They decide between two exit codes, which is worth no more on a slow link.
const MAX_DOWNLOAD: u64 = 16 << 20;

/// The error that replaces `error`, with which the download from all sources failed, if the manifest is wrong.
pub(super) async fn explain(
    error: &RegistryError,
    blob: Digest,
    sources: &[PullSource],
    registries: &Registries,
    cancel: &Cancel,
) -> Option<RegistryError> {
    let (expected, found) = error.lengths().filter(|(_, found)| *found <= MAX_DOWNLOAD)?;
    for source in sources {
        match digest_of(source, blob, found, registries, cancel).await {
            Ok(digest) if digest == blob => {
                return Some(RegistryError::WrongSize {
                    blob,
                    expected,
                    found,
                });
            }
            Err(stopped @ RegistryError::Stopped(_)) => return Some(stopped),
            Ok(_) | Err(_) => {}
        }
    }
    None
}

/// The digest of the source's bytes for `blob`, if it has `size` of them.
async fn digest_of(
    source: &PullSource,
    blob: Digest,
    size: u64,
    registries: &Registries,
    cancel: &Cancel,
) -> Result<Digest, RegistryError> {
    let whole = BlobRange {
        blob,
        size,
        start: 0,
        end: size,
    };
    let mut attempts = registries.attempts(format!("blob {blob}"), Vec::new(), vec![source.clone()]);
    let mut stream = registries.open_blob(source, whole, &mut attempts, cancel).await?;
    let mut hasher = Hasher::default();
    while let Some(bytes) = stream.next(cancel).await? {
        hasher.update(&bytes);
    }
    Ok(hasher.finish())
}
