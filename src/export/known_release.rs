//! Lists the blobs of a release that the nodes have, for `--since`. Only manifests are read, and the payload's layer.

use std::collections::HashSet;

use futures::stream::{self, StreamExt as _};

use super::blocking::run_blocking;
use super::error::ExportError;
use super::image_source::ImageSource;
use crate::oci::{
    Content, Digest, ImageManifest, LayerDescriptor, MAX_MANIFEST_SIZE, Manifest, ManifestError, Reference,
};
use crate::release::{PayloadSearch, select};
use crate::report::{Count, Event};
use crate::spec::Excludes;

/// How many manifests are requested at the same time.
const CONCURRENCY: usize = 32;

/// A release that the nodes have.
pub(super) struct KnownRelease {
    /// Its release image by digest.
    pub(super) reference: Reference,
    pub(super) version: String,
    /// The blobs of the layers of its images.
    pub(super) blobs: HashSet<Digest>,
}

impl KnownRelease {
    /// Reads the release. The nodes have none of the images that `excludes` leaves out of it.
    pub(super) async fn read(
        release: &Reference,
        excludes: &Excludes,
        source: &ImageSource,
    ) -> Result<Self, ExportError> {
        let (digest, image) = manifest(release, source).await?;
        let mut search = PayloadSearch::default();
        for LayerDescriptor { blob, size, .. } in image.layers.iter().rev() {
            let blob = source.fetch(*blob, *size, vec![release.clone()]).await?;
            let cancel = source.cancel.clone();
            search = run_blocking(move || {
                let read = search.read_layer(blob.open()?, blob.size(), &cancel);
                read.map_err(|source| ExportError::Layer {
                    blob: blob.digest(),
                    source,
                })?;
                Ok(search)
            })
            .await?;
            if search.is_done() {
                break;
            }
        }
        let payload = search.payload().map_err(|source| ExportError::Payload {
            reference: release.to_string(),
            source,
        })?;
        let selection = select(&payload, excludes)?;
        let mut blobs = blobs(image).collect::<HashSet<_>>();
        let images = selection.wanted.iter();
        let manifests = images.map(|request| manifest(&request.reference, source));
        let mut manifests = stream::iter(manifests).buffer_unordered(CONCURRENCY);
        let (mut unknown, mut first) = (0, None);
        while let Some(found) = manifests.next().await {
            match found {
                Ok((_, image)) => blobs.extend(self::blobs(image)),
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => {
                    unknown += 1;
                    first.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first {
            let message = format!(
                "{} of the release `{release}` cannot be read, and what they have is exported again: {error}",
                Count(unknown, "image")
            );
            source.observer.observe(Event::Warned { message });
        }
        Ok(Self {
            reference: release.with_digest(digest),
            version: payload.version,
            blobs,
        })
    }
}

fn blobs(image: ImageManifest) -> impl Iterator<Item = Digest> {
    image.layers.into_iter().map(|layer| layer.blob)
}

/// The digest that a reference has, and the manifest for the platform.
async fn manifest(
    reference: &Reference,
    source: &ImageSource,
) -> Result<(Digest, ImageManifest), ExportError> {
    let unusable = |error| ExportError::Manifest {
        reference: reference.to_string(),
        source: error,
    };
    let top = content(reference, reference.digest(), source).await?;
    let index = match Manifest::parse(top.bytes(), None).map_err(unusable)? {
        Manifest::Image(image) => return Ok((top.digest(), image)),
        Manifest::Index(index) => index,
    };
    let instance = index.choose(&source.platform).map_err(unusable)?;
    let content = content(reference, Some(instance), source).await?;
    match Manifest::parse(content.bytes(), None).map_err(unusable)? {
        Manifest::Image(image) => Ok((top.digest(), image)),
        Manifest::Index(_) => Err(unusable(ManifestError::NestedIndex(instance))),
    }
}

async fn content(
    reference: &Reference,
    digest: Option<Digest>,
    source: &ImageSource,
) -> Result<Content, ExportError> {
    let known = digest.and_then(|digest| source.output.content(digest, MAX_MANIFEST_SIZE));
    match known {
        Some(content) => Ok(content),
        None => Ok(source
            .registries
            .manifest_content(reference, digest, MAX_MANIFEST_SIZE, &source.cancel)
            .await?),
    }
}
