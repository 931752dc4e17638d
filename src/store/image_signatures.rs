//! Stores and reads the signatures of images, as containers/image does after it has pulled an image.
//!
//! An image without signatures is not started where the signature policy of its namespace requires them. Its
//! signatures can be added later, without its layers.
//!
//! ```text
//! 1  images.json without the signature items that change     only if the record has them with other content
//! 2  the items
//! 3  images.json with the items and the lengths
//! ```
//!
//! containers/storage replaces the items first, so after a kill or a power loss the record does not match the files.
//! CRI-O's check after an unclean shutdown then removes the whole image. With step 1 the record matches the files at
//! each moment: the image has its old signatures, none, or the new ones.
//!
//! Signatures of another manifest of the same image are kept, where containers/image forgets them (`storage_dest.go`:
//! the `FIXME` in `CommitWithOptions`). Damaged ones are removed from the record.

use super::atomic_file;
use super::error::StoreError;
use super::image_record::{BigDataItem, ManifestSignatures};
use super::images_json::{ImageTable, ImageView};
use super::inventory::{ITEM_LIMIT, Inventory, StoredImage};
use super::layout::Layout;
use super::lock::{ImagesLock, SharedLayersLock};
use super::signature_item::SignedRecord;
use super::store::Store;
use crate::cancel::Cancel;
use crate::oci::{Digest, ImageId};

impl Inventory {
    /// The signatures of one manifest of the image, in their order, each as it was stored; none if it has none. For
    /// the manifest that the image was pulled by last these are the ones that CRI-O reads before it starts a
    /// container.
    ///
    /// # Errors
    /// [`StoreError::DamagedSignatures`] if the item is missing or damaged.
    pub fn signatures(&self, image: &StoredImage, manifest: Digest) -> Result<Vec<Vec<u8>>, StoreError> {
        let record = |image: &StoredImage| {
            let record = SignedRecord {
                layout: &self.at(image.location).layout,
                id: image.id,
                metadata: image.metadata.as_deref(),
                default: image.manifest(),
                digest_of: |key: &str| image.items.get(key)?.digest,
            };
            record.signatures(manifest)
        };
        match record(image) {
            // Another program may just have replaced them.
            Err(StoreError::DamagedSignatures { .. }) => match self.replaced(image)? {
                Some(new) => record(&new),
                None => record(image),
            },
            read => read,
        }
    }

    /// The intact signatures of an image in the graph root that was pulled by this manifest last.
    pub fn signatures_of(&self, manifest: Digest) -> Vec<Vec<u8>> {
        let mut images = self.images().iter();
        let image = images.find(|image| image.manifest() == Some(manifest));
        let signatures = image.and_then(|image| self.signatures(image, manifest).ok());
        signatures.unwrap_or_default()
    }
}

impl Store {
    /// Stores the signatures of one manifest of an image in the graph root, and replaces those that it has. An empty
    /// list keeps the ones that are intact. In any case damaged signatures are removed from the record. Returns
    /// whether anything changed.
    ///
    /// `cancel` ends the wait for the locks and nothing else.
    ///
    /// # Errors
    /// [`StoreError::Unsignable`] if the image is in an additional store only, or in none, or was not stored with this
    /// manifest.
    pub fn put_signatures(
        &self,
        id: &ImageId,
        manifest: Digest,
        signatures: &[Vec<u8>],
        cancel: &Cancel,
    ) -> Result<bool, StoreError> {
        let layers = SharedLayersLock::acquire(&self.layout, cancel)?;
        let lock = ImagesLock::acquire(&self.layout, &layers, cancel)?;
        let mut images = ImageTable::read(&self.layout)?;
        let Some(view) = images.find(id) else {
            return Err(self.unsignable(id)?);
        };
        if !view.digests().contains(&manifest) {
            return Err(StoreError::Unsignable {
                image: *id,
                reason: format!("it was not stored with the manifest {manifest}"),
                hint: "another program changed the image, run again",
            });
        }
        let is_default = view.manifest() == Some(manifest);
        let kept = match signatures.is_empty() {
            true => signed(&self.layout, id, view).intact(manifest)?,
            false => Vec::new(),
        };
        let signatures = if kept.is_empty() { signatures } else { &kept };
        let signatures = ManifestSignatures::new(*id, manifest, is_default, signatures)?;
        let put = |images: &mut ImageTable| images.put_signatures(id, &signatures);
        self.put_items(id, &signatures.items(), &mut images, &lock, put)
    }

