//! Recreates the tar of a stored layer from its tree and tar-split, to unpack another layer from it instead of a
//! download.
//!
//! The new layer has the same content on other parents, or replaces a layer with damaged attributes. The unpacker
//! compares the diffID, so the stored layer needs no check before.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::atomic_file;
use super::error::{StoreError, io_error};
use super::inventory::Inventory;
use super::layers_json::LayerView;
use super::store::Store;
use super::store_location::StoreLocation;
use super::tar_split::{Assembler, FileEvent, TarSplitError};
use super::unpack::DIRECTORY;
use crate::oci::{DiffId, Digest, LayerId};

/// A layer whose tar can be recreated, as its record describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredLayer {
    /// The store that has it.
    pub location: StoreLocation,
    /// Its id.
    pub id: LayerId,
    /// SHA-256 of its tar.
    pub diff_id: DiffId,
    /// Length of its tar in bytes.
    pub tar_size: u64,
    /// Digest and length of the blob that it was unpacked from.
    pub blob: Option<(Digest, u64)>,
}

type Listener = fn(FileEvent<'_>) -> Result<(), TarSplitError>;

/// The tar of a layer. It can be read again from its start; other seeks fail.
pub struct LayerTar {
    tar_split: File,
    diff: Arc<OwnedFd>,
    tar: Assembler<File, Listener>,
    position: u64,
}

impl Inventory {
    /// Every complete layer whose record states its tar, by diffID: those of the graph root first, and in each store
    /// the mountable ones first.
    pub fn stored_layers(&self) -> HashMap<DiffId, Vec<StoredLayer>> {
        let mut layers: HashMap<DiffId, Vec<StoredLayer>> = HashMap::new();
        for location in self.locations() {
            let store = self.at(location);
            let complete = || store.records.views().filter(|view| view.is_complete());
            let stored = complete().filter_map(|view| StoredLayer::of(view, location));
            let (mountable, others): (Vec<_>, Vec<_>) =
                stored.partition(|layer| store.layer(&layer.id).is_some());
            for layer in mountable.into_iter().chain(others) {
                layers.entry(layer.diff_id).or_default().push(layer);
            }
        }
        layers
    }

    /// The layers that have this tar according to their records, or whose id is `own`, with the store of each.
    pub fn layers_with(&self, diff_id: DiffId, own: &LayerId) -> Vec<(StoreLocation, LayerId)> {
        let own = own.to_string();
        let is_candidate =
            |view: &&LayerView| view.is_complete() && (view.diff_id() == Some(diff_id) || view.id == own);
        let of_store = |location| {
            let ids = self.at(location).records.views().filter(&is_candidate);
            ids.filter_map(move |view| Some((location, LayerId::from_hex(&view.id)?)))
        };
        self.locations().flat_map(of_store).collect()
    }
}

impl StoredLayer {
    fn of(view: &LayerView, location: StoreLocation) -> Option<Self> {
        let digest = view.compressed_diff_digest.as_deref();
        let digest = digest.and_then(|digest| digest.parse().ok());
        let size = view.compressed_size.and_then(|size| u64::try_from(size).ok());
        Some(Self {
            location,
            id: LayerId::from_hex(&view.id)?,
            diff_id: view.diff_id()?,
            tar_size: view.size()?,
            blob: digest.zip(size),
        })
    }
}

impl Store {
    /// Opens the tar of a layer; `None` if it has no tree or no tar-split, or if those names belong to something
    /// else.
    pub fn open_tar(&self, location: StoreLocation, layer: &LayerId) -> Result<Option<LayerTar>, StoreError> {
        let layout = match location {
            StoreLocation::GraphRoot => &self.layout,
            StoreLocation::Additional(index) => &self.additional.layouts[index],
        };
        let (split_path, diff_path) = (layout.tar_split(layer), layout.layer(layer).join("diff"));
        let tar_split = match atomic_file::open(&split_path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("open", &split_path)(error)),
        };
        let diff = match rustix::fs::open(&diff_path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(diff) => Arc::new(diff),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(errno) => return Err(io_error("open", &diff_path)(errno)),
        };
        let again = tar_split.try_clone().map_err(io_error("open", &split_path))?;
        let tar = Assembler::new(again, Arc::clone(&diff), FileEvent::fail_if_damaged as Listener);
        let position = 0;
        Ok(Some(LayerTar {
            tar_split,
            diff,
            tar,
            position,
        }))
    }
}

impl Read for LayerTar {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.tar.read(out)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for LayerTar {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match to {
            SeekFrom::Current(0) => {}
            SeekFrom::Start(0) => {
                // The clone shares its offset.
                self.tar_split.rewind()?;
                let again = self.tar_split.try_clone()?;
                self.tar = Assembler::new(
                    again,
                    Arc::clone(&self.diff),
                    FileEvent::fail_if_damaged as Listener,
                );
                self.position = 0;
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok(self.position)
    }
}
