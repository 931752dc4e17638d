//! Identifies an image by everything that may name it: digests of manifests, names, the id.

use std::collections::BTreeSet;

use crate::oci::{Digest, Reference};
use crate::store::StoredImage;

/// What identifies an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageIdentity {
    /// The digests of its manifests and of the manifest lists that contain them.
    pub digests: BTreeSet<Digest>,
    /// Its names, normalised.
    pub names: BTreeSet<String>,
}

impl ImageIdentity {
    /// Of an image in the store.
    pub fn of_stored(image: &StoredImage) -> Self {
        Self {
            digests: image.digests.clone(),
            names: image.names.iter().cloned().collect(),
        }
    }

    /// Of an image that only this reference describes.
    pub fn of_reference(reference: &Reference) -> Self {
        let mut identity = Self::default();
        identity.add(reference);
        identity
    }

    /// Adds a reference to the same image.
    pub fn add(&mut self, reference: &Reference) {
        self.digests.extend(reference.digest());
        self.names.insert(reference.to_string());
    }

    /// Whether the reference names this image. A digest decides, in whatever repository: mirrors have the same images.
    pub fn is_named_by(&self, reference: &Reference) -> bool {
        match reference.digest() {
            Some(digest) => self.digests.contains(&digest),
            None => self.names.contains(&reference.to_string()),
        }
    }
}
