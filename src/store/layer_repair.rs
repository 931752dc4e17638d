//! Puts right what a check found wrong with a layer, in its place: id, record and short name stay.
//!
//! The tree, with all that is in `overlay/<id>`, is exchanged for a staged one in one rename, then the tar-split. The
//! tree comes first, for it is what containers run on. Whoever dies between the two leaves a layer of which each half is
//! the old or the new one, so no worse than before; the halves fit together wherever both are right, for both are of
//! the same tar. Nothing here happens to a layer that somebody uses.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::check::true_link;
use super::commit_layer::LayerCommit;
use super::error::StoreError;
use super::expected_layer::{ExpectedLayer, LayerBlob};
use super::inventory::Inventory;
use super::layer_placement::{LayerPlacement, clone_mount};
use super::layers_in_use::HostState;
use super::layers_json::LayerTable;
use super::lock::LayersLock;
use super::stage::StagedLayer;
use super::store::Store;
use super::{atomic_file, layer_dir};
use crate::cancel::Cancel;
use crate::oci::LayerId;

impl Store {
    /// Puts layers into the store as [`Store::commit_layers`] does, and in the place of those that are recorded already.
    ///
    /// `cancel` ends the wait for the lock and nothing else.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if the layer to be replaced is; else as [`Store::commit_layers`].
    pub fn repair_layers(
        &self,
        mut layers: Vec<StagedLayer>,
        host: &HostState,
        cancel: &Cancel,
    ) -> Result<Vec<(LayerId, LayerCommit)>, StoreError> {
        if layers.is_empty() {
            return Ok(Vec::new());
        }
        self.sync_staged(&mut layers)?;
        let root = clone_mount(self.layout.root())?;
        let mend = |layer: StagedLayer| {
            let id = layer.spec.id();
            match self.replace_layer(layer, &root, host, cancel)? {
                None => Ok(vec![(id, LayerCommit::Committed)]),
                Some(layer) => self.commit_synced(vec![layer], &root, cancel),
            }
        };
        let commits: Result<Vec<_>, StoreError> = layers.into_iter().map(mend).collect();
        Ok(commits?.into_iter().flatten().collect())
    }

    /// Gives the layer back if there is none to be replaced.
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
            // Somebody may be about to fill it; or it is another kind of layer. Both are refused by name.
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
        // Dropping `layer` removes the old tree, without the lock.
        Ok(None)
    }

    /// Writes anew what surrounds the tree of a layer whose tree is sound: `link`, `lower`, `work`, `empty` and
    /// `l/<link>`. Its record and its parent's short name say what they must be. Corrects what the record says of the blob that
    /// it was made from, if that is not so as `seen` and the image's `blob` have it.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if somebody uses the layer and might notice. One that was just removed is left to be found missing.
    pub fn repair_links(
        &self,
        place: &ExpectedLayer,
        blob: Option<&LayerBlob>,
        seen: &Inventory,
        host: &HostState,
        cancel: &Cancel,
    ) -> Result<(), StoreError> {
        let (layout, id) = (&self.layout, &place.id);
        let lock = LayersLock::acquire(layout, cancel)?;
        let mut table = LayerTable::read(layout)?;
        let Some(view) = table.find(id).filter(|view| view.is_complete()) else {
            return Ok(());
        };
        self.refuse_foreign(id)?;
        let origin = match blob {
            Some(blob) => seen.flaw_of_origin(view, place, blob)?.map(|_| blob),
            None => None,
        };
        let dir = layout.layer(id);
        let is_base = place.parent.is_none();
        let link = true_link(layout, &table, id)?;
        let lower = match place.parent {
            Some(parent) => Some(layer_dir::lower_on(self.layout_with(&parent), &parent)?),
            None => None,
        };
        // What was mounted by way of a symlink that is missing now does not notice that it comes back, and nobody mounts by
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
        tracing::info!(layer = %id, "mended what surrounds a layer");
        Ok(())
    }

    /// What another kind of store made is not ours to replace.
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
