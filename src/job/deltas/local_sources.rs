//! Finds out which sources of deltas this node has: images in its store, or an operating system in its ostree repository.

use std::collections::HashSet;
use std::path::PathBuf;

use crate::delta::DeltaSource;
use crate::oci::{Digest, ImageId};
use crate::store::{Inventory, StoredImage};

/// The images whose files deltas can read here.
pub(super) struct LocalSources<'a> {
    inventory: &'a Inventory,
    ostree_objects: PathBuf,
    /// The images to pull: a delta from them is useless.
    targets: HashSet<ImageId>,
}

impl<'a> LocalSources<'a> {
    pub(super) fn new(inventory: &'a Inventory, ostree_objects: PathBuf, targets: HashSet<ImageId>) -> Self {
        Self {
            inventory,
            ostree_objects,
            targets,
        }
    }

    /// Whether the store has an image besides those to pull and these. The release image that was pulled a moment ago is no
    /// reason to ask registries.
    pub(super) fn has_other_than(&self, requested: &HashSet<ImageId>) -> bool {
        let images = self.inventory.images().iter();
        let mut others = images.filter(|image| !requested.contains(&image.id));
        self.inventory.has_additional() || others.any(|image| self.is_usable(image))
    }

    /// Whether the node may have all these images. Of an operating system, image 0 may be in the ostree repository; only the
    /// artifact names its commit.
    pub(super) fn may_have(&self, sources: &[Digest], is_os: bool) -> bool {
        let has_repository = || self.ostree_objects.is_dir();
        let mut sources = sources.iter().enumerate();
        sources.len() > 0
            && sources.all(|(number, source)| self.has(source) || number == 0 && is_os && has_repository())
    }

    /// Whether the node has all these images.
    pub(super) fn have(&self, sources: &[DeltaSource]) -> bool {
        let has_commit = |source: &DeltaSource| {
            let commit = source.ostree_commit.as_deref();
            commit.is_some_and(|commit| self.has_commit(commit))
        };
        let mut sources = sources.iter();
        sources.len() > 0 && sources.all(|source| self.has(&source.config) || has_commit(source))
    }

    /// Whether an image was pulled by this digest.
    pub(super) fn has_manifest(&self, digest: Digest) -> bool {
        let mut images = self.inventory.images().iter();
        images.any(|image| image.digests.contains(&digest))
    }

    fn has(&self, config: &Digest) -> bool {
        let image = self.inventory.image(&ImageId::of_config(*config));
        image.is_some_and(|image| self.is_usable(image))
    }

    fn is_usable(&self, image: &StoredImage) -> bool {
        let chain = || self.inventory.chain_of(image);
        !self.targets.contains(&image.id) && chain().is_some_and(|layers| !layers.is_empty())
    }

    fn has_commit(&self, commit: &str) -> bool {
        // A file name is made from it.
        let Ok(checksum) = Digest::from_hex(commit) else {
            return false;
        };
        let checksum = checksum.hex();
        let (directory, name) = checksum.split_at(2);
        let object = self.ostree_objects.join(directory).join(format!("{name}.commit"));
        object.is_file()
    }
}
