//! Stores layers while the layers lock is held once: their files, then the records of all of them with one save.
//!
//! ```text
//! place  A     `link` and `lower`; one rename into `overlay/`; the symlink; the tar-split
//! place  B
//! sync         the names in `overlay/`, `overlay/l` and `overlay-layers`
//! save   A, B
//! ```
//!
//! Before the save, no program takes the directories for layers: a layer exists if it has a record. If the process
//! dies, the next run removes the directories (`unrecorded.rs`). A program that creates a layer of the same id before
//! that replaces its directory (containers/storage since 1.43, `overlay.go`: `create`), and CRI-O removes directories
//! without a record whenever it starts (`GarbageCollect`).
//!
//! The alternative is a record with the flag `incomplete` before each layer is placed, as in containers/storage. It
//! costs two saves per layer, each as long as all records: versions before 1.57 misread several incomplete records.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use super::error::StoreError;
use super::go_time;
use super::layer_placement::{LayerPlacement, sync_names};
use super::layer_removal::delete_incomplete;
use super::layers_json::LayerTable;
use super::lock::LayersLock;
use super::stage::StagedLayer;
use super::store::Store;
use crate::oci::LayerId;

/// The result for one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutResult {
    Placed,
    AlreadyThere,
    ParentMissing,
}

/// The layers that are stored while the lock is held once.
pub(super) struct LayerBatch<'b> {
    store: &'b Store,
    root: &'b OwnedFd,
    lock: &'b LayersLock,
    /// The records that the save writes.
    table: LayerTable,
    /// Stored or placed, and examined under this lock.
    known: HashSet<LayerId>,
    placed: Vec<LayerPlacement<'b>>,
}

impl<'b> LayerBatch<'b> {
    /// `root` is a clone of the graph root's mount.
    pub(super) fn new(store: &'b Store, root: &'b OwnedFd, lock: &'b LayersLock) -> Result<Self, StoreError> {
        Ok(Self {
            store,
            root,
            lock,
            table: LayerTable::read(&store.layout)?,
            known: HashSet::new(),
            placed: Vec::new(),
        })
    }

    /// Places the layer, without a record yet.
    ///
    /// # Errors
    /// Then the layer is not placed, and the others are as before.
    pub(super) fn put(&mut self, layer: &'b StagedLayer) -> Result<PutResult, StoreError> {
        let id = layer.spec.id();
        if self.store.has_known_layer(&self.table, &id, &mut self.known)? {
            return Ok(PutResult::AlreadyThere);
        }
        if let Some(parent) = layer.spec.parent()
            && !self
                .store
                .has_known_layer(&self.table, &parent, &mut self.known)?
        {
            return Ok(PutResult::ParentMissing);
        }
        let trash = || layer.entry.make_trash_path();
        delete_incomplete(&self.store.layout, self.root, trash, &mut self.table)?;
        let mut placement = LayerPlacement::new(self.store, layer, self.root);
        let placed = placement.move_into_store().and_then(|()| {
            let json = |error| StoreError::corrupt(&self.store.layout.layers_json(), error);
            self.table.put(&placement.record(go_time::now())).map_err(json)
        });
        if let Err(error) = placed {
            placement.undo();
            return Err(error);
        }
        self.known.insert(id);
        self.placed.push(placement);
        Ok(PutResult::Placed)
    }

    /// Records the placed layers.
    ///
    /// # Errors
    /// Then none of them is stored, unless only the sync of the records failed and the records could not be replaced
    /// again.
    pub(super) fn end(mut self) -> Result<(), StoreError> {
        if self.placed.is_empty() {
            return Ok(());
        }
        let layout = &self.store.layout;
        let saved = sync_names(layout).and_then(|()| self.table.save(self.lock, layout));
        match &saved {
            Ok(()) => {
                let ids: Vec<LayerId> = self.placed.iter().map(LayerPlacement::id).collect();
                self.store.durable.add(&ids);
            }
            Err(_) => self.take_back(),
        }
        saved
    }

    /// Removes the placed layers after an error. The records come first, if they were written: a layer that is
    /// recorded has its files, whenever the process dies.
    fn take_back(&mut self) {
        let layout = &self.store.layout;
        let is_recorded = |placed: &[LayerPlacement<'_>]| {
            LayerTable::read(layout).map(|table| {
                placed
                    .iter()
                    .any(|it| table.find(&it.id()).is_some_and(|view| view.is_complete()))
            })
        };
        // A save may fail after it has replaced the file.
        let mut recorded = is_recorded(&self.placed);
        if matches!(recorded, Ok(true)) {
            for placement in &self.placed {
                self.table.remove(&placement.id());
            }
            recorded = self
                .table
                .save(self.lock, layout)
                .map(|()| false)
                .or_else(|error| {
                    tracing::warn!(%error, "cannot remove the records of a failed commit");
                    is_recorded(&self.placed)
                });
        }
        match recorded {
            Ok(false) => self.placed.iter().rev().for_each(LayerPlacement::undo),
            // Layers that other programs see as complete stay.
            Ok(true) => {}
            Err(error) => tracing::warn!(%error, "cannot undo a commit that failed"),
        }
    }
}
