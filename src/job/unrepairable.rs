//! Finds the damaged images that a repair must not or cannot fix, with the reason for each.

use super::error::Reason;
use super::snapshot::{ImageInStore, Snapshot};
use super::verify::Verifier;
use crate::exit_code::Failure;
use crate::oci::Reference;
use crate::store::LayersInUse;

/// Images with a damaged layer in an additional image store below a layer of the graph root. A layer refers to its parent
/// in the store where it found it, and this program writes nothing into an additional store.
pub(super) fn in_additional_stores(
    references: &[Reference],
    snapshot: &Snapshot,
) -> Vec<(Reference, Reason)> {
    let unrepairable = references.iter().filter_map(|reference| {
        let layer = snapshot.image(reference)?.damaged_below.as_ref()?;
        let message = format!(
            "{layer} is damaged, and layers of the graph root are built on it\nhint: remove the image with `crictl rmi` or `podman rmi`, and run again"
        );
        let failure = Failure::Store;
        Some((reference.clone(), Reason { failure, message }))
    });
    unrepairable.collect()
}

/// Images with a layer that is damaged again right after it was unpacked again.
pub(super) fn damaged_again(
    references: &[Reference],
    snapshot: &Snapshot,
    verifier: &Verifier,
) -> Vec<(Reference, Reason)> {
    let unrepairable = references.iter().filter_map(|reference| {
        let image = snapshot.image(reference)?;
        let flaw = image.flaw.clone().filter(|_| verifier.is_beyond_repair(image))?;
        let message = format!(
            "{}, even after it was written again\nhint: the disk or its file system may be faulty, see the kernel's log",
            flaw.message
        );
        Some((reference.clone(), Reason { message, ..flaw }))
    });
    unrepairable.collect()
}

/// Whether the store has an image with a damaged layer under one of these references.
pub(super) fn has_damaged_layers(reference: &Reference, snapshot: &Snapshot) -> bool {
    let image = snapshot.image(reference);
    image.is_some_and(|image| image.damaged_layers().next().is_some())
}

/// Images with a damaged layer that a container or another program uses. Nothing is downloaded for them.
pub(super) fn in_use(
    references: &[Reference],
    snapshot: &Snapshot,
    users: &LayersInUse,
) -> Vec<(Reference, Reason)> {
    let unrepairable = references.iter().filter_map(|reference| {
        let mut layers = snapshot
            .image(reference)
            .into_iter()
            .flat_map(ImageInStore::damaged_layers);
        let error = layers.find_map(|layer| users.check_unused(&layer).err())?;
        let (failure, message) = (Failure::Store, error.to_string());
        Some((reference.clone(), Reason { failure, message }))
    });
    unrepairable.collect()
}
