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
use super::named_image::NamedImage;
use crate::cancel::Cancel;
use crate::delta::artifact::{
    ArtifactDescriptor, DeltaIndex, EMPTY_CONFIG, IMAGE_INDEX_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE,
    NewArtifact,
};
use crate::delta::{Format, LayerDelta};
use crate::oci::{Descriptor, DiffId, Digest, Reference};

/// The index of a pair of releases in the destination.
pub(super) struct Publication<'a> {
    destination: &'a Destination,
    cancel: &'a Cancel,
    /// The tag of the index.
    tag: String,
    /// The manifest of the new release's image.
    subject: Descriptor,
    index: Mutex<DeltaIndex>,
}

impl<'a> Publication<'a> {
    /// Reads what an earlier run has published of `pairs`. `references` are the old and the new release, each with the
    /// digest of its manifest.
    pub(super) async fn open(
        destination: &'a Destination,
        references: &[Reference; 2],
        tag: String,
        subject: Descriptor,
        pairs: &[ImagePair],
        cancel: &'a Cancel,
    ) -> Result<Self, CreationError> {
        let published = destination.manifest(&tag, cancel).await?;
        let mut index = match &published {
            None => DeltaIndex::default(),
            Some(content) => {
                DeltaIndex::parse(content.bytes()).map_err(|error| CreationError::Published {
                    tag: tag.clone(),
                    why: error.to_string(),
                })?
            }
        };
        let [from, to] = references;
        (index.from, index.to) = (Some(from.to_string()), Some(to.to_string()));
        let is_wanted = |target: &Digest, sources: Option<&[Digest]>| {
            pairs.iter().any(|pair| {
                let old = pair.old.iter().map(|old| old.image.config.digest());
                let is_source = sources.is_none_or(|sources| old.eq(sources.iter().copied()));
                target_of(pair) == *target && is_source
            })
        };
        let is_current = |artifact: &ArtifactDescriptor| is_wanted(&artifact.target, Some(&artifact.sources));
        index.artifacts.retain(is_current);
        index.without.retain(|target| is_wanted(target, None));
        Ok(Self {
            destination,
            cancel,
            tag,
            subject,
            index: Mutex::new(index),
        })
    }

    /// Whether an earlier run has dealt with the pair.
    pub(super) async fn has(&self, pair: &ImagePair) -> bool {
        let (index, target) = (self.index.lock().await, target_of(pair));
        let mut artifacts = index.artifacts.iter();
        artifacts.any(|artifact| artifact.target == target) || index.without.contains(&target)
    }

    /// Publishes the deltas of an image, then the index with them.
    pub(super) async fn add(
        &self,
        pair: &ImagePair,
        old: &NamedImage,
        outcomes: &[LayerOutcome],
    ) -> Result<(), CreationError> {
        let sources = [old.source()];
        let reused = reused(pair, old);
        let mut added = Vec::new();
        for format in [Format::TarDiff, Format::InflatedTarDiff] {
            let files: Vec<&DeltaFile> = outcomes
                .iter()
                .flat_map(|outcome| &outcome.deltas)
                .filter(|file| file.delta.format == format)
                .collect();
            if files.is_empty() {
                continue;
            }
            let layers: Vec<LayerDelta> = files.iter().map(|file| file.delta.clone()).collect();
            let artifact = NewArtifact {
                format,
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
                .put_manifest(None, IMAGE_MANIFEST_MEDIA_TYPE, manifest.clone(), self.cancel)
                .await?;
            added.push(artifact.descriptor(&manifest));
        }
        let mut index = self.index.lock().await;
        match added.is_empty() {
            true => index.without.push(target_of(pair)),
            false => index.artifacts.extend(added),
        }
        // Images finish in any order. The same deltas make the same index.
        index
            .artifacts
            .sort_by_key(|artifact| (artifact.target, artifact.format));
        index.without.sort_unstable();
        self.put_index(index.to_json(None)).await
    }

    /// Publishes the index for nodes, if it lists anything. Returns its digest.
    ///
    /// An index that is at the tag is put again: an earlier run may have ended before it was listed among the referrers.
    pub(super) async fn finish(&self) -> Result<Option<Digest>, CreationError> {
        let index = self.index.lock().await;
        if index.artifacts.is_empty() {
            return Ok(None);
        }
        let json = index.to_json(Some(&self.subject));
        let digest = Digest::of(&json);
        self.put_index(json).await?;
        Ok(Some(digest))
    }

    async fn put_index(&self, json: Bytes) -> Result<(), CreationError> {
        let (tag, media_type) = (Some(self.tag.as_str()), IMAGE_INDEX_MEDIA_TYPE);
        Ok(self
            .destination
            .put_manifest(tag, media_type, json, self.cancel)
            .await?)
    }

    async fn put_blobs(&self, pair: &ImagePair, files: &[&DeltaFile]) -> Result<(), CreationError> {
        let image = &pair.new.image;
        let documents = [image.manifest.bytes(), image.config.bytes()].map(Bytes::clone);
        for bytes in [Bytes::from_static(EMPTY_CONFIG)].into_iter().chain(documents) {
            self.destination.put_bytes(bytes, self.cancel).await?;
        }
        for DeltaFile { delta, path } in files {
            let file = File::open(path).map_err(CreationError::host("open", path))?;
            self.destination
                .put_blob(delta.blob, delta.size, file, self.cancel)
                .await?;
        }
        Ok(())
    }
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
