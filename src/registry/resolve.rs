//! Resolves an image reference: downloads the image's index, manifest and config, and verifies each.

use std::sync::Arc;

use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;

use crate::cancel::Cancel;
use crate::oci::{
    ACCEPTED_MEDIA_TYPES, Content, Digest, ImageManifest, MAX_CONFIG_SIZE, MAX_MANIFEST_SIZE, Manifest,
    ManifestError, Platform, Reference, ResolvedImage,
};

use super::Registries;
use super::attempts::Attempts;
use super::error::RegistryError;
use super::http_client;
use super::mirrors::PullSource;
use super::response_monitor::Watchdog;

/// An image, and where its manifest came from.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The image.
    pub image: ResolvedImage,
    /// The source that answered with the manifest of the reference; nothing if all was known or on media. Its name decides where the
    /// signatures are.
    pub source: Option<PullSource>,
}

impl Registries {
    /// Resolves `reference` to the image for `platform`: its index, if it has one, its manifest and its config, each
    /// verified. What `known` returns for the digest of its bytes, from the store for instance, or what a medium has, is not
    /// downloaded; a reference by digest of which all is known needs no registry.
    ///
    /// Everything is downloaded from the sources of `reference` as it is: a mirror for tags also has the manifests that its
    /// indexes name.
    pub async fn resolve(
        &self,
        reference: &Reference,
        platform: &Platform,
        known: &(dyn Fn(&Digest) -> Option<Content> + Sync),
        cancel: &Cancel,
    ) -> Result<Resolved, RegistryError> {
        let unusable = |source| RegistryError::Manifest {
            reference: reference.to_string(),
            source,
        };
        let sources = self.sources(reference)?;
        let (top, manifest, mut source) = self
            .manifest(reference, reference.digest(), &sources, known, cancel)
            .await?;
        let (list, manifest, image) = match manifest {
            Manifest::Image(image) => (None, top, image),
            Manifest::Index(index) => {
                let instance = index.choose(platform).map_err(unusable)?;
                let (content, manifest, of_instance) = self
                    .manifest(reference, Some(instance), &sources, known, cancel)
                    .await?;
                source = source.or(of_instance);
                match manifest {
                    Manifest::Image(image) => (Some(top), content, image),
                    Manifest::Index(_) => return Err(unusable(ManifestError::NestedIndex(instance))),
                }
            }
        };
        let config = self.config(reference, &image, sources, known, cancel).await?;
        let image = ResolvedImage::assemble(list, manifest, config).map_err(unusable)?;
        Ok(Resolved { image, source })
    }

    /// The manifest or index with this digest, or the one that the tag of `reference` names now, of at most `limit` bytes. Its
    /// digest is verified; it is not parsed, so it may be any artifact's.
    pub async fn manifest_content(
        &self,
        reference: &Reference,
        digest: Option<Digest>,
        limit: u64,
        cancel: &Cancel,
    ) -> Result<Content, RegistryError> {
        let digest = digest.or_else(|| reference.digest());
        if let Some(digest) = digest
            && let Some(content) = self.media_content(digest, limit).await
        {
            return Ok(content);
        }
        let target = match digest {
            Some(digest) => digest.to_string(),
            None => reference.tag().unwrap_or_default().to_owned(),
        };
        let item = Item {
            limit,
            ..Item::manifest(&target, digest)
        };
        let attempts = self.attempts(
            format!("manifest `{target}` of `{}`", reference.repository()),
            vec![reference.to_string()],
            self.sources(reference)?,
        );
        let read = |answer: Result<Answer, _>| answer;
        let (answer, _) = self.download(&item, attempts, read, cancel).await?;
        Ok(answer.content)
    }

    /// The manifest or index with this digest, or the one that the reference's tag names now, and the source that answered
    /// with it.
    async fn manifest(
        &self,
        reference: &Reference,
        digest: Option<Digest>,
        sources: &[PullSource],
        known: &(dyn Fn(&Digest) -> Option<Content> + Sync),
        cancel: &Cancel,
    ) -> Result<(Content, Manifest, Option<PullSource>), RegistryError> {
        let parse = |content: &Content, content_type: Option<&str>| {
            Manifest::parse(content.bytes(), content_type).map_err(|source| RegistryError::Manifest {
                reference: reference.to_string(),
                source,
            })
        };
        if let Some(digest) = digest
            && let Some(content) = self.at_hand(known, digest, MAX_MANIFEST_SIZE).await
        {
            let manifest = parse(&content, None)?;
            return Ok((content, manifest, None));
        }
        let target = match digest {
            Some(digest) => digest.to_string(),
            None => reference.tag().unwrap_or_default().to_owned(),
        };
        let item = Item::manifest(&target, digest);
        let attempts = self.attempts(
            format!("the manifest of `{reference}`"),
            vec![reference.to_string()],
            sources.to_vec(),
        );
        let read = |answer: Result<Answer, RegistryError>| {
            let Answer {
                content,
                content_type,
            } = answer?;
            let parsed = parse(&content, content_type.as_deref()).map(|manifest| (content, manifest));
            match parsed {
                // The digest matched, so every source has these bytes.
                Err(error) if digest.is_some() => Ok(Err(error)),
                parsed => parsed.map(Ok),
            }
        };
        let (read, source) = self.download(&item, attempts, read, cancel).await?;
        read.map(|(content, manifest)| (content, manifest, Some(source)))
    }

