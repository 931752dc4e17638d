//! Which of the stores that CRI-O sees: its graph root, or one of the additional image stores.
//!
//! An additional image store is laid out as a graph root is, and only read: nobody takes its locks, sweeps it, mends it or
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
use super::layers_json::{LayerTable, LayerView};
use super::layout::Layout;
use crate::oci::LayerId;

/// Where an image's or a layer's record is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Home {
    /// In the graph root.
    #[default]
    GraphRoot,
    /// In this one of the additional image stores.
    Additional(usize),
}

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

impl LayerTable {
    /// Whether the layer's way to those below it ends nowhere: it names them as they were called in the store in which it
    /// found them, and that may be an additional one that is gone. `self` are the records of `layout`.
    pub(super) fn flaw_of_way(
        &self,
        layout: &Layout,
        view: &LayerView,
        id: &LayerId,
        stores: &[&Layout],
    ) -> Result<Option<String>, StoreError> {
        let mut lost = layer_dir::lost_names(layout, id, stores)?;
        let mut next = view.parent().and_then(LayerId::from_hex);
        // As many as `lower` may name; records may go in a circle.
        let mut rounds = layer_dir::DEPTH_LIMIT;
        // Short names that a crash took are made again, in the graph root (`overlay.go`: `recreateSymlinks`).
        while let Some(below) = next.filter(|_| !lost.is_empty() && rounds > 0) {
            rounds -= 1;
            if let Some(link) = layer_dir::link(layout, &below)? {
                lost.retain(|name| name.strip_prefix("l/") != Some(&link));
            }
            let view = self.find(&below);
            next = view.and_then(LayerView::parent).and_then(LayerId::from_hex);
        }
        Ok(lost
            .pop()
            .map(|name| format!("its `lower` names `{name}`, which no store has")))
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
