//! Stores the content of the fake registry: manifests by name, blobs by digest, both within a repository.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use crate::image::{Image, List, sha256};

/// Manifests and blobs.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// (repository, tag or digest) → (media type, bytes)
    manifests: HashMap<(String, String), (String, Bytes)>,
    /// (repository, digest)
    blobs: HashMap<(String, String), Bytes>,
    configs: HashSet<String>,
}

impl Content {
    /// Stores an image under its digest, and under `tag` if there is one.
    pub(crate) fn push(&mut self, repository: &str, tag: Option<&str>, image: &Image) {
        for layer in &image.layers {
            self.put_blob(repository, &layer.digest, layer.blob.clone());
        }
        let config = sha256(&image.config);
        self.put_blob(repository, &config, image.config.clone());
        self.configs.insert(config);
        self.put_manifest(
            repository,
            &image.digest(),
            &image.media_type,
            image.manifest.clone(),
        );
        if let Some(tag) = tag {
            self.put_manifest(repository, tag, &image.media_type, image.manifest.clone());
        }
    }

    /// Stores a list and its instances.
    pub(crate) fn push_list(&mut self, repository: &str, tag: Option<&str>, list: &List) {
        for image in &list.instances {
            self.push(repository, None, image);
        }
        self.put_manifest(repository, &list.digest(), list.media_type, list.bytes.clone());
        if let Some(tag) = tag {
            self.put_manifest(repository, tag, list.media_type, list.bytes.clone());
        }
    }

    /// Stores any bytes as the manifest `name` (a tag or a digest, true or not).
    pub(crate) fn put_manifest(&mut self, repository: &str, name: &str, media_type: &str, bytes: Bytes) {
        let key = (repository.to_owned(), name.to_owned());
        self.manifests.insert(key, (media_type.to_owned(), bytes));
    }

    /// Stores any bytes as the blob `digest`, true or not.
    pub(crate) fn put_blob(&mut self, repository: &str, digest: &str, blob: Bytes) {
        self.blobs
            .insert((repository.to_owned(), digest.to_owned()), blob);
    }

    pub(super) fn manifest(&self, repository: &str, name: &str) -> Option<(String, Bytes)> {
        self.manifests
            .get(&(repository.to_owned(), name.to_owned()))
            .cloned()
    }

    pub(super) fn blob(&self, repository: &str, digest: &str) -> Option<Bytes> {
        self.blobs
            .get(&(repository.to_owned(), digest.to_owned()))
            .cloned()
    }

    pub(super) fn configs(&self) -> HashSet<String> {
        self.configs.clone()
    }

    /// Tags of a repository, sorted.
    pub(super) fn tags(&self, repository: &str) -> Vec<String> {
        let of_it = self
            .manifests
            .keys()
            .filter(|(known, name)| known == repository && !name.contains(':'));
        let mut tags: Vec<String> = of_it.map(|(_, tag)| tag.clone()).collect();
        tags.sort();
        tags
    }
}
