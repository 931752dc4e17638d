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
use super::layer_dir::{self, Flaw, find_flaw};
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
    /// At the first layer that cannot be committed. Those before it are in the store, it and those after it are not, and
    /// the store is sound.
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

    fn commit_layer(
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
        let recorded = self.examine(&table, &layer)?;
        if recorded == Recorded::Whole {
            return Ok(LayerCommit::AlreadyThere);
        }
        if let Some(parent) = layer.spec.parent()
            && !self.is_usable(&table, &parent)?
        {
            return Ok(LayerCommit::ParentMissing(Box::new(layer)));
        }
        if recorded == Recorded::WithoutFrame {
            tracing::warn!(layer = %id, "mending a layer of the store that could not have been mounted");
            layer_dir::mend(&self.layout, &id, layer.spec.parent())?;
            return Ok(LayerCommit::AlreadyThere);
        }
        let mut placement = Placement::new(self, &layer, root);
        let placed = match recorded {
            // The record stays as it is: children and images rely on it, and a crash leaves no more damage
            // than there is.
            Recorded::WithoutDiff => {
                tracing::warn!(layer = %id, "putting back the files of a layer that the store had lost");
                placement.place(true)
            }
            _ => placement.record_and_place(&lock, &mut table),
        };
        if let Err(error) = placed {
            placement.undo();
            if recorded == Recorded::No {
                table.remove(&id);
                if table.save(&lock, &self.layout).is_err() {
                    // On a full disk the staged files are what stands in the way of 4 KiB.
                    drop(layer);
                    if let Err(error) = table.save(&lock, &self.layout) {
                        // An incomplete record is deleted by whoever reads the store next.
                        tracing::warn!(layer = %id, %error, "cannot take back the record of a layer");
                    }
                }
            }
            return Err(error);
        }
        // The point of no return was the last save; dropping `layer` removes what was in the way, without the
        // lock.
        drop(lock);
        Ok(LayerCommit::Committed)
    }

    /// True if `id` is recorded, complete and such that a child can be mounted on it.
    pub(super) fn is_usable(&self, table: &LayerTable, id: &LayerId) -> Result<bool, StoreError> {
        let Some(view) = table
            .find(id)
            .filter(|view| view.is_complete() && !view.is_mapped())
        else {
            return Ok(false);
        };
        Ok(find_flaw(&self.layout, id, view.parent().is_some())?.is_none())
    }

    fn examine(&self, table: &LayerTable, layer: &StagedLayer) -> Result<Recorded, StoreError> {
        let id = layer.spec.id();
        let conflict = |reason: String| StoreError::Conflict {
            what: format!("layer {id}"),
            reason,
        };
        if table.is_volatile(&id) {
            return Err(conflict("a container's layer has this id".into()));
        }
        // An incomplete one is a dead writer's, for we hold the lock.
        let Some(view) = table.find(&id).filter(|view| view.is_complete()) else {
            return Ok(Recorded::No);
        };
        if view.is_mapped() {
            return Err(conflict("its files have mapped owners".into()));
        }
        let parent = layer.spec.parent().map(|parent| parent.to_string());
        if view.parent() != parent.as_deref() {
            return Err(conflict(format!(
                "its parent is {}",
                view.parent().unwrap_or("none")
            )));
        }
        match find_flaw(&self.layout, &id, parent.is_some())? {
            None => Ok(Recorded::Whole),
            Some(Flaw::Diff) => Ok(Recorded::WithoutDiff),
            Some(Flaw::Frame(_)) => Ok(Recorded::WithoutFrame),
            Some(flaw @ Flaw::Foreign(_)) => Err(conflict(flaw.to_string())),
        }
    }
}

/// What the store has of a layer that is to be committed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recorded {
    /// No record, or that of a dead writer.
    No,
    /// Everything.
    Whole,
    /// The record and the files, but nothing to mount them by.
    WithoutFrame,
    /// The record alone.
    WithoutDiff,
}
