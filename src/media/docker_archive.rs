//! Reads the `manifest.json` of a docker-archive, which has no manifests: the configs and the layers' tars.
//!
//! A config's name proves nothing, so its digest is computed. A layer's tar is proven by the diffID in the config, by whoever
//! unpacks it. The compressed blobs that a manifest in a registry names cannot be made from it.

use std::collections::HashMap;

use serde::Deserialize;

use super::tree::Tree;
use crate::oci::{DiffId, Digest, MAX_CONFIG_SIZE};

/// How many images of an archive are read; `podman save` of a release has 190.
const MAX_IMAGES: usize = 2000;

/// How many bytes the configs may have together; those of a release have 2 MiB.
const MAX_CONFIGS: u64 = 64 << 20;

/// How many layers an image may have; containers/storage mounts no more (`maxDepth`, overlay.go).
const MAX_LAYERS: usize = 500;

/// The files of a docker-archive by digest.
#[derive(Debug, Default)]
pub(super) struct DockerArchive {
    configs: HashMap<Digest, String>,
    layers: HashMap<DiffId, String>,
}

/// An element of `manifest.json` (containers/image `docker/internal/tarfile/types.go`).
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Image {
    config: String,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Config {
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<DiffId>,
}

impl DockerArchive {
    /// Reads the configs that `manifest` names; none if it is no such file. An image that cannot be read is a warning.
    pub(super) fn read(manifest: &[u8], tree: &Tree, warnings: &mut Vec<String>) -> Option<Self> {
        let images: Vec<Image> = serde_json::from_slice(manifest).ok()?;
        let mut archive = Self::default();
        if images.len() > MAX_IMAGES {
            warnings.push(format!(
                "`manifest.json` has {} images; only the first {MAX_IMAGES} are used",
                images.len()
            ));
        }
        let mut left = MAX_CONFIGS;
        for image in images.into_iter().take(MAX_IMAGES) {
            let shown: String = image.config.chars().take(100).collect();
            if let Err(why) = archive.add(image, tree, &mut left) {
                warnings.push(format!(
                    "the image with the config `{}` is skipped: {why}",
                    shown.escape_debug()
                ));
            }
        }
        Some(archive)
    }

    fn add(&mut self, image: Image, tree: &Tree, left: &mut u64) -> Result<(), String> {
        let path = clean(&image.config).ok_or("its path leads outside")?;
        let read = tree
            .read(&path, MAX_CONFIG_SIZE.min(*left))
            .map_err(|error| error.to_string())?;
        let bytes = read.ok_or("it is missing")?;
        *left -= bytes.len() as u64;
        let config: Config = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        let (layers, diff_ids) = (image.layers, config.rootfs.diff_ids);
        if layers.len() != diff_ids.len() {
            return Err(format!(
                "{} layers, and {} in the config",
                layers.len(),
                diff_ids.len()
            ));
        }
        if layers.len() > MAX_LAYERS {
            return Err(format!("more than {MAX_LAYERS} layers"));
        }
        self.configs.insert(Digest::of(&bytes), path);
        let layers = diff_ids.into_iter().zip(layers);
        self.layers
            .extend(layers.filter_map(|(diff_id, path)| Some((diff_id, clean(&path)?))));
        Ok(())
    }

    /// The path of the config with this digest.
    pub(super) fn config_path(&self, digest: &Digest) -> Option<String> {
        self.configs.get(digest).cloned()
    }

    /// The path of the layer's tar.
    pub(super) fn layer_path(&self, diff_id: DiffId) -> Option<&str> {
        self.layers.get(&diff_id).map(String::as_str)
    }
}

/// The path without `.` and empty components; none if it has `..`, which no program writes here.
fn clean(path: &str) -> Option<String> {
    let components = path.split('/').filter(|name| !matches!(*name, "" | "."));
    let components: Vec<&str> = components.collect();
    (!components.contains(&"..")).then(|| components.join("/"))
}
