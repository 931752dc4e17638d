//! Verifies stored layers and images: reads every file again, compares it with record, tar-split and config, and
//! reports each damage.
//!
//! ```text
//! tar-split + files ─Assembler→ tar ─hash→ the diffID?                                        layer_content
//!                                └─TarReader→ TarEntry ─→ ExpectedTree of ExpectedInodes ─→ tree_comparison
//! overlay/<id>/{link,lower,work,empty}, overlay/l/<link>                                      layer_links
//! layers.json, images.json; big data                                                          store_records, big_data
//! ```
//!
//! Takes no lock and writes nothing. The code that unpacks also reads the headers here, so a layer is compared with
//! what unpacking would have created. A layer that is removed or replaced while it is read is [`LayerState::Missing`]
//! and not damaged.
//!
//! Memory: about 150 bytes for each entry of a layer, and one buffer.

mod big_data;
mod damage;
mod expected_inode;
mod expected_tree;
mod file_comparison;
mod layer_content;
mod overlay_files;
mod store_records;
mod tree_comparison;

use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::AtomicU64;

pub use damage::{Damage, LayerDamage};
pub(super) use overlay_files::true_link;

use super::error::StoreError;
use super::expected_layer::{ExpectedLayer, LayerBlob};
use super::inventory::Inventory;
use super::layers_json::{LayerTable, LayerView};
use crate::cancel::Cancel;
use damage::DamageList;
use layer_content::LayerReader;
use store_records::check_record;

/// The result of checking a layer.
#[derive(Clone, Debug)]
pub enum LayerState {
    /// It matches its image's config.
    Intact,
    /// Files and tar-split agree with each other, but do not form the tar of the diffID, and the tar has entries for
    /// which podman writes such tar-splits: sparse files, links with a size and the like. Or entries of the tar
    /// replace each other, so that its headers do not determine the tree; then only the contents of files were
    /// compared.
    Unproven(String),
    /// The store does not have this layer, or it was removed meanwhile.
    Missing,
    /// It is damaged.
    Damaged(LayerDamage),
}

impl Inventory {
    /// Checks link files and directories next to the layer's tree, and the blob in its record against the image's
    /// `blob`; `None` if the store does not have the layer. Reads a few small files.
    pub fn check_links(
        &self,
        layer: &ExpectedLayer,
        blob: Option<&LayerBlob>,
    ) -> Result<Option<Vec<Damage>>, StoreError> {
        let is_recorded = |table: &LayerTable| table.find(&layer.id).is_some_and(LayerView::is_complete);
        let store = self.at(layer.location);
        let Some(view) = store.records.find(&layer.id).filter(|view| view.is_complete()) else {
            return Ok(None);
        };
        let mut found = overlay_files::check(self, layer)?;
        let origin = blob
            .map(|blob| self.flaw_of_origin(view, layer, blob))
            .transpose()?;
        found.extend(origin.flatten().map(Damage::Record));
        let is_there = found.is_empty() || is_recorded(&LayerTable::read(&store.layout)?);
        Ok(is_there.then_some(found))
    }

    /// Checks the layer: its record, its tar-split and all its files. `read` counts the bytes of its tar.
    ///
    /// # Errors
    /// If the run is stopped, or the store cannot be read.
    pub fn check_layer(
        &self,
        layer: &ExpectedLayer,
        cancel: &Cancel,
        read: &AtomicU64,
    ) -> Result<LayerState, StoreError> {
        let store = self.at(layer.location);
        let Some(view) = store.records.find(&layer.id).filter(|view| view.is_complete()) else {
            return Ok(LayerState::Missing);
        };
        let before = self.inode_of(layer);
        let mut found = DamageList::default();
        check_record(view, layer, &mut found);
        let reader = LayerReader {
            layout: &store.layout,
            view,
            expected: layer,
            cancel,
            read,
        };
        let body = reader.check(&mut found);
        let is_gone = || -> Result<bool, StoreError> {
            let table = LayerTable::read(&store.layout)?;
            let recorded = table.find(&layer.id).is_some_and(LayerView::is_complete);
            Ok(!recorded || self.inode_of(layer) != before)
        };
        let unproven = match body {
            Err(error @ StoreError::Cancelled(_)) => return Err(error),
            Err(_) if is_gone()? => return Ok(LayerState::Missing),
            body => body?,
        };
        match (found.into_damage(), unproven) {
            (Some(_), _) if is_gone()? => Ok(LayerState::Missing),
            (Some(damage), _) => Ok(LayerState::Damaged(damage)),
            (None, Some(reason)) => Ok(LayerState::Unproven(reason)),
            (None, None) => Ok(LayerState::Intact),
        }
    }

    /// The inode of a layer's `diff`, which differs if the layer was replaced.
    fn inode_of(&self, layer: &ExpectedLayer) -> Option<u64> {
        let metadata =
            std::fs::symlink_metadata(self.at(layer.location).layout.layer(&layer.id).join("diff"));
        metadata.ok().map(|metadata| metadata.ino())
    }
}
