//! Remembers which layers were synced to the disk and are not only in the page cache.
//!
//! This program syncs a layer before it commits it. Other programs sync almost nothing of a layer (storage-format.md
//! section 9.4): one that podman pulled a moment ago looks complete and has empty files after a power loss. Before an
//! image is reported as present, the file system is therefore synced once. (A layer that another program removes and
//! pulls again in the meantime counts as the old one.)

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::oci::LayerId;

/// Ids of layers that were stored when the file system was synced.
#[derive(Debug, Default)]
pub(super) struct DurableLayers(Mutex<HashSet<LayerId>>);

impl DurableLayers {
    /// True if all of `layers` are known to be on the disk.
    pub(super) fn has_all(&self, layers: &[LayerId]) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        layers.iter().all(|layer| known.contains(layer))
    }

    /// Records that `layers` are on the disk.
    pub(super) fn add(&self, layers: &[LayerId]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(layers);
    }
}
