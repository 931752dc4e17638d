//! Writes the big data of a new image into the stage, so that it becomes durable with the layers' sync, and without a
//! lock. The commit moves it into the store with one rename.

use super::atomic_file;
use super::error::StoreError;
use super::image_commit::items;
use super::image_record::ManifestSignatures;
use super::layout::big_data_file_name;
use super::stage::{Stage, StageEntry};
use crate::oci::{ImageId, ResolvedImage};

/// The big data of an image, in the stage. Removes itself unless it is committed.
#[derive(Debug)]
pub struct StagedImage {
    pub(super) entry: StageEntry,
    pub(super) id: ImageId,
    /// Whether the file system was synced after its last byte was written.
    pub(super) is_synced: bool,
}

impl Stage {
    /// Writes manifest, config, manifest list and signatures of the image.
    pub fn image(&self, image: &ResolvedImage) -> Result<StagedImage, StoreError> {
        let id = image.id();
        let staged = StagedImage {
            entry: self.entry(&id.to_string()),
            id,
            is_synced: false,
        };
        let dir = staged.entry.path();
        atomic_file::create_dir(&dir, 0o700)?;
        let signatures = ManifestSignatures::new(id, image.manifest.digest(), true, &image.signatures)?;
        for item in items(image).iter().chain(&signatures.items()) {
            atomic_file::create(&dir.join(big_data_file_name(&item.key)), 0o600, item.bytes)?;
        }
        Ok(staged)
    }
}
