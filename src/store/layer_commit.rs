//! Commits staged layers: makes them visible to CRI-O and podman, each complete or not at all.
//!
//! Follows storage-format.md section 9.2, P3, for as many layers as fit into the time that the layers lock may be
//! held: a record with the flag `incomplete`; `link` and `lower`; one rename into `overlay/`; the symlink; the
//! tar-split; syncs; the record without the flag. If the process dies in between, the incomplete record remains. Any
//! program that reads the store next deletes it with everything that belongs to it. An error in between is undone
//! here, under the same lock.
//!
//! ```text
//! save   A incomplete
//! place  A
//! save   A, B incomplete      one save ends a layer and begins the next: at most one record is ever incomplete
//! place  B
//! save   A, B
//! ```

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::atomic_file;
use super::error::StoreError;
use super::go_time;
use super::layer_dir::find_flaw;
use super::layer_placement::{LayerPlacement, clone_mount};
use super::layers_json::{LayerTable, LayerView, NewLayer};
use super::lock::LayersLock;
use super::stage::StagedLayer;
use super::store::Store;
use crate::cancel::Cancel;
use crate::oci::LayerId;

/// After the lock has been held for this long, it is released after the current layer. CRI-O and podman need it in
/// each call, and a layer costs five waits for the disk: 127 layers take more than six seconds on a disk with a
/// latency of 10 ms.
const HOLD: Duration = Duration::from_millis(200);

/// Pause before the lock is taken again: a waiter is woken by the release, but does not own the lock yet.
const PAUSE: Duration = Duration::from_millis(5);

/// The result of committing a layer.
#[derive(Debug)]
pub enum LayerCommit {
    /// It is in the store now.
    Committed,
    /// Another program stored it before; the staged copy was dropped.
    AlreadyThere,
    /// The layer below is not in the store, or was removed. The caller must stage and commit it first, then this
    /// layer, which is returned.
    ParentMissing(Box<StagedLayer>),
}

/// A [`LayerCommit`] without the layer, while the batch borrows it.
#[derive(Clone, Copy, Debug)]
enum PutResult {
    Placed,
    AlreadyThere,
    ParentMissing,
}

impl Store {
    /// Stores layers in the given order, parents before children. The batch is synced first, unless
    /// [`Store::sync_staged`] has done so. Each layer is complete as soon as it is visible. Other programs get the
    /// lock in between, and may remove committed layers.
    ///
    /// `cancel` ends a wait for the lock and nothing else.
    ///
    /// # Errors
    /// At the first layer that cannot be committed. The layers before it are in the store, except the last of them if
    /// the records could not be written. That layer and those after it are not, and the store is no worse than
    /// before. If only the sync of a record failed, and the record could not be removed either, its layer is stored
    /// all the same.
    pub fn commit_layers(
        &self,
        mut layers: Vec<StagedLayer>,
        cancel: &Cancel,
    ) -> Result<Vec<(LayerId, LayerCommit)>, StoreError> {
        if layers.is_empty() {
            return Ok(Vec::new());
        }
        self.sync_staged(&mut layers)?;
        let root = clone_mount(self.layout.root())?;
        self.commit_synced(layers, &root, cancel)
    }

    /// The same for durable layers, with a clone of the graph root's mount.
    pub(super) fn commit_synced(
        &self,
        layers: Vec<StagedLayer>,
        root: &OwnedFd,
        cancel: &Cancel,
    ) -> Result<Vec<(LayerId, LayerCommit)>, StoreError> {
        let mut results = Vec::with_capacity(layers.len());
        while results.len() < layers.len() {
            if !results.is_empty() {
                std::thread::sleep(PAUSE);
            }
            results.extend(self.commit_some(&layers[results.len()..], root, cancel)?);
        }
        // Dropping a layer removes what it replaced, which may take long; the lock is free during that.
        let commits = layers.into_iter().zip(results).map(|(layer, result)| {
            let commit = match result {
                PutResult::Placed => LayerCommit::Committed,
                PutResult::AlreadyThere => LayerCommit::AlreadyThere,
                PutResult::ParentMissing => {
                    return (layer.spec.id(), LayerCommit::ParentMissing(Box::new(layer)));
                }
            };
            (layer.spec.id(), commit)
        });
        Ok(commits.collect())
    }

    /// Commits the first layer, and more while the lock may be held.
    fn commit_some(
        &self,
        layers: &[StagedLayer],
        root: &OwnedFd,
        cancel: &Cancel,
    ) -> Result<Vec<PutResult>, StoreError> {
        let lock = LayersLock::acquire(&self.layout, cancel)?;
        let since = Instant::now();
        if self.first_sweep_of_layers() {
            atomic_file::sweep(&self.layout.layers(), "layers.json");
        }
        let mut batch = CommitBatch {
            store: self,
            root,
            lock: &lock,
            table: LayerTable::read(&self.layout)?,
            pending: None,
        };
        let in_time = |index: usize| index == 0 || since.elapsed() < HOLD;
        let now = layers.iter().enumerate().take_while(|(index, _)| in_time(*index));
        let results: Result<Vec<PutResult>, StoreError> = now.map(|(_, layer)| batch.put(layer)).collect();
        let ended = batch.end();
        let results = results?;
        ended.map(|()| results)
    }

