//! Downloads the signatures of a release, to keep them beside its images. They are verified where they are used.

use bytes::Bytes;

use super::signature_store::{Found, StoreSearch, StoreUrl};
use crate::cancel::{Cancel, Stopped};
use crate::oci::Digest;
use crate::registry::Registries;

/// The signatures of the release with this digest, from the first store that has any; else why there are none.
pub async fn download(
    release: Digest,
    stores: &[StoreUrl],
    registries: &Registries,
    cancel: &Cancel,
) -> Result<Result<Vec<Bytes>, String>, Stopped> {
    let mut reasons = Vec::new();
    for store in stores {
        let mut search = StoreSearch::new(store, release);
        let mut signatures = Vec::new();
        while let Some(found) = search.next(registries, cancel).await {
            match found {
                Found::Signature(bytes, _) => signatures.push(bytes),
                Found::TooLarge(url) => reasons.push(format!("{url} is too large")),
                Found::NoMore { url, .. } => reasons.push(format!("{url} does not exist")),
                Found::Failed(why) => reasons.push(why),
            }
        }
        cancel.check()?;
        if !signatures.is_empty() {
            return Ok(Ok(signatures));
        }
    }
    Ok(Err(match reasons.is_empty() {
        true => "no signature store is known".to_owned(),
        false => reasons.join("; "),
    }))
}
