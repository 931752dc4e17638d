//! Which of the stores that CRI-O sees: its graph root, or one of the additional image stores.
//!
//! An additional image store is laid out as a graph root is, and only read: nobody takes its locks, sweeps it, repairs it or
//! writes into it. containers/storage searches the graph root first and then the additional ones in their order, for
//! names and for layers; an image whose record is in the graph root hides, since 1.46, the additional stores' names of it
//! (`store.go`: `Image`).
//!
//! Here an image in an additional store counts as present. Its layers are no parents for what is pulled but copied, by way
//! of their tars: then the graph root holds a whole image, whatever becomes of the other store, and nothing is fetched
//! that is on the node.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::StoreError;
use super::images_json::ImageTable;
use super::layer_dir;
use super::layers_json::LayerTable;
use super::layout::Layout;

/// The additional image stores that containers/storage sees, in its order, and what is to be said of the others.
#[derive(Debug, Default)]
pub(super) struct AdditionalStores {
    pub(super) layouts: Vec<Layout>,
    pub(super) warnings: Vec<String>,
}

impl AdditionalStores {
    /// Examines those at `paths`; writes nothing.
    ///
    /// # Errors
    /// When one is no directory or its records do not parse. With either, containers/storage opens no store at all
    /// (`overlay.go`: `parseOptions`; `images.go`: `newROImageStore`); and an image that is pulled while one is out of
    /// sight hides its other names.
    pub(super) fn open(paths: &[PathBuf], graph_root: &Path) -> Result<Self, StoreError> {
        let mut stores = Self::default();
        for path in paths {
            let unusable = |reason: String| StoreError::AdditionalStore {
                root: path.clone(),
                reason,
            };
            let root = fs::canonicalize(path).map_err(|error| unusable(error.to_string()))?;
            if !root.is_dir() {
                return Err(unusable("it is not a directory".to_owned()));
            }
            let is_known = stores.layouts.iter().any(|known| known.root() == root);
            if is_known || root == graph_root {
                continue;
            }
            let layout = Layout::new(root);
            LayerTable::read(&layout)?;
            let has_images = ImageTable::read(&layout)?.views().next().is_some();
            match missing_lock(&layout)? {
                None => stores.layouts.push(layout),
                Some(_) if !has_images => {}
                Some(lock) => stores.warnings.push(format!(
                    "images in the additional store `{}` do not count: `{}` is missing, which CRI-O makes when it opens the store, or else does without the store",
                    path.display(),
                    lock.display()
                )),
            }
        }
        Ok(stores)
    }
}

/// containers/storage makes the lock files of a store that it only reads, and where it cannot, on a read-only file system,
/// it goes on without the store's images (`store.go`: `load`).
fn missing_lock(layout: &Layout) -> Result<Option<PathBuf>, StoreError> {
    for lock in [
        layout.images().join("images.lock"),
        layout.layers().join("layers.lock"),
    ] {
        if !layer_dir::exists(&lock)? {
            return Ok(Some(lock));
        }
    }
    Ok(None)
}