    /// The known content, if its digest is right, or else what a medium has.
    async fn at_hand(
        &self,
        known: &(dyn Fn(&Digest) -> Option<Content> + Sync),
        digest: Digest,
        limit: u64,
    ) -> Option<Content> {
        match known(&digest).filter(|content| content.digest() == digest) {
            None => self.media_content(digest, limit).await,
            known => known,
        }
    }

    async fn config(
        &self,
        reference: &Reference,
        image: &ImageManifest,
        sources: Vec<PullSource>,
        known: &(dyn Fn(&Digest) -> Option<Content> + Sync),
        cancel: &Cancel,
    ) -> Result<Content, RegistryError> {
        let limit = image.config_size.min(MAX_CONFIG_SIZE);
        if let Some(content) = self.at_hand(known, image.config, limit).await {
            return Ok(content);
        }
        let item = Item {
            name: format!("config {}", image.config),
            path: format!("blobs/{}", image.config),
            accept: "*/*".into(),
            limit,
            digest: Some(image.config),
        };
        let attempts = self.attempts(
            format!("the config of `{reference}`"),
            vec![reference.to_string()],
            sources,
        );
        let read = |answer: Result<Answer, _>| answer;
        let (config, _) = self.download(&item, attempts, read, cancel).await?;
        Ok(config.content)
    }

    /// Downloads an item from the first source whose answer `read` accepts. Returns that source too.
    pub(super) async fn download<T>(
        &self,
        item: &Item,
        mut attempts: Attempts,
        read: impl Fn(Result<Answer, RegistryError>) -> Result<T, RegistryError>,
        cancel: &Cancel,
    ) -> Result<(T, PullSource), RegistryError> {
        loop {
            let source = attempts.next(cancel).await?;
            let downloaded = self.item(&source, item, attempts.watchdog(), cancel).await;
            match read(downloaded) {
                Ok(result) => {
                    attempts.succeeded();
                    return Ok((result, source));
                }
                Err(error) => attempts.failed(error),
            }
        }
    }

    /// Asks one source for an item, whole in memory. Returns its Content-Type too; `Docker-Content-Digest` is ignored.
    async fn item(
        &self,
        source: &PullSource,
        item: &Item,
        watchdog: Arc<Watchdog>,
        cancel: &Cancel,
    ) -> Result<Answer, RegistryError> {
        let client = self.client(source)?;
        let get = self.get(&item.name, item.path.clone(), source, watchdog)?;
        let get = get.accept(&item.accept);
        let response = client.get(&get, cancel).await?;
        if response.status() != StatusCode::OK {
            return Err(client.error_response(response, &get, cancel).await);
        }
        let content_type = response.headers().get(CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        let content_type = content_type.map(str::to_owned);
        let bytes = http_client::body(response, item.limit, &get.what, &get.watchdog, cancel).await?;
        let content = Content::new(bytes);
        match item.digest {
            Some(digest) if digest != content.digest() => Err(RegistryError::WrongDigest {
                what: get.what,
                found: content.digest(),
                mixed: false,
            }),
            _ => Ok(Answer {
                content,
                content_type,
            }),
        }
    }
}

/// A manifest or a config, or a part of an image's signatures.
pub(super) struct Item {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) accept: String,
    /// In bytes.
    pub(super) limit: u64,
    pub(super) digest: Option<Digest>,
}

impl Item {
    /// The manifest with this tag or digest.
    pub(super) fn manifest(target: &str, digest: Option<Digest>) -> Self {
        Self {
            name: format!("manifest `{target}`"),
            path: format!("manifests/{target}"),
            accept: ACCEPTED_MEDIA_TYPES.join(", "),
            limit: MAX_MANIFEST_SIZE,
            digest,
        }
    }
}

/// A downloaded item.
pub(super) struct Answer {
    pub(super) content: Content,
    pub(super) content_type: Option<String>,
}
