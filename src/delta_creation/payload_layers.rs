//! Downloads the layers of a release image from the top until they contain its payload.
//!
//! Their blobs stay in the spool, so that a later run reads them there.

use super::blocking::run_blocking;
use super::error::CreationError;
use super::named_image::NamedImage;
use super::tar_cache::TarCache;
use crate::cancel::Cancel;
use crate::release::{Payload, PayloadSearch};

/// The payload of a release image.
pub(super) async fn payload(
    release: &NamedImage,
    tars: &TarCache,
    cancel: &Cancel,
) -> Result<Payload, CreationError> {
    let mut search = PayloadSearch::default();
    for layer in release.image.layers.iter().rev() {
        let blob = tars
            .fetch(layer, std::slice::from_ref(&release.reference))
            .await?;
        let cancel = cancel.clone();
        search = run_blocking(move || {
            let read = search.read_layer(blob.open()?, blob.size(), &cancel);
            read.map_err(|source| CreationError::Layer {
                blob: blob.digest(),
                source,
            })?;
            Ok(search)
        })
        .await?;
        if search.is_done() {
            break;
        }
    }
    search.payload().map_err(|source| CreationError::Payload {
        reference: release.reference.to_string(),
        source,
    })
}
