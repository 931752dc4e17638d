//! Commits many images with one save of images.json.
//!
//! ```text
//! 1  the big data of new images, staged and synced      before, without a lock
//! 2  one rename per image into `overlay-images/`
//! 3  one sync of the names
//! 4  images.json with all records
//! ```
//!
//! Images without staged data, and those that have a record already, follow one by one. If the process dies before
//! step 4, the next run removes the directories (`unrecorded.rs`); CRI-O removes them whenever it starts.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::atomic_file;
use super::error::StoreError;
use super::image_commit::{ImageCommit, items};
use super::image_record::ManifestSignatures;
use super::images_json::ImageTable;
use super::layer_dir;
use super::layers_json::LayerTable;
use super::layout::IMAGES;
use super::lock::{ImagesLock, SharedLayersLock};
use super::root_mount::{clone_mount, rename};
use super::staged_image::StagedImage;
use super::store::Store;
use crate::cancel::Cancel;
use crate::oci::{LayerId, Reference, ResolvedImage};

/// An image to commit.
#[derive(Debug)]
pub struct ImageToCommit<'i> {
    /// The image.
    pub image: &'i ResolvedImage,
    /// The name to store it under.
    pub name: &'i Reference,
    /// Its big data if it is staged.
    pub data: Option<StagedImage>,
}

/// One for each image; `None` as long as nothing is decided.
type Results = Vec<Option<Result<ImageCommit, StoreError>>>;

impl Store {
    /// Stores images as [`Store::commit_image`] does. After an error that is not of one image only, the following
    /// images are not tried, and have no result.
    ///
    /// `cancel` ends the waits for the locks and nothing else.
    pub fn commit_images(
        &self,
        mut images: Vec<ImageToCommit<'_>>,
        cancel: &Cancel,
    ) -> Vec<Result<ImageCommit, StoreError>> {
        let mut results: Results = images.iter().map(|_| None).collect();
        let mut staged = images.iter_mut().filter_map(|image| image.data.as_mut());
        let synced = self.sync_staged([], &mut staged);
        let mut fatal = synced
            .and_then(|()| self.commit_new(&images, &mut results, cancel))
            .err();
        let mut all = Vec::new();
        for (image, result) in images.iter().zip(results) {
            let result = match (result, fatal.take()) {
                // The images before it are stored.
                (Some(result), error) => {
                    fatal = error;
                    result
                }
                (None, Some(error)) => Err(error),
                (None, None) => self.commit_image(image.image, image.name, cancel),
            };
            let has_ended = matches!(&result, Err(error) if !error.is_of_one_image());
            all.push(result);
            if has_ended {
                break;
            }
        }
        all
    }

    /// Stores the new images whose data is staged. Leaves those without a result that have a record, or that a save
    /// would have stored which failed.
    fn commit_new(
        &self,
        images: &[ImageToCommit<'_>],
        results: &mut Results,
        cancel: &Cancel,
    ) -> Result<(), StoreError> {
        let staged: Vec<usize> = (0..images.len())
            .filter(|index| images[*index].data.is_some())
            .collect();
        if staged.is_empty() {
            return Ok(());
        }
        let layers = self.examine_chains(images, &staged, results, cancel)?;
        let root = clone_mount(self.layout.root())?;
        let lock = ImagesLock::acquire(&self.layout, &layers, cancel)?;
        if self.first_sweep_of_images() {
            atomic_file::sweep(&self.layout.images(), "images.json");
        }
        let mut table = ImageTable::read(&self.layout)?;
        let mut placed = Vec::new();
        let mut fatal = Ok(());
        for index in staged {
            let ImageToCommit { image, name, data } = &images[index];
            let Some(data) = data.as_ref().filter(|_| results[index].is_none()) else {
                continue;
            };
            // Signatures of an additional store would have to be read and staged.
            let is_whole = !image.signatures.is_empty() || self.additional.layouts.is_empty();
            if table.find(&data.id).is_some() || !is_whole {
                continue;
            }
            match self.place_image(image, name, data, &root, &mut table) {
                Ok(()) => placed.push(index),
                Err(error) if error.is_of_one_image() => results[index] = Some(Err(error)),
                Err(error) => {
                    fatal = Err(error);
                    break;
                }
            }
        }
        if !placed.is_empty() {
            let saved =
                atomic_file::sync_dir(&self.layout.images()).and_then(|()| table.save(&lock, &self.layout));
            for index in placed {
                let id = images[index].image.id();
                match &saved {
                    Ok(()) => results[index] = Some(Ok(ImageCommit::Committed(id))),
                    Err(_) => self.roll_back(&id),
                }
            }
            return fatal.and(saved);
        }
        fatal
    }

    /// Finds out which images lack a layer, and syncs layers that other programs stored. Returns the lock under which
    /// all other images are whole.
    fn examine_chains(
        &self,
        images: &[ImageToCommit<'_>],
        staged: &[usize],
        results: &mut Results,
        cancel: &Cancel,
    ) -> Result<SharedLayersLock, StoreError> {
        loop {
            let lock = SharedLayersLock::acquire(&self.layout, cancel)?;
            let table = LayerTable::read(&self.layout)?;
            let mut known = HashSet::new();
            let mut chains: Vec<LayerId> = Vec::new();
            for index in staged {
                if results[*index].is_some() {
                    continue;
                }
                let chain = images[*index].image.layer_ids();
                match self.missing_layer(&table, &chain, &mut known) {
                    Ok(None) => chains.extend(chain),
                    Ok(Some(layer)) => results[*index] = Some(Ok(ImageCommit::ChainMissing { layer })),
                    Err(error) if error.is_of_one_image() => results[*index] = Some(Err(error)),
                    Err(error) => return Err(error),
                }
            }
            if self.durable.has_all(&chains) {
                return Ok(lock);
            }
            // The sync may take seconds, and other programs need the lock. They may remove a layer in the meantime.
            drop(lock);
            self.make_durable(&chains)?;
        }
    }

    /// Moves the data into the store, and adds the record to the table.
    fn place_image(
        &self,
        image: &ResolvedImage,
        name: &Reference,
        data: &StagedImage,
        root: &OwnedFd,
        table: &mut ImageTable,
    ) -> Result<(), StoreError> {
        let layout = &self.layout;
        let signatures = ManifestSignatures::new(data.id, image.manifest.digest(), true, &image.signatures)?;
        let mut items = items(image);
        items.extend(signatures.items());
        let record = self.record(image, name, &items, &signatures, table)?;
        let to = Path::new(IMAGES).join(data.id.to_string());
        if layer_dir::exists(&layout.image(&data.id))? {
            rename(
                layout,
                root,
                &to,
                &data.entry.make_trash_path()?,
                "move unrecorded data to",
            )?;
        }
        rename(
            layout,
            root,
            &data.entry.relative_path(),
            &to,
            "rename staged data to",
        )?;
        let put = table.put(&record);
        put.map(|_| ())
            .map_err(|error| StoreError::corrupt(&layout.images_json(), error))
    }
}
