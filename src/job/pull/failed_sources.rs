//! Remembers the sources of layers that could not be used, so that no later plan of the same run chooses them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::plan::{LayerSource, Present};

/// The sources that failed in this run. Clones share them.
///
/// A hostile artifact may name a valid delta with another layer, with other sources, format or size, or in a repository
/// without it. So the key of a failure is everything that the artifact states, not only the delta's digest.
#[derive(Clone, Debug, Default)]
pub(in crate::job) struct FailedSources(Arc<Mutex<HashMap<LayerSource, Failure>>>);

/// When a source failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// None of it arrived.
    Download,
    /// It was there and no layer could be made from it.
    Application,
}

impl FailedSources {
    /// Removes them from what a plan may choose.
    pub(in crate::job) fn remove_from(&self, here: &mut Present) {
        let failed = self.failures();
        if failed.is_empty() {
            return;
        }
        here.chunked
            .retain(|_, option| !failed.contains_key(&LayerSource::Chunked(Arc::clone(option))));
        for options in here.deltas.values_mut() {
            options.retain(|option| !failed.contains_key(&LayerSource::Delta(Arc::clone(option))));
        }
        for tars in here.medium_tars.values_mut() {
            tars.retain(|tar| !failed.contains_key(&LayerSource::MediumTar(tar.clone())));
        }
        for layers in here.stored.values_mut() {
            layers.retain(|layer| !failed.contains_key(&LayerSource::Stored(layer.clone())));
        }
    }

    /// When the source failed, if it did.
    pub(super) fn failure(&self, source: &LayerSource) -> Option<Failure> {
        self.failures().get(source).copied()
    }

    pub(super) fn add(&self, source: &LayerSource, failure: Failure) {
        self.failures().insert(source.clone(), failure);
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<LayerSource, Failure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::delta::{DeltaOption, DeltaSource, Format, LayerDelta};
    use crate::oci::Digest;

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
        let failed = FailedSources::default();
        failed.add(&LayerSource::Delta(Arc::clone(&wrong)), Failure::Application);
        failed.add(
            &LayerSource::Delta(option("layer", "other")),
            Failure::Application,
        );
        assert_eq!(
            failed.failure(&LayerSource::Delta(option("other", "old"))),
            Some(Failure::Application)
        );
        let options = [&wrong, &right].map(|option| (option.delta.target, vec![Arc::clone(option)]));
        let mut here = Present {
            deltas: HashMap::from(options),
            ..Present::default()
        };
        failed.remove_from(&mut here);
        assert_eq!(here.deltas[&wrong.delta.target], []);
        assert_eq!(here.deltas[&right.delta.target], [right]);
    }
}
