//! Making staged layers visible.
//!
//! The protocol of storage-format.md section 9.2, P3, for as many layers of an image as the time allows for which others may
//! be kept from the layers lock: a record that says `incomplete`; `link` and `lower`; one rename into `overlay/`; the symlink; the
//! tar-split; syncs; the record without the flag. Whoever dies on the way leaves an incomplete record, which any program
//! that reads the store next deletes with all that belongs to it. An error on the way is undone here, under the same lock.
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

/// When the lock has been held for so long it is let go after the layer at hand. CRI-O and podman ask for it in each call, and a
/// layer costs five waits for the disk: of 127 layers on a disk of 10 ms, more than six seconds.
const HOLD: Duration = Duration::from_millis(200);

/// Pause before the lock is taken again, for whoever waits for it is woken when it is let go, and not given it.
const PAUSE: Duration = Duration::from_millis(5);

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

/// [`LayerCommit`], while the layer is still lent.
#[derive(Clone, Copy, Debug)]
enum PutResult {
    Placed,
    AlreadyThere,
    ParentMissing,
}

impl Store {
    /// Puts layers into the store, in the order given, parents before children. The batch is made durable at once, unless
    /// [`Store::sync_staged`] has done so; each layer is whole as soon as it is visible. Others get the lock in
    /// between, and may remove what was put there.
    ///
    /// `cancel` ends a wait for the lock and nothing else.
    ///
    /// # Errors
    /// At the first layer that cannot be committed. Those before it are in the store (but for the last of them, if the
    /// records could not be written), it and those after it are not, and the store is no worse than before. If a record
    /// could only not be made durable, and not be taken back either, its layer is there all the same.
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

    /// The same for layers that are durable, with a clone of the graph root's mount.
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
        // Dropping a layer removes what was in its way, which may take long; nobody waits for the lock meanwhile.
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

    /// Commits the first of the layers, and what else can be done while the lock may be held.
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

/// Layers on their way into the store, under one hold of the lock.
struct CommitBatch<'b> {
    store: &'b Store,
    root: &'b OwnedFd,
    lock: &'b LayersLock,
    /// What the next save writes.
    table: LayerTable,
    /// Lies in its place, and its record on the disk says `incomplete`; `table` has it as complete.
    pending: Option<LayerPlacement<'b>>,
}

impl<'b> CommitBatch<'b> {
    /// Puts the next layer in its place, and ends the one before.
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
        let placed = placement.place();
        record.flags = None;
        if let Err(error) = placed.and_then(|()| self.put_record(&record)) {
            self.roll_back(&placement);
            return Err(error);
        }
        self.pending = Some(placement);
        Ok(PutResult::Placed)
    }

    /// Ends the last layer.
    fn end(&mut self) -> Result<(), StoreError> {
        match self.pending {
            Some(_) => self.save(),
            None => Ok(()),
        }
    }

    /// Saves the records: the layer that lies in its place is complete from now on, or is taken back.
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

    /// Takes a layer's record back, then its files: whenever we die, a layer that is recorded as complete has them.
    fn roll_back(&mut self, placement: &LayerPlacement<'_>) {
        let (id, layout) = (placement.id(), &self.store.layout);
        self.table.remove(&id);
        let mut saved = self.table.save(self.lock, layout);
        let is_complete = |table: &LayerTable| table.find(&id).is_some_and(LayerView::is_complete);
        match LayerTable::read(layout) {
            _ if saved.is_ok() => placement.undo(),
            Ok(seen) if !is_complete(&seen) => {
                placement.undo();
                // On a full disk the staged files are what stands in the way of 4 KiB.
                placement.discard();
                saved = self.table.save(self.lock, layout);
            }
            // The save that failed before had replaced the file, and what others see as complete stays.
            Ok(seen) => self.table = seen,
            Err(_) => {}
        }
        if let Err(error) = saved {
            // An incomplete record is deleted by whoever reads the store next.
            tracing::warn!(layer = %id, %error, "cannot take back the record of a layer");
        }
    }

    fn put_record(&mut self, record: &NewLayer<'_>) -> Result<(), StoreError> {
        let json = |error| StoreError::corrupt(&self.store.layout.layers_json(), error);
        self.table.put(record).map_err(json)
    }
}
