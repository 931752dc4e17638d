//! Syncs staged layers and images to the disk before they are committed (storage-format.md section 9.2, P2).

use std::collections::HashMap;
use std::path::PathBuf;

use super::error::StoreError;
use super::stage::StagedLayer;
use super::staged_image::StagedImage;
use super::store::Store;
use super::{atomic_file, layer_dir, unrecorded};
use crate::oci::LayerId;

impl Store {
    /// Makes staged layers and the data of images durable with one sync of the file system, for any number of images;
    /// parents come before children. What is synced already costs nothing.
    ///
    /// The files that depend on the layer's position in the chain (`link`, `lower`, the mode of its root) are written
    /// before the sync, as far as they are known. Under the lock they are compared and then need no sync of their
    /// own.
    ///
    /// # Errors
    /// Also if the system failed to write anything else on this file system since the last sync.
    pub fn sync_staged<'l>(
        &self,
        layers: impl IntoIterator<Item = &'l mut StagedLayer>,
        images: impl IntoIterator<Item = &'l mut StagedImage>,
    ) -> Result<(), StoreError> {
        let mut layers: Vec<&mut StagedLayer> = layers.into_iter().filter(|layer| !layer.is_synced).collect();
        let mut images: Vec<&mut StagedImage> = images.into_iter().filter(|image| !image.is_synced).collect();
        let mut staged = HashMap::new();
        for layer in &layers {
            self.write_known_links(layer, &staged)?;
            let id = layer.spec.id();
            layer.entry.announce(&unrecorded::layer_note(&id))?;
            staged.insert(id, layer.entry.path());
        }
        for image in &images {
            image.entry.announce(&unrecorded::image_note(&image.id))?;
        }
        let mut entries = layers.iter().map(|layer| &layer.entry);
        if let Some(first) = entries
            .next()
            .or_else(|| images.first().map(|image| &image.entry))
        {
            first.sync_file_system()?;
        }
        layers.iter_mut().for_each(|layer| layer.is_synced = true);
        images.iter_mut().for_each(|image| image.is_synced = true);
        Ok(())
    }

    /// Writes the files that [`LayerPlacement`](super::layer_placement::LayerPlacement) needs, if the parent is
    /// stored or among the `staged` layers.
    fn write_known_links(
        &self,
        layer: &StagedLayer,
        staged: &HashMap<LayerId, PathBuf>,
    ) -> Result<(), StoreError> {
        let dir = layer.entry.path();
        if !layer_dir::exists(&dir.join("link"))? {
            atomic_file::create(&dir.join("link"), 0o644, layer_dir::new_link().as_bytes())?;
        }
        let Some(parent) = layer.spec.parent() else {
            return Ok(());
        };
        let (staged, stored) = (staged.get(&parent), self.layout.layer(&parent));
        // Without the lock the store may change at any time; a damaged parent is reported under the lock.
        if let Ok(lower) = layer_dir::lower_on_dir(staged.unwrap_or(&stored))
            && !layer_dir::exists(&dir.join("lower"))?
        {
            atomic_file::create(&dir.join("lower"), 0o644, lower.as_bytes())?;
        }
        // Only from a staged parent: what a root inherits cannot be corrected later, and a stored parent may be about
        // to be repaired.
        if let Some(parent) = staged {
            layer_dir::inherit_root(parent, &dir, layer.unpacked.has_root)?;
        }
        Ok(())
    }
}
