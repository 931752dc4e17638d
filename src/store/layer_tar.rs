//! The tar of a layer that is in the store, as a stream to unpack another layer from: the same content on other parents,
//! or its own, where only the tree's attributes are damaged.
//!
//! Whoever unpacks it compares the diffID, so that nothing has to be known of the layer before.

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
use crate::oci::{DiffId, LayerId};

type Strict = fn(FileEvent<'_>) -> Result<(), TarSplitError>;

/// A layer's tar. It can be read again from its start, and sought nowhere else.
pub struct LayerTar {
    tar_split: File,
    diff: Arc<OwnedFd>,
    tar: Assembler<File, Strict>,
    position: u64,
}

impl Inventory {
    /// The layers that should hold this tar, as their records or the id of the layer itself say, with the store that has
    /// each.
    pub fn layers_with(&self, diff_id: DiffId, own: &LayerId) -> Vec<(StoreLocation, LayerId)> {
        let own = own.to_string();
        let is_apt =
            |view: &&LayerView| view.is_complete() && (view.diff_id() == Some(diff_id) || view.id == own);
        let of_store = |location| {
            let ids = self.at(location).records.views().filter(&is_apt);
            ids.filter_map(move |view| Some((location, LayerId::from_hex(&view.id)?)))
        };
        self.locations().flat_map(of_store).collect()
    }
}

impl Store {
    /// Opens the tar of a layer; `None` if that has no tree or no tar-split, or what bears their names is neither.
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
        let tar = Assembler::new(again, Arc::clone(&diff), FileEvent::fail_if_damaged as Strict);
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
                    FileEvent::fail_if_damaged as Strict,
                );
                self.position = 0;
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok(self.position)
    }
}
