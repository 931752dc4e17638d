//! Resolves releases: the release image, and the images that its payload names.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::stream::{self, StreamExt as _};

use super::error::CreationError;
use super::named_image::NamedImage;
use super::payload_layers::payload;
use super::tar_cache::TarCache;
use crate::cancel::Cancel;
use crate::oci::{Platform, Reference, ResolvedImage};
use crate::registry::Registries;
use crate::release::Payload;

/// How many images are resolved at the same time. Each takes two or three small requests.
const RESOLVES: usize = 16;

/// The name of the release image itself among the images of its payload. No tag of a payload contains a space.
const RELEASE_IMAGE: &str = "release image";

/// An image of a payload that could not be resolved.
#[derive(Clone, Debug)]
pub(super) struct UnresolvedImage {
    pub(super) name: String,
    pub(super) reference: Reference,
    pub(super) error: Arc<CreationError>,
}

/// A release.
#[derive(Debug)]
pub(super) struct ReleaseImages {
    /// Its name for people.
    pub(super) name: String,
    /// The release image first, then the payload in its order.
    pub(super) images: Vec<NamedImage>,
    pub(super) unresolved: Vec<UnresolvedImage>,
}

/// Resolves images, each once.
pub(super) struct Resolver<'a> {
    registries: &'a Registries,
    platform: &'a Platform,
    cancel: &'a Cancel,
    resolved: Mutex<HashMap<Reference, Arc<ResolvedImage>>>,
}

impl<'a> Resolver<'a> {
    pub(super) fn new(registries: &'a Registries, platform: &'a Platform, cancel: &'a Cancel) -> Self {
        Self {
            registries,
            platform,
            cancel,
            resolved: Mutex::default(),
        }
    }

    /// One image, named after its repository.
    pub(super) async fn image(&self, reference: &Reference) -> Result<NamedImage, CreationError> {
        let path = reference.path();
        let name = path.rsplit('/').next().unwrap_or(path);
        self.named(name, reference).await
    }

    /// A release and the images of its payload.
    pub(super) async fn release(
        &self,
        reference: &Reference,
        tars: &TarCache,
    ) -> Result<ReleaseImages, CreationError> {
        let release = self.named(RELEASE_IMAGE, reference).await?;
        let Payload { version, tags } = payload(&release, tars, self.cancel).await?;
        let resolved = stream::iter(tags).map(|tag| async move {
            let resolved = self.named(&tag.name, &tag.reference).await;
            resolved.map_err(|error| (tag, error))
        });
        let mut resolved = resolved.buffered(RESOLVES);
        let (mut images, mut unresolved) = (vec![release.clone()], Vec::new());
        while let Some(image) = resolved.next().await {
            match image {
                Ok(image) => images.push(image),
                Err((_, error)) if error.is_fatal() => return Err(error),
                Err((tag, error)) => unresolved.push(UnresolvedImage {
                    name: tag.name,
                    reference: tag.reference,
                    error: Arc::new(error),
                }),
            }
        }
        Ok(ReleaseImages {
            name: format!("{version} ({reference})"),
            images,
            unresolved,
        })
    }

    async fn named(&self, name: &str, reference: &Reference) -> Result<NamedImage, CreationError> {
        let known = || self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().get(reference).cloned();
        let image = match found {
            Some(image) => image,
            None => {
                let nothing = |_: &_| None;
                let resolve = self
                    .registries
                    .resolve(reference, self.platform, &nothing, self.cancel);
                let image = Arc::new(resolve.await?.image);
                known().insert(reference.clone(), Arc::clone(&image));
                image
            }
        };
        Ok(NamedImage {
            name: name.to_owned(),
            reference: reference.with_digest(image.manifest.digest()),
            image,
        })
    }
}
