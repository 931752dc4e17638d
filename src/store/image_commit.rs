//! Commits an image: stores manifest, config and manifest list as big data, then its record (section 9.2, P4).
//!
//! This is the way of one image, new or not; `image_batch.rs` has a faster one for many new images. Both locks are
//! held. The record comes last and in one rename, because a record whose files are missing breaks
//! `crictl images` for every image.

use std::collections::HashSet;

use super::error::StoreError;
use super::image_record::{BigDataItem, MANIFEST, ManifestSignatures, NewImage};
use super::images_json::{ImageTable, ImageView};
use super::layers_json::LayerTable;
use super::lock::{ImagesLock, SharedLayersLock};
use super::store::Store;
use super::{atomic_file, go_time};
use crate::cancel::Cancel;
use crate::oci::{Content, ImageId, Layer, LayerId, Reference, ResolvedImage};

/// The result of committing an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageCommit {
    /// It is in the store, under its name.
    Committed(ImageId),
    /// A layer of it is not in the store, or another program removed it. The caller must stage and commit that layer,
    /// then the image again.
    ChainMissing {
        /// The lowest layer that is missing.
        layer: LayerId,
    },
}

impl Store {
    /// Stores `image` under `name` if all its layers are stored. An existing record is completed and gets the name.
    /// Another image with that name loses it. Stored signatures stay if `image` has none, see `image_signatures.rs`.
    ///
    /// `cancel` ends the wait for the locks and nothing else.
    pub fn commit_image(
        &self,
        image: &ResolvedImage,
        name: &Reference,
        cancel: &Cancel,
    ) -> Result<ImageCommit, StoreError> {
        self.put_image(image, name, false, cancel)
    }

    /// The same, but an existing record with another top layer is corrected, unless that layer is the top of a chain
    /// with the same content.
    pub fn repair_image(
        &self,
        image: &ResolvedImage,
        name: &Reference,
        cancel: &Cancel,
    ) -> Result<ImageCommit, StoreError> {
        self.put_image(image, name, true, cancel)
    }

    fn put_image(
        &self,
        image: &ResolvedImage,
        name: &Reference,
        repairs: bool,
        cancel: &Cancel,
    ) -> Result<ImageCommit, StoreError> {
        let id = image.id();
        let chain = image.layer_ids();
        let (layers, table) = loop {
            let layers = SharedLayersLock::acquire(&self.layout, cancel)?;
            let table = LayerTable::read(&self.layout)?;
            if let Some(layer) = self.missing_layer(&table, &chain, &mut HashSet::new())? {
                return Ok(ImageCommit::ChainMissing { layer });
            }
            if self.durable.has_all(&chain) {
                break (layers, table);
            }
            // The sync may take seconds, and other programs need the lock. They may remove a layer in the meantime.
            drop(layers);
            self.make_durable(&chain)?;
        };
        let lock = ImagesLock::acquire(&self.layout, &layers, cancel)?;
        if self.first_sweep_of_images() {
            atomic_file::sweep(&self.layout.images(), "images.json");
        }
        let mut images = ImageTable::read(&self.layout)?;
        let top = chain.last().map(|layer| layer.to_string());
        if let Some(existing) = images.find(&id) {
            let recorded = existing.layer.as_deref().filter(|layer| !layer.is_empty());
            let is_chain = || table.is_chain(recorded, image.layers.iter().map(Layer::diff_id));
            if recorded != top.as_deref() && (!repairs || is_chain()) {
                return Err(StoreError::Conflict {
                    what: format!("image {id}"),
                    reason: format!("its top layer is {}", recorded.unwrap_or("none")),
                });
            }
        }
        let signatures = self.signatures_to_put(&id, image.manifest.digest(), &image.signatures, &images)?;
        let mut items = items(image);
        items.extend(signatures.items());
        let is_new = images.find(&id).is_none();
        let record = self.record(image, name, &items, &signatures, &images)?;
        let put = self.put_items(&id, &items, &mut images, &lock, |images| images.put(&record));
        if put.is_err() && is_new {
            self.roll_back(&id);
        }
        put.map(|_| ImageCommit::Committed(id))
    }

