//! Whose fault it is that a blob is not as long as the manifest says: the manifest's, if what registries have has the blob's
//! digest.

use crate::cancel::Cancel;
use crate::oci::{Digest, Hasher};
use crate::registry::{BlobRange, PullSource, Registries, RegistryError};

/// What is fetched at most to find out. It tells two exit codes apart, and that is worth no more on a slow link.
const AT_MOST: u64 = 16 << 20;

/// No source gives the blob, for the reason `error`. Says what that becomes if the manifest is to blame.
pub(super) async fn blame(
    error: &RegistryError,
    blob: Digest,
    sources: &[PullSource],
    registries: &Registries,
    cancel: &Cancel,
) -> Option<RegistryError> {
    let (expected, found) = error.lengths().filter(|(_, found)| *found <= AT_MOST)?;
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

/// The digest of what `source` has as `blob`, if that has `size` bytes.
async fn digest_of(
    source: &PullSource,
    blob: Digest,
    size: u64,
    registries: &Registries,
    cancel: &Cancel,
) -> Result<Digest, RegistryError> {
    let wanted = BlobRange {
        blob,
        size,
        start: 0,
        end: size,
    };
    let mut attempts = registries.attempts(format!("blob {blob}"), Vec::new(), vec![source.clone()]);
    let mut stream = registries
        .open_blob(source, wanted, &mut attempts, cancel)
        .await?;
    let mut hasher = Hasher::default();
    while let Some(bytes) = stream.next(cancel).await? {
        hasher.update(&bytes);
    }
    Ok(hasher.finish())
}