    /// True if the layer is recorded as complete and can be mounted; false if it has no record, or only that of a
    /// dead writer. Needs the layers lock, shared or exclusive.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if it is recorded and damaged, or if record and id disagree. It is left unchanged:
    /// another program may have mounted it or be filling it, and CRI-O's own repair knows what else must be removed
    /// with it.
    pub(super) fn has_layer(&self, table: &LayerTable, id: &LayerId) -> Result<bool, StoreError> {
        // A program that records a layer as incomplete holds the lock until the layer is complete or gone
        // (`layers.go`: `create` and `internalDelete`, 1.43 to 1.64, also in 1.62, which unpacks without the lock).
        // We hold the lock now.
        let Some(view) = table.find(id).filter(|view| view.is_complete()) else {
            return Ok(false);
        };
        let flaw = if !view.is_filled() {
            Some(
                "its record has no digest of its content: another program is about to fill it, or died before"
                    .to_owned(),
            )
        } else if view.is_mapped() {
            Some("its files have mapped owners".to_owned())
        } else if !view.has_matching_id(id) {
            Some("parent and content in its record do not match its id".to_owned())
        } else {
            let flaw = find_flaw(&self.layout, id, view.parent().is_some())?;
            match flaw {
                None => {
                    let stores: Vec<_> = self.layouts().collect();
                    table.unresolved_lower(&self.layout, view, id, &stores)?
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

/// The layers that are committed while the lock is held once.
struct CommitBatch<'b> {
    store: &'b Store,
    root: &'b OwnedFd,
    lock: &'b LayersLock,
    /// The records that the next save writes.
    table: LayerTable,
    /// Moved into the store; its record on the disk has the flag `incomplete`, the one in `table` does not.
    pending: Option<LayerPlacement<'b>>,
}

impl<'b> CommitBatch<'b> {
    /// Stores the next layer and completes the one before.
    fn put(&mut self, layer: &'b StagedLayer) -> Result<PutResult, StoreError> {
        let id = layer.spec.id();
        if self.store.has_layer(&self.table, &id)? {
            return Ok(PutResult::AlreadyThere);
        }
        if let Some(parent) = layer.spec.parent()
            && !self.store.has_layer(&self.table, &parent)?
        {
            return Ok(PutResult::ParentMissing);
        }
        let mut placement = LayerPlacement::new(self.store, layer, self.root);
        placement.delete_incomplete(&mut self.table)?;
        let mut record = placement.record(go_time::now());
        self.put_record(&record)?;
        if let Err(error) = self.save() {
            self.roll_back(&placement);
            return Err(error);
        }
        let placed = placement.move_into_store();
        record.flags = None;
        if let Err(error) = placed.and_then(|()| self.put_record(&record)) {
            self.roll_back(&placement);
            return Err(error);
        }
        self.pending = Some(placement);
        Ok(PutResult::Placed)
    }

    /// Completes the last layer.
    fn end(&mut self) -> Result<(), StoreError> {
        match self.pending {
            Some(_) => self.save(),
            None => Ok(()),
        }
    }

    /// Saves the records. This completes the pending layer; if it fails, the layer is removed again.
    fn save(&mut self) -> Result<(), StoreError> {
        let saved = self.table.save(self.lock, &self.store.layout);
        if let Some(placement) = self.pending.take() {
            match &saved {
                Ok(()) => self.store.durable.add(&[placement.id()]),
                Err(_) => self.roll_back(&placement),
            }
        }
        saved
    }

    /// Removes a layer's record, then its files. In this order a layer that is recorded as complete has its files,
    /// whenever the process dies.
    fn roll_back(&mut self, placement: &LayerPlacement<'_>) {
        let (id, layout) = (placement.id(), &self.store.layout);
        self.table.remove(&id);
        let mut saved = self.table.save(self.lock, layout);
        let is_complete = |table: &LayerTable| table.find(&id).is_some_and(LayerView::is_complete);
        match LayerTable::read(layout) {
            _ if saved.is_ok() => placement.undo(),
            Ok(seen) if !is_complete(&seen) => {
                placement.undo();
                // On a full disk, removing the staged files frees the 4 KiB for the record.
                placement.discard();
                saved = self.table.save(self.lock, layout);
            }
            // The failed save had replaced the file. A layer that other programs see as complete stays.
            Ok(seen) => self.table = seen,
            Err(_) => {}
        }
        if let Err(error) = saved {
            // The next program that reads the store deletes an incomplete record.
            tracing::warn!(layer = %id, %error, "cannot remove the record of a failed commit");
        }
    }

    fn put_record(&mut self, record: &NewLayer<'_>) -> Result<(), StoreError> {
        let json = |error| StoreError::corrupt(&self.store.layout.layers_json(), error);
        self.table.put(record).map_err(json)
    }
}