    /// The lowest layer of the chain that is not stored.
    pub(super) fn missing_layer(
        &self,
        table: &LayerTable,
        chain: &[LayerId],
        known: &mut HashSet<LayerId>,
    ) -> Result<Option<LayerId>, StoreError> {
        for layer in chain {
            if !self.has_known_layer(table, layer, known)? {
                return Ok(Some(*layer));
            }
        }
        Ok(None)
    }

    /// What the image's record states, for a new one or an existing one.
    pub(super) fn record<'i>(
        &self,
        image: &ResolvedImage,
        name: &Reference,
        items: &'i [BigDataItem<'i>],
        signatures: &'i ManifestSignatures,
        images: &ImageTable,
    ) -> Result<NewImage<'i>, StoreError> {
        let id = image.id();
        let further_names = match images.find(&id) {
            None => self.names_in_additional_stores(&id, images)?,
            Some(_) => Vec::new(),
        };
        let created = image.created.as_deref().and_then(go_time::rewrite);
        Ok(NewImage {
            id,
            name: name.to_string(),
            further_names,
            layer: image.layer_ids().last().map(|layer| layer.to_string()),
            digest: image.digest(),
            items,
            signatures,
            created: created.unwrap_or_else(go_time::now),
        })
    }

    /// The names of the image in additional stores, which a record in the graph root hides (`additional_stores.rs`).
    /// containers/storage copies them too (`store.go`: `CreateImage`).
    fn names_in_additional_stores(
        &self,
        id: &ImageId,
        images: &ImageTable,
    ) -> Result<Vec<String>, StoreError> {
        let id = id.to_string();
        let names = |view: &ImageView| view.names.clone().unwrap_or_default();
        // With a name twice in one record, containers/storage would remove the name from the image.
        let mut used: HashSet<String> = images.views().flat_map(names).collect();
        let mut hidden = Vec::new();
        for layout in &self.additional.layouts {
            let table = ImageTable::read(layout)?;
            let own = table.views().filter(|view| view.id == id).flat_map(names);
            hidden.extend(own.filter(|name| used.insert(name.clone())));
            used.extend(table.views().flat_map(names));
        }
        Ok(hidden)
    }

    /// Removes the items of an image whose record could not be saved, under the same lock. If only the sync of the
    /// record failed, the record exists and the items stay.
    pub(super) fn roll_back(&self, id: &ImageId) {
        let is_recorded = ImageTable::read(&self.layout).map(|images| images.find(id).is_some());
        if !matches!(is_recorded, Ok(false)) {
            return;
        }
        let path = self.layout.image(id);
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(image = %id, %error, "cannot remove the big data of an image that was not stored");
            }
            _ => {}
        }
    }

    pub(super) fn write_items(&self, id: &ImageId, items: &[BigDataItem<'_>]) -> Result<(), StoreError> {
        atomic_file::create_dir(&self.layout.image(id), 0o700)?;
        // Also if it existed: the program that created it may not have synced it, or died before.
        atomic_file::sync_dir(&self.layout.images())?;
        for item in items {
            let path = self.layout.big_data(id, &item.key);
            match atomic_file::read(&path, item.bytes.len() as u64) {
                // The item is stored already, for example under another name of the image.
                Ok(Some(bytes)) if bytes == item.bytes => {}
                // An unreadable or too long file is replaced like one with other content.
                _ => atomic_file::put(&path, 0o600, item.bytes)?,
            }
        }
        // Also if all items existed, for the same reason.
        atomic_file::sync_dir(&self.layout.image(id))
    }
}

/// The items that a pull by containers/image stores, in its order (section 6.4).
pub(super) fn items(image: &ResolvedImage) -> Vec<BigDataItem<'_>> {
    fn item(key: String, content: &Content) -> BigDataItem<'_> {
        BigDataItem {
            key,
            bytes: content.bytes(),
            digest: content.digest(),
        }
    }
    let by_digest = |content: &Content| format!("{MANIFEST}-{}", content.digest());
    let mut items = vec![item(image.config.digest().to_string(), &image.config)];
    items.extend(image.list.as_ref().map(|list| item(by_digest(list), list)));
    items.push(item(by_digest(&image.manifest), &image.manifest));
    items.push(item(MANIFEST.to_owned(), &image.manifest));
    items
}
