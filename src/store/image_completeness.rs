//! Checks whether CRI-O can start a container from an image, without reading every file of its layers.

use std::collections::HashSet;

use serde::Deserialize;

use super::error::StoreError;
use super::expected_layer::LayerBlob;
use super::image_record::MANIFEST;
use super::inventory::{Inventory, StoredImage};
use super::signature_lengths::SignatureLengths;
use crate::oci::{DiffId, Digest, LayerId};

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: Digest,
    size: Option<i64>,
}

impl Descriptor {
    fn blob(&self) -> LayerBlob {
        LayerBlob {
            digest: self.digest,
            size: self.size.and_then(|size| u64::try_from(size).ok()),
        }
    }
}

#[derive(Deserialize)]
struct Config {
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
}

impl Inventory {
    /// Describes what is wrong with the image; `None` if every file of big data has its recorded size, manifest and
    /// config match their digests, and the layers are those of the config, each complete and mountable.
    pub fn find_flaw(&self, image: &StoredImage) -> Result<Option<String>, StoreError> {
        for (key, item) in &image.items {
            let found = match std::fs::metadata(self.at(image.location).layout.big_data(&image.id, key)) {
                Ok(metadata) => Some(metadata.len()),
                Err(_) => None,
            };
            match (item.size, found) {
                (Some(recorded), Some(found)) if recorded == found => {}
                (recorded, None) => {
                    return Ok(Some(format!(
                        "its `{key}` of {} bytes is missing",
                        recorded.unwrap_or(0)
                    )));
                }
                (recorded, Some(found)) => {
                    let recorded = recorded.map_or("no size".to_owned(), |size| format!("{size} bytes"));
                    return Ok(Some(format!(
                        "its `{key}` has {found} bytes, its record has {recorded}"
                    )));
                }
            }
        }
        // CRI-O cannot open an image with another `metadata`.
        if SignatureLengths::parse(image.metadata.as_deref()).is_none() {
            return Ok(Some("its `metadata` does not parse".to_owned()));
        }
        let manifest = match self.read_json::<Manifest>(image, MANIFEST)? {
            Ok(manifest) => manifest,
            Err(flaw) => return Ok(Some(flaw)),
        };
        let config = match self.read_json::<Config>(image, &manifest.config.digest.to_string())? {
            Ok(config) => config,
            Err(flaw) => return Ok(Some(flaw)),
        };
        Ok(self.flaw_of_chain(image, &manifest, &config))
    }

    /// The diffIDs of the image's layers, base layer first; `None` if manifest or config cannot be read. Manifests
    /// that we refuse to pull are read too: another program may have stored them, and CRI-O accepts them.
    pub(super) fn diff_ids(&self, image: &StoredImage) -> Result<Option<Vec<DiffId>>, StoreError> {
        let Ok(manifest) = self.read_json::<Manifest>(image, MANIFEST)? else {
            return Ok(None);
        };
        let config = self.read_json::<Config>(image, &manifest.config.digest.to_string())?;
        Ok(config
            .ok()
            .map(|config| config.rootfs.diff_ids.into_iter().map(DiffId).collect()))
    }

    /// The blobs of the image's layers, base layer first; none if the manifest cannot be read.
    pub fn blobs_of(&self, image: &StoredImage) -> Result<Vec<LayerBlob>, StoreError> {
        let manifest = self.read_json::<Manifest>(image, MANIFEST)?;
        let layers = manifest.map_or_else(|_| Vec::new(), |manifest| manifest.layers);
        Ok(layers.iter().map(Descriptor::blob).collect())
    }

    /// The diffIDs that images of all stores pair with this blob.
    pub(super) fn diff_ids_of_blob(&self, blob: &Digest) -> Result<HashSet<DiffId>, StoreError> {
        let mut found = HashSet::new();
        for image in self.all_images() {
            let blobs = self.blobs_of(image)?;
            if blobs.iter().any(|it| it.digest == *blob) {
                let diff_ids = self.diff_ids(image)?.unwrap_or_default();
                let pairs = blobs.iter().zip(diff_ids);
                found.extend(
                    pairs
                        .filter(|(it, _)| it.digest == *blob)
                        .map(|(_, diff_id)| diff_id),
                );
            }
        }
        Ok(found)
    }

    fn flaw_of_chain(&self, image: &StoredImage, manifest: &Manifest, config: &Config) -> Option<String> {
        let diff_ids = &config.rootfs.diff_ids;
        if diff_ids.len() != manifest.layers.len() {
            return Some(format!(
                "it has {} layers and {} diffIDs",
                manifest.layers.len(),
                diff_ids.len()
            ));
        }
        let mut next = image.layer.clone();
        for diff_id in diff_ids.iter().rev() {
            let Some(id) = next else {
                return Some(format!("its chain of layers has fewer than {}", diff_ids.len()));
            };
            let Some(layer) = LayerId::from_hex(&id).and_then(|id| self.mountable(&id)) else {
                return Some(format!("its layer {id} is missing or cannot be mounted"));
            };
            if layer.diff_id.is_some_and(|found| found.0 != *diff_id) {
                return Some(format!("its layer {id} is not the one of its config"));
            }
            next = layer.parent.map(|parent| parent.to_string());
        }
        next.map(|_| format!("its chain of layers has more than {}", diff_ids.len()))
    }

    /// Reads an item, compares its digest with the record, and parses it.
    fn read_json<T: for<'de> Deserialize<'de>>(
        &self,
        image: &StoredImage,
        key: &str,
    ) -> Result<Result<T, String>, StoreError> {
        let Some(item) = image.items.get(key) else {
            return Ok(Err(format!("it has no `{key}`")));
        };
        let Some(content) = self.read_item(image, key)? else {
            return Ok(Err(format!("its `{key}` is missing")));
        };
        if item.digest != Some(content.digest()) {
            return Ok(Err(format!(
                "its `{key}` has the digest {}, which differs from its record",
                content.digest()
            )));
        }
        Ok(serde_json::from_slice(content.bytes())
            .map_err(|error| format!("its `{key}` does not parse: {error}")))
    }
}
