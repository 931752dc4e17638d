//! Remembers the deltas that could not be used, so that no later plan of the same run chooses them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::delta::DeltaOption;
use crate::oci::Digest;

/// The deltas that failed in this run. Clones share them.
///
/// A hostile artifact may name a valid delta with another layer, with other sources, format or size, or in a repository
/// without it. So the key of a failure is everything that the artifact states, not only the delta's digest.
#[derive(Clone, Debug, Default)]
pub(in crate::job) struct FailedDeltas(Arc<Mutex<HashMap<Arc<DeltaOption>, Failure>>>);

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
        let failed = self.failures();
        for options in deltas.values_mut() {
            options.retain(|option| !failed.contains_key(option));
        }
    }

    /// When the delta failed, if it did.
    pub(super) fn failure(&self, option: &DeltaOption) -> Option<Failure> {
        self.failures().get(option).copied()
    }

    pub(super) fn add(&self, option: &Arc<DeltaOption>, failure: Failure) {
        self.failures().insert(Arc::clone(option), failure);
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<Arc<DeltaOption>, Failure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::delta::{DeltaSource, Format, LayerDelta};

    #[test]
    fn a_delta_that_fails_for_one_layer_may_be_used_for_another() {
        let option = |target: &str, source: &str| {
            Arc::new(DeltaOption {
                delta: LayerDelta {
                    blob: Digest::of(b"delta"),
                    size: 5,
                    format: Format::TarDiff,
                    target: Digest::of(target.as_bytes()),
                    tar_size: None,
                },
                repository: "example.com/deltas:1".parse().unwrap(),
                sources: vec![DeltaSource {
                    config: Digest::of(source.as_bytes()),
                    ostree_commit: None,
                }],
            })
        };
        let (wrong, right) = (option("other", "old"), option("layer", "old"));
        let failed = FailedDeltas::default();
        failed.add(&wrong, Failure::Application);
        failed.add(&option("layer", "other"), Failure::Application);
        assert_eq!(
            failed.failure(&option("other", "old")),
            Some(Failure::Application)
        );
        let options = [&wrong, &right].map(|option| (option.delta.target, vec![Arc::clone(option)]));
        let mut deltas = HashMap::from(options);
        failed.remove_from(&mut deltas);
        assert_eq!(deltas[&wrong.delta.target], []);
        assert_eq!(deltas[&right.delta.target], [right]);
    }
}