    /// Writes the items of an image, and the record as `edit` changes it. Returns whether the record changed.
    pub(super) fn put_items(
        &self,
        id: &ImageId,
        items: &[BigDataItem<'_>],
        images: &mut ImageTable,
        lock: &ImagesLock,
        edit: impl FnOnce(&mut ImageTable) -> Result<bool, serde_json::Error>,
    ) -> Result<bool, StoreError> {
        let removed = self.make_way(id, items, images, lock)?;
        self.write_items(id, items)?;
        let edited = edit(images).map_err(|error| StoreError::corrupt(&self.layout.images_json(), error))?;
        let changed = edited || !removed.is_empty();
        if changed {
            images.save(lock, &self.layout)?;
        }
        for key in removed {
            // Nothing reads it any more.
            let _ = std::fs::remove_file(self.layout.big_data(id, &key));
        }
        Ok(changed)
    }

    /// The signatures that a commit of this manifest stores: its own, else those that the image has, here or in an
    /// additional store whose record will be hidden.
    pub(super) fn signatures_to_put(
        &self,
        id: &ImageId,
        manifest: Digest,
        own: &[Vec<u8>],
        images: &ImageTable,
    ) -> Result<ManifestSignatures, StoreError> {
        if !own.is_empty() {
            return ManifestSignatures::new(*id, manifest, true, own);
        }
        let kept = match images.find(id) {
            Some(view) => signed(&self.layout, id, view).intact(manifest)?,
            None => self.additional_signatures(id, manifest)?,
        };
        ManifestSignatures::new(*id, manifest, true, &kept)
    }

    fn additional_signatures(&self, id: &ImageId, manifest: Digest) -> Result<Vec<Vec<u8>>, StoreError> {
        for layout in &self.additional.layouts {
            if let Some(view) = ImageTable::read(layout)?.find(id) {
                let signatures = signed(layout, id, view).intact(manifest)?;
                if !signatures.is_empty() {
                    return Ok(signatures);
                }
            }
        }
        Ok(Vec::new())
    }

    /// Removes from the record of an image the signature items that are damaged. Then saves the record without the
    /// items that `items` replaces, so that it always matches the files; `images` keeps them.
    /// Returns the keys of the damaged ones.
    fn make_way(
        &self,
        id: &ImageId,
        items: &[BigDataItem<'_>],
        images: &mut ImageTable,
        lock: &ImagesLock,
    ) -> Result<Vec<String>, StoreError> {
        let Some(view) = images.find(id).cloned() else {
            return Ok(Vec::new());
        };
        let (mut damaged, mut replaced) = (Vec::new(), Vec::new());
        for key in view.signature_keys() {
            match items.iter().find(|item| item.key == key) {
                Some(item) if view.item(key) == (Some(item.bytes.len() as u64), Some(item.digest)) => {}
                Some(_) => replaced.push(key),
                None if self.is_intact(id, &view, key)? => {}
                None => {
                    tracing::warn!(image = %id, item = key, "removing a damaged item of signatures from the record");
                    damaged.push(key);
                }
            }
        }
        let json = |error| StoreError::corrupt(&self.layout.images_json(), error);
        images.remove_signatures(id, &damaged).map_err(json)?;
        if !replaced.is_empty() {
            let mut interim = images.clone();
            interim.remove_signatures(id, &replaced).map_err(json)?;
            interim.save(lock, &self.layout)?;
        }
        Ok(damaged.into_iter().map(str::to_owned).collect())
    }

    fn is_intact(&self, id: &ImageId, view: &ImageView, key: &str) -> Result<bool, StoreError> {
        match atomic_file::read(&self.layout.big_data(id, key), ITEM_LIMIT) {
            Ok(Some(bytes)) => Ok(view.item(key) == (Some(bytes.len() as u64), Some(Digest::of(&bytes)))),
            Ok(None) | Err(StoreError::Corrupt { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Why an image without a record in the graph root cannot get signatures.
    fn unsignable(&self, id: &ImageId) -> Result<StoreError, StoreError> {
        for layout in &self.additional.layouts {
            if ImageTable::read(layout)?.find(id).is_some() {
                return Ok(StoreError::Unsignable {
                    image: *id,
                    reason: format!(
                        "it is in the additional image store `{}`, which is only read",
                        layout.root().display()
                    ),
                    hint: "pull the image with its signatures into that store where it is filled, or remove it there",
                });
            }
        }
        Ok(StoreError::Unsignable {
            image: *id,
            reason: "it is not in the store".to_owned(),
            hint: "another program removed the image, run again",
        })
    }
}

fn signed<'r>(
    layout: &'r Layout,
    id: &ImageId,
    view: &'r ImageView,
) -> SignedRecord<'r, impl Fn(&str) -> Option<Digest>> {
    SignedRecord {
        layout,
        id: *id,
        metadata: view.metadata.as_deref(),
        default: view.manifest(),
        digest_of: |key: &str| view.item(key).1,
    }
}
