//! Describes one image as its registry defines it: manifest, config and layers, checked against each other.

use oci_distribution::config::ROOTFS_TYPE;
use serde::Deserialize;

use super::go_json::schema::CONFIG;
use super::{
    Content, DiffId, Digest, ImageId, ImageManifest, LayerDescriptor, LayerId, Manifest, ManifestError,
    go_json,
};

/// One layer of one image: its blob as the manifest describes it, its tar as the config describes it, and its position
/// on the layers below.
///
/// [`Layer::chain`] alone makes them, so `id` always follows from `parent` and `diff_id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    id: LayerId,
    parent: Option<LayerId>,
    diff_id: DiffId,
    /// Digest of the compressed blob.
    pub blob: Digest,
    /// Length of the compressed blob in bytes.
    pub size: u64,
    /// The manifest's media type. Unpacking detects the compression from the bytes themselves.
    pub media_type: String,
}

impl Layer {
    /// The layers of one image, each on the one before it. `layers` has the base layer first.
    pub fn chain(layers: impl IntoIterator<Item = (LayerDescriptor, DiffId)>) -> Vec<Self> {
        let mut parent = None;
        let layers = layers.into_iter().map(|(descriptor, diff_id)| {
            let LayerDescriptor {
                blob,
                size,
                media_type,
            } = descriptor;
            let id = LayerId::of(parent, diff_id);
            let below = parent.replace(id);
            Self {
                id,
                parent: below,
                diff_id,
                blob,
                size,
                media_type,
            }
        });
        layers.collect()
    }

    /// Its id in the store.
    pub fn id(&self) -> LayerId {
        self.id
    }

    /// The layer below; none for a base layer.
    pub fn parent(&self) -> Option<LayerId> {
        self.parent
    }

    /// Digest of the uncompressed tar.
    pub fn diff_id(&self) -> DiffId {
        self.diff_id
    }
}

/// Manifest, config and, if the reference named one, the list; parsed once and checked against each other:
/// as many layers as diffIDs, and the config's digest is the one in the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedImage {
    /// The manifest list or OCI index that the reference named, if it named one.
    pub list: Option<Content>,
    /// The manifest of the chosen instance.
    pub manifest: Content,
    /// The image's config.
    pub config: Content,
    /// Base layer first.
    pub layers: Vec<Layer>,
    /// The config's `created`, if it has one, as written there.
    pub created: Option<String>,
    /// The signatures of the manifest, in their order, each as the store keeps it. Empty until they are downloaded.
    pub signatures: Vec<Vec<u8>>,
}

impl ResolvedImage {
    /// Assembles an image from the received documents. Refuses a config that differs from the manifest's descriptor in
    /// digest or length, and one without exactly one diffID for each layer.
    ///
    /// The caller has checked that `manifest` is an instance of `list`.
    pub fn assemble(
        list: Option<Content>,
        manifest: Content,
        config: Content,
    ) -> Result<Self, ManifestError> {
        let image = match Manifest::parse(manifest.bytes(), None)? {
            Manifest::Image(image) => image,
            Manifest::Index(_) => return Err(ManifestError::NestedIndex(manifest.digest())),
        };
        let facts = ConfigFacts::read(&image, &config)?;
        let layers = image.layers.into_iter().zip(facts.diff_ids);
        Ok(Self {
            list,
            layers: Layer::chain(layers),
            manifest,
            config,
            created: facts.created,
            signatures: Vec::new(),
        })
    }

    /// The digest that the reference resolved to: the list's, if there is one, else the manifest's.
    pub fn digest(&self) -> Digest {
        self.list.as_ref().unwrap_or(&self.manifest).digest()
    }

    /// The image's id in the store.
    pub fn id(&self) -> ImageId {
        ImageId::of_config(self.config.digest())
    }

    /// The ids of its layers in the store, base layer first.
    pub fn layer_ids(&self) -> Vec<LayerId> {
        self.layers.iter().map(Layer::id).collect()
    }
}

/// The facts of a config that the store needs.
struct ConfigFacts {
    created: Option<String>,
    diff_ids: Vec<DiffId>,
}

/// The fields of a config that are read.
#[derive(Deserialize)]
struct Config {
    created: Option<String>,
    rootfs: Rootfs,
}

#[derive(Deserialize)]
struct Rootfs {
    r#type: String,
    /// Parsed as digests and not as text, so that the first invalid one ends the parsing. As text, a config that is one
    /// long array would take twenty times its length in memory.
    diff_ids: Vec<DiffId>,
}

impl ConfigFacts {
    fn read(image: &ImageManifest, config: &Content) -> Result<Self, ManifestError> {
        if config.digest() != image.config {
            return Err(ManifestError::ConfigDigest {
                expected: image.config,
                found: config.digest(),
            });
        }
        let found = config.bytes().len() as u64;
        if found != image.config_size {
            return Err(ManifestError::ConfigSize {
                expected: image.config_size,
                found,
            });
        }
        go_json::check(config.bytes(), CONFIG).map_err(ManifestError::config)?;
        let Config { created, rootfs } =
            serde_json::from_slice(config.bytes()).map_err(ManifestError::config)?;
        if rootfs.r#type != ROOTFS_TYPE {
            return Err(ManifestError::config(format!(
                "`rootfs.type` is `{}`",
                rootfs.r#type
            )));
        }
        if rootfs.diff_ids.len() != image.layers.len() {
            return Err(ManifestError::DiffIds {
                layers: image.layers.len(),
                diff_ids: rootfs.diff_ids.len(),
            });
        }
        Ok(Self {
            created,
            diff_ids: rootfs.diff_ids,
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn content(text: String) -> Content {
        Content::new(Bytes::from(text))
    }

    fn config(diff_ids: usize) -> Content {
        let ids = vec![format!("\"{}\"", Digest::of(b"tar")); diff_ids].join(",");
        content(format!(
            r#"{{"created":"2024-01-01T00:00:00Z","rootfs":{{"type":"layers","diff_ids":[{ids}]}}}}"#
        ))
    }

    fn manifest(config: Digest, size: usize) -> Content {
        content(format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"application/vnd.oci.image.config.v1+json",
            "digest":"{config}","size":{size}}},"layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar",
            "digest":"{}","size":3}}]}}"#,
            Digest::of(b"blob")
        ))
    }

    #[test]
    fn manifest_and_config_must_agree() {
        let good = config(1);
        let size = good.bytes().len();
        let assemble = |manifest, config: &Content| ResolvedImage::assemble(None, manifest, config.clone());

        let image = assemble(manifest(good.digest(), size), &good).expect("both agree");
        assert_eq!(image.created.as_deref(), Some("2024-01-01T00:00:00Z"));
        assert_eq!(image.layers[0].diff_id(), DiffId(Digest::of(b"tar")));

        let other = config(2);
        let error = assemble(manifest(good.digest(), size), &other);
        assert!(
            matches!(error, Err(ManifestError::ConfigDigest { .. })),
            "{error:?}"
        );
        let error = assemble(manifest(good.digest(), size + 1), &good);
        assert!(
            matches!(error, Err(ManifestError::ConfigSize { .. })),
            "{error:?}"
        );
        let error = assemble(manifest(other.digest(), other.bytes().len()), &other);
        assert_eq!(
            error,
            Err(ManifestError::DiffIds {
                layers: 1,
                diff_ids: 2
            })
        );
    }
}
