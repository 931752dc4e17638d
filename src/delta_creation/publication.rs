//! Publishes the deltas of one pair of releases: artifacts, and the index that lists them.
//!
//! ```text
//! deltas of an image ─→ blobs, then artifacts ─→ index without `subject`, at the tag     after each image
//!                                                index with `subject`, at the same tag   at the end
//! ```
//!
//! An index is written after everything that it lists, so it never lists anything that is missing. A later run continues from
//! the index at the tag: what it lists is not created again.

use std::fs::File;

use bytes::Bytes;
use tokio::sync::Mutex;

use super::destination::Destination;
use super::error::CreationError;
use super::image_pairs::ImagePair;
use super::layer_deltas::{DeltaFile, LayerOutcome};
use super::layer_diff::Variant;
use super::named_image::NamedImage;
use super::wanted_entries::WantedEntries;
use crate::cancel::Cancel;
use crate::delta::artifact::{DeltaIndex, EMPTY_CONFIG, NewArtifact};
use crate::delta::{DeltaSource, LayerDelta};
use crate::oci::{Descriptor, DiffId, Digest, OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE, Reference};

/// The index of a pair of releases in the destination.
pub(super) struct Publication<'a> {
    destination: &'a Destination,
    cancel: &'a Cancel,
    /// The tag of the index.
    tag: String,
    /// The manifest of the new release's image.
    subject: Descriptor,
    wanted: WantedEntries,
    index: Mutex<DeltaIndex>,
}

impl<'a> Publication<'a> {
    /// Reads what an earlier run has published. `references` are the old and the new release, each with the digest of its
    /// manifest.
    pub(super) async fn open(
        destination: &'a Destination,
        references: &[Reference; 2],
        tag: String,
        subject: Descriptor,
        wanted: WantedEntries,
        cancel: &'a Cancel,
    ) -> Result<Self, CreationError> {
        let mut index = published(destination, &tag, cancel).await?;
        let [from, to] = references;
        (index.from, index.to) = (Some(from.to_string()), Some(to.to_string()));
        wanted.retain(&mut index);
        Ok(Self {
            destination,
            cancel,
            tag,
            subject,
            wanted,
            index: Mutex::new(index),
        })
    }

    /// Whether an earlier run has dealt with the pair.
    pub(super) async fn has(&self, pair: &ImagePair) -> bool {
        let (index, target) = (self.index.lock().await, target_of(pair));
        let mut artifacts = index.artifacts.iter();
        artifacts.any(|artifact| artifact.target == target) || index.without.contains(&target)
    }

    /// Publishes the deltas of an image, then the index with them. `old` is the predecessor, and deltas may read `further` too.
    pub(super) async fn add<'o>(
        &self,
        pair: &ImagePair,
        old: &NamedImage,
        further: Option<&NamedImage>,
        outcomes: &'o [LayerOutcome],
    ) -> Result<(), CreationError> {
        let reused = reused(pair, old);
        let mut added = Vec::new();
        for variant in Variant::ALL {
            // A node reads one artifact in each format, so that with `further` has the deltas of all layers.
            let file = |outcome: &'o LayerOutcome| match variant {
                Variant::Standard | Variant::Inflated => outcome.delta(variant),
                Variant::Further => outcome.delta(variant).or(outcome.delta(Variant::Inflated)),
            };
            let files: Vec<&DeltaFile> = outcomes.iter().filter_map(file).collect();
            if files.iter().all(|file| file.variant != variant) {
                continue;
            }
            let further = further.filter(|_| variant == Variant::Further);
            let sources: Vec<DeltaSource> = std::iter::once(old)
                .chain(further)
                .map(NamedImage::source)
                .collect();
            let layers: Vec<LayerDelta> = files.iter().map(|file| file.delta.clone()).collect();
            let artifact = NewArtifact {
                format: variant.format(),
                target: &pair.new.image,
                source_manifest: old.image.manifest.digest(),
                sources: &sources,
                layers: &layers,
                reused: &reused,
            };
            let manifest = artifact.to_json();
            self.put_blobs(pair, &files).await?;
            let destination = self.destination;
            destination
                .put_manifest(None, OCI_IMAGE_MEDIA_TYPE, manifest.clone(), self.cancel)
                .await?;
            added.push(artifact.descriptor(&manifest));
        }
        let mut index = self.index.lock().await;
        match added.is_empty() {
            true => index.without.push(target_of(pair)),
            false => index.artifacts.extend(added),
        }
        self.put_index(&mut index, None).await?;
        Ok(())
    }

    /// Publishes the index for nodes, if it lists anything. Returns its digest.
    ///
    /// An index that is at the tag is put again: an earlier run may have ended before it was listed among the referrers.
    pub(super) async fn finish(&self) -> Result<Option<Digest>, CreationError> {
        let mut index = self.index.lock().await;
        match index.artifacts.is_empty() {
            true => Ok(None),
            false => Ok(Some(self.put_index(&mut index, Some(&self.subject)).await?)),
        }
    }

    /// Puts the index with what another creator has added to it since then, and returns its digest.
    async fn put_index(
        &self,
        index: &mut DeltaIndex,
        subject: Option<&Descriptor>,
    ) -> Result<Digest, CreationError> {
        let current = published(self.destination, &self.tag, self.cancel).await?;
        self.wanted.merge(index, current);
        let json = index.to_json(subject);
        let (digest, tag) = (Digest::of(&json), Some(self.tag.as_str()));
        self.destination
            .put_manifest(tag, OCI_IMAGE_INDEX_MEDIA_TYPE, json, self.cancel)
            .await?;
        Ok(digest)
    }

    async fn put_blobs(&self, pair: &ImagePair, files: &[&DeltaFile]) -> Result<(), CreationError> {
        let image = &pair.new.image;
        let documents = [image.manifest.bytes(), image.config.bytes()].map(Bytes::clone);
        for bytes in [Bytes::from_static(EMPTY_CONFIG)].into_iter().chain(documents) {
            self.destination.put_bytes(bytes, self.cancel).await?;
        }
        for DeltaFile { delta, path, .. } in files {
            let file = File::open(path).map_err(CreationError::host("open", path))?;
            self.destination
                .put_blob(delta.blob, delta.size, file, self.cancel)
                .await?;
        }
        Ok(())
    }
}

/// The index at the tag.
async fn published(
    destination: &Destination,
    tag: &str,
    cancel: &Cancel,
) -> Result<DeltaIndex, CreationError> {
    let Some(content) = destination.manifest(tag, cancel).await? else {
        return Ok(DeltaIndex::default());
    };
    DeltaIndex::parse(content.bytes()).map_err(|error| CreationError::Published {
        tag: tag.to_owned(),
        why: error.to_string(),
    })
}

fn target_of(pair: &ImagePair) -> Digest {
    pair.new.image.manifest.digest()
}

/// The layers that both images have.
fn reused(pair: &ImagePair, old: &NamedImage) -> Vec<(Digest, DiffId)> {
    let is_old = |diff_id: DiffId| old.image.layers.iter().any(|layer| layer.diff_id() == diff_id);
    let layers = pair.new.image.layers.iter();
    let both = layers.filter(|layer| is_old(layer.diff_id()));
    both.map(|layer| (layer.blob, layer.diff_id())).collect()
}
