//! Remembers the deltas that could not be used, so that no later plan of the same run chooses them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::delta::DeltaOption;
use crate::oci::Digest;

/// The deltas that failed in this run. Clones share them.
#[derive(Clone, Debug, Default)]
pub(in crate::job) struct FailedDeltas(Arc<Mutex<HashMap<Digest, Failure>>>);

/// When a delta failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No registry sent it.
    Download,
    /// It was downloaded and could not be applied.
    Application,
}

impl FailedDeltas {
    /// Removes them from the deltas that a plan may choose.
    pub(in crate::job) fn remove_from(&self, deltas: &mut HashMap<Digest, Vec<Arc<DeltaOption>>>) {
        let failed = self.digests();
        for options in deltas.values_mut() {
            options.retain(|option| !failed.contains_key(&option.delta.blob));
        }
    }

    /// When the delta with this digest failed, if it did.
    pub(super) fn failure(&self, delta: &Digest) -> Option<Failure> {
        self.digests().get(delta).copied()
    }

    pub(super) fn add(&self, delta: Digest, failure: Failure) {
        self.digests().insert(delta, failure);
    }

    fn digests(&self) -> MutexGuard<'_, HashMap<Digest, Failure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
