//! Finds out which of the blobs that a plan needs are on media.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::delta::DeltaOption;
use crate::oci::{DiffId, Digest, Layer};
use crate::plan::{ImageAction, ImageToPlan, MediumTar};
use crate::registry::Registries;

/// The blobs that were found on media.
pub(super) struct MediaBlobs {
    registries: Arc<Registries>,
    /// With the path of the first medium.
    found: HashMap<Digest, Arc<str>>,
    /// The tars of layers.
    tars: HashMap<DiffId, Vec<MediumTar>>,
}

impl MediaBlobs {
    pub(super) fn new(registries: Arc<Registries>) -> Self {
        Self {
            registries,
            found: HashMap::new(),
            tars: HashMap::new(),
        }
    }

    /// Each blob that a medium has, with the path of the first one.
    pub(super) fn found(&self) -> &HashMap<Digest, Arc<str>> {
        &self.found
    }

    /// Each tar of a layer that media have.
    pub(super) fn tars(&self) -> &HashMap<DiffId, Vec<MediumTar>> {
        &self.tars
    }

    /// Looks for the layers of the images to pull.
    pub(super) async fn find_layers(&mut self, images: &[ImageToPlan]) {
        let layers = images.iter().flat_map(|image| match &image.action {
            ImageAction::Pull(resolved) => resolved.layers.as_slice(),
            ImageAction::Present | ImageAction::Failed(_) => &[],
        });
        let blobs = layers.clone().map(|layer| (layer.blob, layer.size));
        self.find(blobs.collect()).await;
        let diff_ids: HashSet<DiffId> = layers.map(Layer::diff_id).collect();
        let tars = self.registries.in_media(move |media| {
            let tars = |diff_id| {
                let tars = media.layer_tars(diff_id).into_iter().map(|tar| MediumTar {
                    diff_id,
                    medium: Arc::from(tar.name()),
                    size: tar.size(),
                });
                (diff_id, tars.collect::<Vec<_>>())
            };
            let found = diff_ids.into_iter().map(tars);
            found.filter(|(_, tars)| !tars.is_empty()).collect()
        });
        self.tars = tars.await;
    }

    /// Looks for deltas.
    pub(super) async fn find_deltas(&mut self, deltas: &HashMap<Digest, Vec<Arc<DeltaOption>>>) {
        let deltas = deltas.values().flatten().map(|option| &option.delta);
        self.find(deltas.map(|delta| (delta.blob, delta.size)).collect())
            .await;
    }

    /// Looks for blobs of these lengths, each time anew: a medium does not have a blob any more that was damaged there.
    async fn find(&mut self, blobs: HashMap<Digest, u64>) {
        for blob in blobs.keys() {
            self.found.remove(blob);
        }
        let found = self.registries.in_media(move |media| {
            let found = blobs.into_iter().filter_map(|(blob, size)| {
                let on_media = media.blobs(blob);
                let medium = on_media.iter().find(|it| it.size() == size)?;
                Some((blob, Arc::from(medium.name())))
            });
            found.collect::<Vec<_>>()
        });
        self.found.extend(found.await);
    }
}
