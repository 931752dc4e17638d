//! Finds the image that CRI-O uses for a reference: by its name, or by a digest in the same repository.

use super::error::StoreError;
use super::image_record::MANIFEST;
use super::inventory::{Inventory, StoredImage};
use super::store_location::StoreLocation;
use crate::oci::{Digest, Manifest, Platform, Reference};

impl Inventory {
    /// The image that has exactly this name. If two have it, the later one counts, as in containers/storage.
    pub fn image_by_name(&self, name: &str) -> Option<&StoredImage> {
        self.locations().find_map(|location| {
            let mut images = self.at(location).images().iter().rev();
            let image = images.find(|image| image.names.iter().any(|known| known == name))?;
            // A record in the graph root hides the records of the same image in the additional stores.
            let is_hidden =
                location != StoreLocation::GraphRoot && self.images().iter().any(|own| own.id == image.id);
            (!is_hidden).then_some(image)
        })
    }

    /// The image that CRI-O uses for `reference`: the image with this name. Otherwise, for a digest, an image that
    /// was stored with the digest and has any name in the repository. The digest of a manifest list counts only if
    /// the instance for `platform` is stored too (containers/image `storage_reference.go`: `resolveImage`).
    pub fn find(
        &self,
        reference: &Reference,
        platform: &Platform,
    ) -> Result<Option<&StoredImage>, StoreError> {
        let named = self.image_by_name(&reference.to_string());
        let Some(digest) = reference.digest() else {
            return Ok(named);
        };
        if let Some(image) = named {
            return Ok(self.has_instance(image, digest, platform)?.then_some(image));
        }
        let repository = reference.repository();
        let in_repository = |name: &String| {
            name.parse::<Reference>()
                .is_ok_and(|name| name.repository() == repository)
        };
        for image in self.all_images() {
            if image.digests.contains(&digest)
                && image.names.iter().any(in_repository)
                && self.has_instance(image, digest, platform)?
            {
                return Ok(Some(image));
            }
        }
        Ok(None)
    }

    fn has_instance(
        &self,
        image: &StoredImage,
        digest: Digest,
        platform: &Platform,
    ) -> Result<bool, StoreError> {
        let Some(manifest) = self
            .read_item(image, &manifest_key(digest))?
            .filter(|item| item.digest() == digest)
        else {
            return Ok(false);
        };
        Ok(match Manifest::parse(manifest.bytes(), None) {
            Ok(Manifest::Image(_)) => true,
            Ok(Manifest::Index(index)) => {
                let instance = index.choose(platform).ok();
                instance.is_some_and(|instance| image.items.contains_key(&manifest_key(instance)))
            }
            // Another program may have stored a manifest that we refuse to pull; CRI-O accepts it.
            Err(_) => true,
        })
    }
}

fn manifest_key(digest: Digest) -> String {
    format!("{MANIFEST}-{digest}")
}
