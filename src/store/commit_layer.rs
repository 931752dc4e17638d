//! Making a staged layer visible.
//!
//! The protocol of storage-format.md section 9.2, P2 and P3. For each layer, under the layers lock, for
//! milliseconds: a record that says `incomplete`; `link` and `lower`; one rename into `overlay/`; the
//! symlink; the tar-split; syncs; the record without the flag. Whoever dies on the way leaves an incomplete
//! record, which any program that reads the store next deletes with all that belongs to it. An error on the
//! way is undone here, under the same lock.

use std::os::fd::OwnedFd;

use super::atomic;
use super::error::StoreError;
use super::layer_dir::find_flaw;
use super::layers::LayerTable;
use super::lock::LayersLock;
use super::placement::{Placement, clone_mount};
use super::stage::StagedLayer;
use super::store::Store;
use crate::cancel::Cancel;
use crate::oci::LayerId;

/// What became of a layer.
#[derive(Debug)]
pub enum LayerCommit {
    /// It is in the store now.
    Committed,
    /// Somebody else had put it there before; the staged copy was dropped.
    AlreadyThere,
    /// The layer below is not in the store, or no longer. It is to be staged and committed first; then this
    /// one, which is given back.
    ParentMissing(Box<StagedLayer>),
}

impl Store {
    /// Puts layers into the store, in the order given, parents before children. The batch is made durable at
    /// once; each layer is whole and visible as soon as its turn is over.
    ///
    /// `cancel` ends the wait for the lock and nothing else.
    ///
    /// # Errors
    /// At the first layer that cannot be committed. Those before it are in the store, it and those after it are
    /// not, and the store is no worse than before.
    pub fn commit_layers(
        &self,
        layers: Vec<StagedLayer>,
        cancel: &Cancel,
    ) -> Result<Vec<(LayerId, LayerCommit)>, StoreError> {
        let Some(first) = layers.first() else {
            return Ok(Vec::new());
        };
        first.entry.sync_file_system()?;
        let root = clone_mount(self.layout.root())?;
        let commit = |layer: StagedLayer| Ok((layer.spec.id(), self.commit_layer(layer, &root, cancel)?));
        layers.into_iter().map(commit).collect()
    }

    pub(super) fn commit_layer(
        &self,
        layer: StagedLayer,
        root: &OwnedFd,
        cancel: &Cancel,
    ) -> Result<LayerCommit, StoreError> {
        let id = layer.spec.id();
        let lock = LayersLock::acquire(&self.layout, cancel)?;
        if self.first_sweep_of_layers() {
            atomic::sweep(&self.layout.layers(), "layers.json");
        }
        let mut table = LayerTable::read(&self.layout)?;
        if self.has_layer(&table, &id)? {
            return Ok(LayerCommit::AlreadyThere);
        }
        if let Some(parent) = layer.spec.parent()
            && !self.has_layer(&table, &parent)?
        {
            return Ok(LayerCommit::ParentMissing(Box::new(layer)));
        }
        let mut placement = Placement::new(self, &layer, root);
        if let Err(error) = placement.record_and_place(&lock, &mut table) {
            // The record goes before the files: whenever we die, a layer that is recorded as complete has them.
            table.remove(&id);
            let mut saved = table.save(&lock, &self.layout);
            placement.undo();
            if saved.is_err() {
                // On a full disk the staged files are what stands in the way of 4 KiB.
                drop(layer);
                saved = table.save(&lock, &self.layout);
            }
            if let Err(error) = saved {
                // An incomplete record is deleted by whoever reads the store next.
                tracing::warn!(layer = %id, %error, "cannot take back the record of a layer");
            }
            return Err(error);
        }
        // The point of no return was the last save; dropping `layer` removes what was in the way, without the
        // lock.
        drop(lock);
        self.synced.add(&[id]);
        Ok(LayerCommit::Committed)
    }

    /// True if the layer is recorded as complete and can be mounted, false if there is no record of it, or only
    /// that of a dead writer. Needs the layers lock, shared or not.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if it is recorded and damaged, or not what its id says. It is left as it is: others
    /// may have it mounted, or be filling it, and CRI-O's own repair knows what else has to go with it.
    pub(super) fn has_layer(&self, table: &LayerTable, id: &LayerId) -> Result<bool, StoreError> {
        // Whoever records a layer as incomplete holds the lock until it is complete or gone (`layers.go`: `create`
        // and `internalDelete`, 1.43 to 1.64, also where 1.62 unpacks without it). Now we hold it.
        let Some(view) = table.find(id).filter(|view| view.is_complete()) else {
            return Ok(false);
        };
        let flaw = if !view.is_filled() {
            Some(
                "its record does not say what it holds: a program is about to fill it, or died before"
                    .to_owned(),
            )
        } else if view.is_mapped() {
            Some("its files have mapped owners".to_owned())
        } else if !view.is_what_its_id_says(id) {
            Some("its record has another parent or content than its id says".to_owned())
        } else {
            let flaw = find_flaw(&self.layout, id, view.parent().is_some())?;
            match flaw {
                None => {
                    let stores: Vec<_> = self.layouts().collect();
                    table.flaw_of_way(&self.layout, view, id, &stores)?
                }
                flaw => flaw,
            }
        };
        match flaw {
            None => Ok(true),
            Some(reason) => Err(StoreError::Conflict {
                what: format!("layer {id}"),
                reason,
            }),
        }
    }
}
