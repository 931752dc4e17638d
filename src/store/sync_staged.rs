//! Making staged layers durable, before anybody can see them (storage-format.md section 9.2, P2).

use std::collections::HashMap;
use std::path::PathBuf;

use super::error::StoreError;
use super::stage::StagedLayer;
use super::store::Store;
use super::{atomic_file, layer_dir};
use crate::oci::LayerId;

impl Store {
    /// Makes staged layers, parents before children, durable with one sync of the file system, of however many images they
    /// are. Those for which that was done cost nothing.
    ///
    /// What a layer's place in the chain asks for, `link`, `lower` and the mode of its root, is written ahead of the sync as
    /// far as it is known; under the lock it is compared and then need not be synced by itself.
    ///
    /// # Errors
    /// Also when the system could not write something, of the store or not, since the last sync.
    pub fn sync_staged<'l>(
        &self,
        layers: impl IntoIterator<Item = &'l mut StagedLayer>,
    ) -> Result<(), StoreError> {
        let mut layers: Vec<&mut StagedLayer> = layers.into_iter().filter(|layer| !layer.is_synced).collect();
        let mut staged = HashMap::new();
        for layer in &layers {
            self.write_known_links(layer, &staged)?;
            staged.insert(layer.spec.id(), layer.entry.path());
        }
        if let Some(first) = layers.first() {
            first.entry.sync_file_system()?;
        }
        for layer in &mut layers {
            layer.is_synced = true;
        }
        Ok(())
    }

    /// Writes what `LayerPlacement::place` will want, if the parent is in the store or among the `staged`.
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
        // Without the lock the store may say anything; what is wrong with it is said under the lock.
        if let Ok(lower) = layer_dir::lower_on_dir(staged.unwrap_or(&stored))
            && !layer_dir::exists(&dir.join("lower"))?
        {
            atomic_file::create(&dir.join("lower"), 0o644, lower.as_bytes())?;
        }
        // What a root inherits cannot be corrected later, and one in the store may be about to be mended.
        if let Some(parent) = staged {
            layer_dir::inherit_root(parent, &dir, layer.unpacked.has_root)?;
        }
        Ok(())
    }
}
