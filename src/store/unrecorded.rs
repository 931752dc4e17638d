//! Removes what a killed run moved into the store without recording it.
//!
//! A run first moves the files of many layers or images into the store, and then records all of them. Before that it
//! notes their ids in its stage. The next run finds the dead stage, and removes from the store those that have no
//! record. No live program fills a directory without a record while we hold the lock: containers/storage records a
//! layer or an image before it creates its files.
//!
//! The wait for a lock is short, because another program may hold it for minutes. Then the notes stay in the stage for a
//! later run. These directories waste space only, and a commit of the same id replaces them.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Dir;

use super::error::{StoreError, io_error};
use super::images_json::ImageTable;
use super::layer_removal::take_out;
use super::layers_json::LayerTable;
use super::layout::{IMAGES, Layout};
use super::root_mount::{clone_mount, rename};
use super::{atomic_file, layer_dir, lock};
use crate::oci::{ImageId, LayerId};

/// How long a run waits for a lock at its start.
const PATIENCE: Duration = Duration::from_secs(2);

/// The ends of the names of notes.
const LAYER: &str = ".layer";
const IMAGE: &str = ".image";

/// The name of the note of a layer.
pub(super) fn layer_note(id: &LayerId) -> String {
    format!("{id}{LAYER}")
}

/// The name of the note of an image.
pub(super) fn image_note(id: &ImageId) -> String {
    format!("{id}{IMAGE}")
}

/// Whether a name in a stage is that of a note.
pub(super) fn is_note(name: &str) -> bool {
    name.ends_with(LAYER) || name.ends_with(IMAGE)
}

/// Moves the layers and images that the notes of a dead stage name into the stage, if they have no record. Returns
/// false if a lock is busy.
pub(super) fn remove(layout: &Layout, fd: &OwnedFd, stage: &Path) -> Result<bool, StoreError> {
    let (mut layers, mut images) = (Vec::new(), Vec::new());
    for entry in Dir::read_from(fd).map_err(io_error("list", stage))? {
        let entry = entry.map_err(io_error("list", stage))?;
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        layers.extend(name.strip_suffix(LAYER).and_then(LayerId::from_hex));
        images.extend(name.strip_suffix(IMAGE).and_then(ImageId::from_hex));
    }
    // Most dead stages are of runs that were killed before or after a commit.
    layers.retain(|id| layout.layer(id).exists() || layout.tar_split(id).exists());
    images.retain(|id| layout.image(id).exists());
    if layers.is_empty() && images.is_empty() {
        return Ok(true);
    }
    let root = clone_mount(layout.root())?;
    Ok(remove_layers(layout, &root, &layers, stage)? && remove_images(layout, &root, &images, stage)?)
}

fn remove_layers(layout: &Layout, root: &OwnedFd, ids: &[LayerId], stage: &Path) -> Result<bool, StoreError> {
    if ids.is_empty() {
        return Ok(true);
    }
    let Some(_lock) = lock::exclusive_within(&layout.layers().join("layers.lock"), PATIENCE)? else {
        return Ok(false);
    };
    let table = LayerTable::read(layout)?;
    // An incomplete record belongs to a dead writer of another program, and is deleted with its layer.
    for id in ids.iter().filter(|id| table.find(id).is_none()) {
        take_out(layout, root, id, || trash(layout, stage))?;
        tracing::info!(layer = %id, "removed a layer that a killed run did not record");
    }
    Ok(true)
}

fn remove_images(layout: &Layout, root: &OwnedFd, ids: &[ImageId], stage: &Path) -> Result<bool, StoreError> {
    if ids.is_empty() {
        return Ok(true);
    }
    let Some(_lock) = lock::exclusive_within(&layout.images().join("images.lock"), PATIENCE)? else {
        return Ok(false);
    };
    let table = ImageTable::read(layout)?;
    for id in ids.iter().filter(|id| table.find(id).is_none()) {
        if layer_dir::exists(&layout.image(id))? {
            let from = Path::new(IMAGES).join(id.to_string());
            rename(
                layout,
                root,
                &from,
                &trash(layout, stage)?,
                "move unrecorded data to",
            )?;
            tracing::info!(image = %id, "removed the data of an image that a killed run did not record");
        }
    }
    Ok(true)
}

/// A new path in the stage, relative to the graph root.
fn trash(layout: &Layout, stage: &Path) -> Result<PathBuf, StoreError> {
    let dir = stage.join("removed");
    atomic_file::create_dir(&dir, 0o700)?;
    let path = dir.join(format!("{:016x}", rand::random::<u64>()));
    Ok(path.strip_prefix(layout.root()).unwrap_or(&path).to_owned())
}
