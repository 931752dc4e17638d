//! Adds names to images that are stored already.

use super::error::StoreError;
use super::images_json::ImageTable;
use super::lock::{ImagesLock, SharedLayersLock};
use super::store::Store;
use crate::cancel::Cancel;
use crate::oci::{ImageId, Reference};

impl Store {
    /// Adds to the record of each image a name by digest, as a pull by that name would. Another image with the name
    /// loses it. An image that is no longer in the graph root, or was not stored with that digest, is skipped: CRI-O
    /// would not start it under that name.
    ///
    /// `cancel` ends the wait for the locks and nothing else.
    pub fn add_names(&self, names: &[(ImageId, Reference)], cancel: &Cancel) -> Result<(), StoreError> {
        if names.is_empty() {
            return Ok(());
        }
        let layers = SharedLayersLock::acquire(&self.layout, cancel)?;
        let lock = ImagesLock::acquire(&self.layout, &layers, cancel)?;
        let mut images = ImageTable::read(&self.layout)?;
        let mut changed = false;
        for (id, name) in names {
            let added = images.add_name(id, name);
            changed |= added.map_err(|error| StoreError::corrupt(&self.layout.images_json(), error))?;
        }
        match changed {
            true => images.save(&lock, &self.layout),
            false => Ok(()),
        }
    }
}
