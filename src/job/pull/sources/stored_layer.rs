//! Makes a layer from another layer of the store with the same content: recreates its tar, and unpacks that.
//!
//! No lock is held. If another program removes or changes the layer meanwhile, reading ends with an error or with another
//! diffID.

use std::path::Path;
use std::sync::Arc;

use super::SourceFailure;
use super::source_unpack::SourceUnpack;
use crate::job::pull::layer_staging::LayerStaging;
use crate::plan::LayerTask;
use crate::store::{StagedLayer, StoredLayer};

impl LayerStaging<'_> {
    /// Unpacks a layer from the tar of `stored`.
    pub(super) async fn stage_from_stored_layer(
        &self,
        stored: &StoredLayer,
        task: &LayerTask,
    ) -> Result<StagedLayer, SourceFailure> {
        let puller = self.puller;
        let (store, layer) = (Arc::clone(&puller.store), stored.clone());
        let unpack = SourceUnpack::new(puller, task);
        // The record of the other layer proves this blob and its length, as for podman (containers/image
        // `storage_dest.go`: `createNewLayer`).
        let is_known = stored.blob == Some((task.layer.blob, task.layer.size)) || task.authenticated;
        let staged = self.on_unpack_thread(move || {
            let tar = match store.open_tar(layer.location, &layer.id) {
                Ok(Some(tar)) => tar,
                Ok(None) => return Ok(Err("its files or its tar-split are missing".to_owned())),
                Err(error) => return Ok(Err(error.to_string())),
            };
            unpack.unpack(tar, |staged| staged.with_unseen_blob(is_known))
        });
        let staged = staged.await.map_err(|error| SourceFailure::of(error, 0))?;
        let (id, donor) = (task.layer.id(), stored.id);
        let additional = puller.inventory.additional_root(stored.location);
        match additional.map(Path::display) {
            _ if staged.is_err() => {}
            Some(store) => {
                tracing::info!(layer = %id, %donor, %store, "unpacked a layer from an additional image store");
            }
            None => tracing::debug!(layer = %id, %donor, "unpacked a layer from another layer in the store"),
        }
        staged.map_err(|reason| SourceFailure::Unusable { reason, bytes: 0 })
    }
}
