//! Which layers are known to be on the disk, and not only in the page cache.
//!
//! What this program commits is synced first. Other programs sync next to nothing of a layer (storage-format.md section
//! 9.4): one that podman pulled a moment ago looks whole, and is full of empty files after a power loss. Whoever is to say
//! that an image is there has the file system synced before, once. (A layer that is removed and brought again by somebody
//! else in the meantime is taken for the old one.)

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::oci::LayerId;

/// Ids of layers that were in the store when the file system was synced.
#[derive(Debug, Default)]
pub(super) struct DurableLayers(Mutex<HashSet<LayerId>>);

impl DurableLayers {
    /// True if all of `layers` are known to be on the disk.
    pub(super) fn has_all(&self, layers: &[LayerId]) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        layers.iter().all(|layer| known.contains(layer))
    }

    /// Notes that `layers` are on the disk.
    pub(super) fn add(&self, layers: &[LayerId]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(layers);
    }
}
