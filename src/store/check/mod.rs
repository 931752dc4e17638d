//! Reads what the store has of an image again, all of it, and names each damage.
//!
//! ```text
//! tar-split + files ─Assembler→ tar ─hash→ the diffID?                                   content
//!                                └─Entries→ Entry ─Expectations→ what each inode must be ─Walk→ the tree   tree
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
mod expected_inodes;
mod file_compare;
mod layer_content;
mod layer_links;
mod store_records;
mod tree_compare;

use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::AtomicU64;

pub use damage::{Damage, LayerDamage};
pub(super) use layer_links::true_link;

use super::additional_stores::Home;
use super::error::StoreError;
use super::inventory::Inventory;
use super::layers_json::{LayerTable, LayerView};
use crate::cancel::Cancel;
use crate::oci::{DiffId, Digest, LayerId};
use damage::Found;
use layer_content::Layer;
use store_records::check_record;

/// Where a layer stands, and what it must hold, as an image's config says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerPlace {
    /// Its id in the store.
    pub id: LayerId,
    /// The layer below.
    pub parent: Option<LayerId>,
    /// Digest of its uncompressed tar.
    pub diff_id: DiffId,
    /// The store that has it.
    pub home: Home,
}

/// The blob of a layer, as an image's manifest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerBlob {
    /// Digest of the blob.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: Option<u64>,
}

/// What reading a layer showed.
#[derive(Clone, Debug)]
pub enum LayerState {
    /// It is what its image's config says.
    Whole,
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
    pub fn check_frame(
        &self,
        place: &LayerPlace,
        blob: Option<&LayerBlob>,
    ) -> Result<Option<Vec<Damage>>, StoreError> {
        let is_recorded = |table: &LayerTable| table.find(&place.id).is_some_and(LayerView::is_complete);
        let store = self.at(place.home);
        let Some(view) = store.records.find(&place.id).filter(|view| view.is_complete()) else {
            return Ok(None);
        };
        let mut found = layer_links::check(self, place)?;
        let origin = blob
            .map(|blob| self.flaw_of_origin(view, place, blob))
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
        place: &LayerPlace,
        cancel: &Cancel,
        read: &AtomicU64,
    ) -> Result<LayerState, StoreError> {
        let store = self.at(place.home);
        let Some(view) = store.records.find(&place.id).filter(|view| view.is_complete()) else {
            return Ok(LayerState::Missing);
        };
        let before = self.inode_of(place);
        let mut found = Found::default();
        check_record(view, place, &mut found);
        let layer = Layer {
            layout: &store.layout,
            view,
            place,
            cancel,
            read,
        };
        let body = layer.check(&mut found);
        let is_gone = || -> Result<bool, StoreError> {
            let table = LayerTable::read(&store.layout)?;
            let recorded = table.find(&place.id).is_some_and(LayerView::is_complete);
            Ok(!recorded || self.inode_of(place) != before)
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
            (None, None) => Ok(LayerState::Whole),
        }
    }

    /// Tells a layer's directory from one that took its place.
    fn inode_of(&self, place: &LayerPlace) -> Option<u64> {
        let metadata = std::fs::symlink_metadata(self.at(place.home).layout.layer(&place.id).join("diff"));
        metadata.ok().map(|metadata| metadata.ino())
    }
}
