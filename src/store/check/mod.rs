//! Reads what the store has of an image again, all of it, and names each damage.
//!
//! ```text
//! tar-split + files ─Assembler→ tar ─hash→ the diffID?                                   content
//!                                └─TarReader→ TarEntry ─ExpectedTree→ what each inode must be ─Walk→ the tree   tree
//! overlay/<id>/{link,lower,work,empty}, overlay/l/<link>                                 frame
//! layers.json, images.json; big data                                                     record, data
//! ```
//!
//! Nothing is locked and nothing is written. The headers are read by the code that unpacks, so that a layer is compared
//! with what unpacking it would have made. A layer that goes away, or is replaced, while it is read is
//! [`LayerState::Missing`] and not damaged.
//!
//! Memory: some 150 bytes for each entry of a layer, and one buffer.

mod big_data;
mod damage;
mod expected_inode;
mod expected_tree;
mod file_compare;
mod layer_content;
mod layer_links;
mod store_records;
mod tree_compare;

use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::AtomicU64;

pub use damage::{Damage, LayerDamage};
pub(super) use layer_links::true_link;

use super::error::StoreError;
use super::expected_layer::{ExpectedLayer, LayerBlob};
use super::inventory::Inventory;
use super::layers_json::{LayerTable, LayerView};
use crate::cancel::Cancel;
use damage::DamageList;
use layer_content::LayerReader;
use store_records::check_record;

/// What reading a layer showed.
#[derive(Clone, Debug)]
pub enum LayerState {
    /// It is what its image's config says.
    Intact,
    /// Its files and its tar-split agree, but do not make up the tar of its diffID, and the tar has what podman writes such
    /// tar-splits for: sparse files, links with a size and the like. Or the tar's entries replace each other, so that its headers do not say
    /// what the tree must be; then only files' contents were compared.
    Unproven(String),
    /// There is no such layer, or no longer.
    Missing,
    /// Something is wrong with it.
    Damaged(LayerDamage),
}

impl Inventory {
    /// What is wrong with that which surrounds the layer's tree, and with what its record says of the image's `blob`; `None`
    /// if there is no such layer, or no longer. Reads a few small files.
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
        let mut found = layer_links::check(self, layer)?;
        let origin = blob
            .map(|blob| self.flaw_of_origin(view, layer, blob))
            .transpose()?;
        found.extend(origin.flatten().map(Damage::Record));
        let is_there = found.is_empty() || is_recorded(&LayerTable::read(&store.layout)?);
        Ok(is_there.then_some(found))
    }

    /// Reads the layer: its record, its tar-split and all its files. `read` counts the bytes of its tar.
    ///
    /// # Errors
    /// When the run is to stop, or the store cannot be read.
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

    /// Tells a layer's directory from one that took its layer.
    fn inode_of(&self, layer: &ExpectedLayer) -> Option<u64> {
        let metadata =
            std::fs::symlink_metadata(self.at(layer.location).layout.layer(&layer.id).join("diff"));
        metadata.ok().map(|metadata| metadata.ino())
    }
}
