//! Commits staged layers: makes them visible to CRI-O and podman, each complete or not at all.
//!
//! Follows storage-format.md section 9.2, P3, in its form with one save for many layers: as many as are placed in the
//! time that the layers lock may be held (`layer_batch.rs`). The layers of several images go together. An error of one
//! layer fails its image; those of the other images are stored all the same.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::atomic_file;
use super::error::StoreError;
use super::layer_batch::{LayerBatch, PutResult};
use super::layer_dir::find_flaw;
use super::layers_json::LayerTable;
use super::lock::LayersLock;
use super::root_mount::clone_mount;
use super::stage::StagedLayer;
use super::store::Store;
use crate::cancel::Cancel;
use crate::oci::LayerId;

/// After the lock has been held for this long, no further layer is placed; the sync and the save follow. CRI-O and
/// podman need the lock in each call.
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

/// The results of committing the layers of one image.
#[derive(Debug)]
pub struct CommittedLayers {
    /// In the given order; without the layers that are not stored because of the error.
    pub layers: Vec<(LayerId, LayerCommit)>,
    /// Why not all are stored.
    pub error: Option<StoreError>,
}

impl Store {
    /// Stores layers in the given order, parents before children. The batch is synced first, unless
    /// [`Store::sync_staged`] has done so. Each layer is complete as soon as it is visible. Other programs get the
    /// lock in between, and may remove committed layers.
    ///
    /// `cancel` ends a wait for the lock and nothing else.
    ///
    /// # Errors
    /// At the first layer that cannot be committed. The layers before it are in the store, except the last ones if
    /// the records could not be written. That layer and those after it are not, and the store is no worse than
    /// before. If only the sync of the records failed, and they could not be replaced either, their layers are stored
    /// all the same.
    pub fn commit_layers(
        &self,
        layers: Vec<StagedLayer>,
        cancel: &Cancel,
    ) -> Result<Vec<(LayerId, LayerCommit)>, StoreError> {
        match self.commit_layers_of(vec![layers], cancel).pop() {
            Some(CommittedLayers {
                error: Some(error), ..
            }) => Err(error),
            Some(CommittedLayers { layers, .. }) => Ok(layers),
            None => Ok(Vec::new()),
        }
    }

    /// The same for several images, with few saves of the records. After an error that is not of one image only, the
    /// following images are not tried, and have no result.
    pub fn commit_layers_of(
        &self,
        mut images: Vec<Vec<StagedLayer>>,
        cancel: &Cancel,
    ) -> Vec<CommittedLayers> {
        let prepared = match images.iter().all(Vec::is_empty) {
            true => Ok(None),
            false => self
                .sync_staged(images.iter_mut().flatten(), [])
                .and_then(|()| clone_mount(self.layout.root()).map(Some)),
        };
        match prepared {
            Ok(None) => images.iter().map(|_| CommittedLayers::nothing(None)).collect(),
            Ok(Some(root)) => self.commit_synced(images, &root, cancel),
            Err(error) => vec![CommittedLayers::nothing(Some(error))],
        }
    }

    /// The same for durable layers, with a clone of the graph root's mount.
    pub(super) fn commit_synced(
        &self,
        images: Vec<Vec<StagedLayer>>,
        root: &OwnedFd,
        cancel: &Cancel,
    ) -> Vec<CommittedLayers> {
        let mut committed: Vec<_> = images.iter().map(|_| CommittedLayers::nothing(None)).collect();
        let layers: Vec<(usize, StagedLayer)> = images
            .into_iter()
            .enumerate()
            .flat_map(|(image, layers)| layers.into_iter().map(move |layer| (image, layer)))
            .collect();
        let mut results = Vec::with_capacity(layers.len());
        let mut fatal = None;
        while results.len() < layers.len() && fatal.is_none() {
            if !results.is_empty() {
                std::thread::sleep(PAUSE);
            }
            fatal = self
                .commit_some(&layers, root, cancel, &mut results, &mut committed)
                .err();
        }
        if let Some(error) = fatal {
            // The first layer without a result, and without an error of its image.
            let mut failed = layers.iter().enumerate().filter(|(index, (image, _))| {
                !matches!(results.get(*index), Some(Some(_))) && committed[*image].error.is_none()
            });
            let image = failed.next().map_or(0, |(_, (image, _))| *image);
            committed.truncate(image + 1);
            committed[image].error = Some(error);
        }
        // Dropping a layer removes what it replaced, which may take long; the lock is free during that.
        for ((image, layer), result) in layers.into_iter().zip(results) {
            let id = layer.spec.id();
            let commit = match result {
                Some(PutResult::Placed) => LayerCommit::Committed,
                Some(PutResult::AlreadyThere) => LayerCommit::AlreadyThere,
                Some(PutResult::ParentMissing) => LayerCommit::ParentMissing(Box::new(layer)),
                None => continue,
            };
            if let Some(committed) = committed.get_mut(image) {
                committed.layers.push((id, commit));
            }
        }
        committed
    }

    /// Commits the first layer without a result, and more while the lock may be held. An error of one image is put
    /// into `committed`; its following layers have the result `None`.
    fn commit_some(
        &self,
        layers: &[(usize, StagedLayer)],
        root: &OwnedFd,
        cancel: &Cancel,
        results: &mut Vec<Option<PutResult>>,
        committed: &mut [CommittedLayers],
    ) -> Result<(), StoreError> {
        let lock = LayersLock::acquire(&self.layout, cancel)?;
        let since = Instant::now();
        if self.first_sweep_of_layers() {
            atomic_file::sweep(&self.layout.layers(), "layers.json");
        }
        let mut batch = LayerBatch::new(self, root, &lock)?;
        let first = results.len();
        let mut fatal = Ok(());
        for (image, layer) in &layers[first..] {
            if results.len() > first && since.elapsed() >= HOLD {
                break;
            }
            let error = &mut committed[*image].error;
            if error.is_some() {
                results.push(None);
                continue;
            }
            match batch.put(layer) {
                Ok(result) => results.push(Some(result)),
                Err(failed) if failed.is_of_one_image() => {
                    *error = Some(failed);
                    results.push(None);
                }
                Err(failed) => {
                    fatal = Err(failed);
                    break;
                }
            }
        }
        let ended = batch.end();
        if ended.is_err() {
            let placed = results[first..]
                .iter_mut()
                .filter(|result| **result == Some(PutResult::Placed));
            placed.for_each(|result| *result = None);
        }
        fatal.and(ended)
    }

    /// [`Store::has_layer`], which examines each layer once; `known` are those that were found under this lock.
    pub(super) fn has_known_layer(
        &self,
        table: &LayerTable,
        id: &LayerId,
        known: &mut HashSet<LayerId>,
    ) -> Result<bool, StoreError> {
        if known.contains(id) {
            return Ok(true);
        }
        let has = self.has_layer(table, id)?;
        if has {
            known.insert(*id);
        }
        Ok(has)
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

impl CommittedLayers {
    fn nothing(error: Option<StoreError>) -> Self {
        Self {
            layers: Vec::new(),
            error,
        }
    }
}
