//! Recreates the tar of a stored layer from its tree and tar-split, to unpack another layer from it instead of a
//! download.
//!
//! The new layer has the same content on other parents, or replaces a layer with damaged attributes. The unpacker
//! compares the diffID, so the stored layer needs no check before.

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

type Listener = fn(FileEvent<'_>) -> Result<(), TarSplitError>;

/// The tar of a layer. It can be read again from its start; other seeks fail.
pub struct LayerTar {
    tar_split: File,
    diff: Arc<OwnedFd>,
    tar: Assembler<File, Listener>,
    position: u64,
}

impl Inventory {
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
