//! Replaces damaged layers, and repairs link files and records, under the same layer id and link name.
//!
//! The directory `overlay/<id>` is exchanged with a staged one in one rename, then the tar-split is replaced. The
//! tree comes first, because containers run on it. A run that dies between the two leaves a layer in which each half
//! is the old or the new one, so it is no worse than before. The halves match whenever both are intact, because both
//! come from the same tar. A layer in use is never touched.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::check::true_link;
use super::error::StoreError;
use super::expected_layer::{ExpectedLayer, LayerBlob};
use super::host_state::HostState;
use super::inventory::Inventory;
use super::layer_commit::LayerCommit;
use super::layer_placement::LayerPlacement;
use super::layers_json::LayerTable;
use super::lock::LayersLock;
use super::root_mount::clone_mount;
use super::stage::StagedLayer;
use super::store::Store;
use super::{atomic_file, layer_dir};
use crate::cancel::Cancel;
use crate::oci::LayerId;

impl Store {
    /// Stores layers as [`Store::commit_layers`] does, and replaces those that are recorded already.
    ///
    /// `cancel` ends the wait for the lock and nothing else.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if a layer to replace is in use; otherwise as [`Store::commit_layers`].
    pub fn repair_layers(
        &self,
        mut layers: Vec<StagedLayer>,
        host: &HostState,
        cancel: &Cancel,
    ) -> Result<Vec<(LayerId, LayerCommit)>, StoreError> {
        if layers.is_empty() {
            return Ok(Vec::new());
        }
        self.sync_staged(&mut layers, [])?;
        let root = clone_mount(self.layout.root())?;
        let repair = |layer: StagedLayer| {
            let id = layer.spec.id();
            match self.replace_layer(layer, &root, host, cancel)? {
                None => Ok(vec![(id, LayerCommit::Committed)]),
                Some(layer) => self.commit_one(layer, &root, cancel),
            }
        };
        let commits: Result<Vec<_>, StoreError> = layers.into_iter().map(repair).collect();
        Ok(commits?.into_iter().flatten().collect())
    }

    fn commit_one(
        &self,
        layer: StagedLayer,
        root: &OwnedFd,
        cancel: &Cancel,
    ) -> Result<Vec<(LayerId, LayerCommit)>, StoreError> {
        let committed = self.commit_synced(vec![vec![layer]], root, cancel);
        let mut layers = Vec::new();
        for image in committed {
            match image.error {
                Some(error) => return Err(error),
                None => layers.extend(image.layers),
            }
        }
        Ok(layers)
    }

    /// Returns the layer if the store has none to replace.
    fn replace_layer(
        &self,
        layer: StagedLayer,
        root: &OwnedFd,
        host: &HostState,
        cancel: &Cancel,
    ) -> Result<Option<StagedLayer>, StoreError> {
        let id = layer.spec.id();
        let lock = LayersLock::acquire(&self.layout, cancel)?;
        let mut table = LayerTable::read(&self.layout)?;
        let Some(view) = table.find(&id).filter(|view| view.is_complete()).cloned() else {
            return Ok(Some(layer));
        };
        if !view.is_filled() || view.is_mapped() {
            // Another program may be about to fill it, or it is of another kind. `has_layer` returns the error.
            self.has_layer(&table, &id)?;
        }
        self.layers_in_use(host)?.check_unused(&id)?;
        self.refuse_foreign(&id)?;
        layer_dir::repair_links_dir(&self.layout)?;
        let mut placement = LayerPlacement::new(self, &layer, root);
        placement.replace(&true_link(&self.layout, &table, &id)?)?;
        placement.correct_record(&view, &lock, &mut table)?;
        drop(lock);
        tracing::info!(layer = %id, "replaced a damaged layer");
        // Dropping `layer` removes the old tree, after the lock is released.
        Ok(None)
    }

    /// Rewrites `link`, `lower`, `work`, `empty` and `l/<link>` of a layer whose tree is intact. Its record and the
    /// link name of its parent determine their content. Corrects the blob in the record if it contradicts the images
    /// in `seen` and the image's own `blob`.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if the layer is in use and its user could notice the change. A layer that was just
    /// removed is not an error; the next check finds it missing.
    pub fn repair_links(
        &self,
        layer: &ExpectedLayer,
        blob: Option<&LayerBlob>,
        seen: &Inventory,
        host: &HostState,
        cancel: &Cancel,
    ) -> Result<(), StoreError> {
        let (layout, id) = (&self.layout, &layer.id);
        let lock = LayersLock::acquire(layout, cancel)?;
        let mut table = LayerTable::read(layout)?;
        let Some(view) = table.find(id).filter(|view| view.is_complete()) else {
            return Ok(());
        };
        self.refuse_foreign(id)?;
        let origin = match blob {
            Some(blob) => seen.flaw_of_origin(view, layer, blob)?.map(|_| blob),
            None => None,
        };
        let dir = layout.layer(id);
        let is_base = layer.parent.is_none();
        let link = true_link(layout, &table, id)?;
        let lower = match layer.parent {
            Some(parent) => Some(layer_dir::lower_on(self.layout_with(&parent), &parent)?),
            None => None,
        };
        // A mount through a symlink that is missing now is not affected when the symlink returns, and no mount reads
        // the record.
        let is_harmless = layer_dir::link(layout, id)?.as_ref() == Some(&link)
            && layer_dir::lower(layout, id)? == lower
            && layer_dir::has_empty_dirs(&dir, is_base)?
            && (layer_dir::is_linked(layout, &link, id)? || !layer_dir::exists(&layout.links().join(&link))?);
        if !is_harmless {
            self.layers_in_use(host)?.check_unused(id)?;
        }
        layer_dir::repair_links_dir(layout)?;
        layer_dir::repair_text(&dir.join("link"), &link)?;
        match &lower {
            Some(lower) => layer_dir::repair_text(&dir.join("lower"), lower)?,
            None => layer_dir::remove_if_there(&dir.join("lower"))?,
        }
        layer_dir::repair_empty_dirs(&dir, is_base)?;
        layer_dir::repair_link(layout, &link, id)?;
        for dir in [dir, layout.links()] {
            atomic_file::sync_dir(&dir)?;
        }
        if let Some(blob) = origin {
            let json = |error| StoreError::corrupt(&layout.layers_json(), error);
            table.correct_origin(id, blob).map_err(json)?;
            table.save(&lock, layout)?;
        }
        tracing::info!(layer = %id, "repaired the link files of a layer");
        Ok(())
    }

    /// Files of another kind of store must not be replaced.
    fn refuse_foreign(&self, id: &LayerId) -> Result<(), StoreError> {
        let dir = self.layout.layer(id);
        for foreign in layer_dir::FOREIGN {
            if layer_dir::exists(&dir.join(Path::new(foreign)))? {
                return Err(StoreError::Conflict {
                    what: format!("layer {id}"),
                    reason: format!("it has `{foreign}`, which another kind of store made"),
                });
            }
        }
        Ok(())
    }
}
