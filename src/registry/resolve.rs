//! From a reference to everything about an image but its layers' bytes.

use bytes::Bytes;
use reqwest::StatusCode;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};

use crate::cancel::Cancel;
use crate::oci::{
    ACCEPTED_MEDIA_TYPES, Content, Digest, ImageManifest, MAX_CONFIG_SIZE, MAX_MANIFEST_SIZE, Manifest,
    ManifestError, Platform, Reference, ResolvedImage,
};

use super::Registries;
use super::error::RegistryError;
use super::http_client;
use super::mirrors::PullSource;
use super::registry_client::Get;
use super::watchdog::Watch;

impl Registries {
    /// Finds the image that `reference` names for `platform`: its list, if there is one, its manifest and its
    /// config, each verified. What is `known` by the digest of its bytes, to the store perhaps, is not asked for; a reference by digest of which all is known needs
    /// no registry.
    ///
    /// Everything comes from the sources of `reference` as it stands: a mirror for tags also has the
    /// manifests that its lists name.
    pub async fn resolve(
        &self,
        reference: &Reference,
        platform: &Platform,
        known: &(dyn Fn(&Digest) -> Option<Content> + Sync),
        cancel: &Cancel,
    ) -> Result<ResolvedImage, RegistryError> {
        let unusable = |source| RegistryError::Manifest {
            reference: reference.to_string(),
            source,
        };
        let sources = self.sources(reference)?;
        let (top, manifest) = self
            .manifest(reference, reference.digest(), &sources, known, cancel)
            .await?;
        let (list, manifest, image) = match manifest {
            Manifest::Image(image) => (None, top, image),
            Manifest::Index(index) => {
                let instance = index.choose(platform).map_err(unusable)?;
                let (content, manifest) = self
                    .manifest(reference, Some(instance), &sources, known, cancel)
                    .await?;
                match manifest {
                    Manifest::Image(image) => (Some(top), content, image),
                    Manifest::Index(_) => return Err(unusable(ManifestError::NestedIndex(instance))),
                }
            }
        };
        let config = self.config(reference, &image, sources, known, cancel).await?;
        ResolvedImage::assemble(list, manifest, config).map_err(unusable)
    }

    /// The manifest or list with this digest, or the one that the reference's tag means now.
    async fn manifest(
        &self,
        reference: &Reference,
        digest: Option<Digest>,
        sources: &[PullSource],
        known: &(dyn Fn(&Digest) -> Option<Content> + Sync),
        cancel: &Cancel,
    ) -> Result<(Content, Manifest), RegistryError> {
        let parse = |content: &Content, content_type: Option<&str>| {
            Manifest::parse(content.bytes(), content_type).map_err(|source| RegistryError::Manifest {
                reference: reference.to_string(),
                source,
            })
        };
        if let Some(content) = digest.and_then(|digest| at_hand(known, digest)) {
            let manifest = parse(&content, None)?;
            return Ok((content, manifest));
        }
        let target = match digest {
            Some(digest) => digest.to_string(),
            None => reference.tag().unwrap_or_default().to_owned(),
        };
        let item = Item {
            name: format!("manifest `{target}`"),
            path: format!("manifests/{target}"),
            accept: ACCEPTED_MEDIA_TYPES.join(", "),
            limit: MAX_MANIFEST_SIZE,
            digest,
        };
        let mut attempts = self.attempts(
            format!("the manifest of `{reference}`"),
            vec![reference.to_string()],
            sources.to_vec(),
        );
        loop {
            let source = attempts.next(cancel).await?;
            let parsed = match self.item(&source, &item, &attempts.watch(), cancel).await {
                Ok((content, content_type)) => {
                    attempts.done();
                    parse(&content, content_type.as_deref()).map(|manifest| (content, manifest))
                }
                Err(error) => Err(error),
            };
            match parsed {
                Ok(found) => return Ok(found),
                // The digest says that every source has these bytes.
                Err(error @ RegistryError::Manifest { .. }) if digest.is_some() => return Err(error),
                Err(error) => attempts.failed(error),
            }
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
        if let Some(content) = at_hand(known, image.config) {
            return Ok(content);
        }
        let item = Item {
            name: format!("config {}", image.config),
            path: format!("blobs/{}", image.config),
            accept: "*/*".into(),
            limit: image.config_size.min(MAX_CONFIG_SIZE),
            digest: Some(image.config),
        };
        let mut attempts = self.attempts(
            format!("the config of `{reference}`"),
            vec![reference.to_string()],
            sources,
        );
        loop {
            let source = attempts.next(cancel).await?;
            match self.item(&source, &item, &attempts.watch(), cancel).await {
                Ok((content, _)) => {
                    attempts.done();
                    return Ok(content);
                }
                Err(error) => attempts.failed(error),
            }
        }
    }

    /// Something small, whole in memory, and its Content-Type. `Docker-Content-Digest` is not looked at.
    async fn item(
        &self,
        source: &PullSource,
        item: &Item,
        watch: &Watch,
        cancel: &Cancel,
    ) -> Result<(Content, Option<String>), RegistryError> {
        let what = format!("{} from `{}`", item.name, source.reference.repository());
        let accept = HeaderValue::from_str(&item.accept).expect("media types are ASCII");
        let client = self.client(source)?;
        let credential = self.credentials.find(&source.reference)?;
        let get = Get {
            reference: &source.reference,
            path: item.path.clone(),
            headers: HeaderMap::from_iter([(ACCEPT, accept)]),
            credential: credential.as_ref(),
            what: &what,
            watch,
        };
        let response = client.get(&get, cancel).await?;
        if response.status() != StatusCode::OK {
            return Err(client.refusal(response, &get, cancel).await);
        }
        let content_type = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let content_type = content_type.map(str::to_owned);
        let bytes: Bytes = http_client::body(response, item.limit, &what, watch, cancel).await?;
        let content = Content::new(bytes);
        match item.digest {
            Some(digest) if digest != content.digest() => Err(RegistryError::WrongDigest {
                what,
                found: content.digest(),
                mixed: false,
            }),
            _ => Ok((content, content_type)),
        }
    }
}

/// A manifest or a config to be fetched.
struct Item {
    name: String,
    path: String,
    accept: String,
    /// In bytes.
    limit: u64,
    digest: Option<Digest>,
}

/// What is known, if it is what it should be.
fn at_hand(known: &(dyn Fn(&Digest) -> Option<Content> + Sync), digest: Digest) -> Option<Content> {
    known(&digest).filter(|content| content.digest() == digest)
}
