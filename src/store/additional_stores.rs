//! Opens the additional image stores, which CRI-O reads besides its graph root.
//!
//! An additional image store has the layout of a graph root and is only read: its locks are not taken, and nothing in
//! it is removed, repaired or written. containers/storage searches the graph root first and then the additional
//! stores in their order, for names and for layers. Since 1.46 an image whose record is in the graph root hides its
//! names in the additional stores (`store.go`: `Image`).
//!
//! An image in an additional store counts as present. Its layers do not become parents of pulled layers. They are
//! copied through their tars: then the graph root has the whole image, even if the other store disappears, and no
//! byte that is on the node is downloaded.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::StoreError;
use super::images_json::ImageTable;
use super::layer_dir;
use super::layers_json::LayerTable;
use super::layout::Layout;

/// The additional image stores that containers/storage uses, in its order, and warnings about the others.
#[derive(Debug, Default)]
pub(super) struct AdditionalStores {
    pub(super) layouts: Vec<Layout>,
    pub(super) warnings: Vec<String>,
}

impl AdditionalStores {
    /// Examines the stores at `paths`; writes nothing.
    ///
    /// # Errors
    /// If one is not a directory or its records do not parse. In both cases containers/storage opens no store at all
    /// (`overlay.go`: `parseOptions`; `images.go`: `newROImageStore`). Besides, an image that is pulled while a store
    /// is unavailable would hide its other names.
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
                    "images in the additional store `{}` are ignored: CRI-O needs `{}`, and on a read-only file system it skips a store without that file",
                    path.display(),
                    lock.display()
                )),
            }
        }
        Ok(stores)
    }
}

/// containers/storage creates the lock files of a store that it only reads. Where it cannot, on a read-only file
/// system, it continues without the store's images (`store.go`: `load`).
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
