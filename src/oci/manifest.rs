//! Parses image manifests and indexes as registries send them.
//!
//! A manifest that cannot be stored faithfully is refused with its reason: schema 1, artifacts, foreign and encrypted
//! layers, layers of unknown type, digests that are not SHA-256, impossible sizes, bodies that could be read as either an
//! image or an index (CVE-2021-41190), and bodies that Go would not decode ([`go_json`]).

use oci_distribution::manifest::{
    IMAGE_CONFIG_MEDIA_TYPE, IMAGE_DOCKER_CONFIG_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE,
};
use serde::Deserialize;

use super::manifest_error::{MAX_LAYERS, excerpt};
use super::manifest_kind::ManifestKind;
use super::media_type::LAYER_MEDIA_TYPES;
use super::{Digest, Index, ManifestError, go_json};

/// 1 TiB: no layer is that large, and sums of smaller sizes cannot overflow.
const MAX_LAYER_SIZE: i64 = 1 << 40;

/// The largest config, which is read into memory. containers/image reads no larger one, not even from the store
/// (`iolimits.MaxConfigBodySize`).
pub const MAX_CONFIG_SIZE: u64 = 4 << 20;

/// The largest manifest or index, which is read into memory; containers/image has the same limit
/// (`iolimits.MaxManifestBodySize`).
pub const MAX_MANIFEST_SIZE: u64 = 4 << 20;

/// What a reference resolves to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manifest {
    /// One image, for some platform.
    Image(ImageManifest),
    /// A manifest list or OCI index.
    Index(Index),
}

/// A schema 2 or OCI image manifest that can be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageManifest {
    /// Digest of the config blob.
    pub config: Digest,
    /// Its length in bytes, at most [`MAX_CONFIG_SIZE`].
    pub config_size: u64,
    /// Base layer first.
    pub layers: Vec<LayerDescriptor>,
}

/// A layer's descriptor in a manifest (OCI image spec, descriptor.md).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerDescriptor {
    /// Digest of the compressed blob.
    pub blob: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// One of `LAYER_MEDIA_TYPES`.
    pub media_type: String,
}

impl Manifest {
    /// Parses a manifest's bytes. `content_type` is the header of the HTTP response, if it had one.
    pub fn parse(bytes: &[u8], content_type: Option<&str>) -> Result<Self, ManifestError> {
        let kind = ManifestKind::of(bytes)?;
        go_json::check(bytes, kind.schema()).map_err(ManifestError::not_json)?;
        kind.check_content_type(content_type)?;
        match kind {
            ManifestKind::Image => {
                let manifest = serde_json::from_slice(bytes).map_err(ManifestError::not_json)?;
                ImageManifest::check(manifest).map(Self::Image)
            }
            ManifestKind::Index { oci } => {
                let index = serde_json::from_slice(bytes).map_err(ManifestError::not_json)?;
                Index::check(index, oci).map(Self::Index)
            }
        }
    }
}

/// The fields of an image manifest that are read here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestBody {
    media_type: Option<String>,
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: i64,
    urls: Option<Vec<String>>,
}

impl ImageManifest {
    fn check(manifest: ManifestBody) -> Result<Self, ManifestError> {
        let config = &manifest.config;
        // In a manifest with OCI's `mediaType`, containers/image treats Docker's config as an artifact's
        // (`manifestOCI1.OCIConfig`), and CRI-O could not list the image.
        let is_oci = manifest.media_type.as_deref() == Some(OCI_IMAGE_MEDIA_TYPE);
        let is_config = match config.media_type.as_str() {
            IMAGE_CONFIG_MEDIA_TYPE => true,
            IMAGE_DOCKER_CONFIG_MEDIA_TYPE => !is_oci,
            _ => false,
        };
        if !is_config {
            return Err(ManifestError::Artifact(excerpt(&config.media_type)));
        }
        if manifest.layers.len() > MAX_LAYERS {
            return Err(ManifestError::TooManyLayers(manifest.layers.len()));
        }
        let config_size = size_of(config)?;
        if config_size > MAX_CONFIG_SIZE {
            return Err(impossible_size("config", config));
        }
        Ok(Self {
            config: digest(config)?,
            config_size,
            layers: manifest
                .layers
                .into_iter()
                .map(LayerDescriptor::check)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl LayerDescriptor {
    fn check(layer: Descriptor) -> Result<Self, ManifestError> {
        let blob = digest(&layer)?;
        let kind = layer.media_type.as_str();
        let refuse = |why| {
            Err(ManifestError::Layer {
                blob,
                media_type: excerpt(kind),
                why,
            })
        };
        if kind.ends_with("+encrypted") {
            return refuse("it is encrypted");
        }
        if kind.contains(".foreign.") || kind.contains(".nondistributable.") {
            return refuse("foreign layers are stored outside the registry and must not be redistributed");
        }
        if layer.urls.as_ref().is_some_and(|urls| !urls.is_empty()) {
            return refuse("it is only available from `urls` outside the registry");
        }
        if !LAYER_MEDIA_TYPES.contains(&kind) {
            return refuse("its media type is not a layer's");
        }
        Ok(Self {
            blob,
            size: size_of(&layer)?,
            media_type: layer.media_type,
        })
    }
}

fn digest(descriptor: &Descriptor) -> Result<Digest, ManifestError> {
    descriptor
        .digest
        .parse()
        .map_err(|_| ManifestError::digest(&descriptor.digest))
}

fn impossible_size(what: &'static str, descriptor: &Descriptor) -> ManifestError {
    ManifestError::Size {
        what,
        digest: excerpt(&descriptor.digest),
        size: descriptor.size,
    }
}

fn size_of(descriptor: &Descriptor) -> Result<u64, ManifestError> {
    match u64::try_from(descriptor.size) {
        Ok(size) if descriptor.size <= MAX_LAYER_SIZE => Ok(size),
        _ => Err(impossible_size("blob", descriptor)),
    }
}

#[cfg(test)]
mod tests {
    use oci_distribution::manifest::{IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE};

    use super::*;
    use crate::oci::media_type::SCHEMA1_SIGNED_MEDIA_TYPE;

    fn a(fill: char) -> String {
        format!("sha256:{}", fill.to_string().repeat(64))
    }

    fn image(layer: &str) -> String {
        format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"{IMAGE_CONFIG_MEDIA_TYPE}","digest":"{}","size":2}},
            "layers":[{layer}]}}"#,
            a('c')
        )
    }

    fn refusal(body: &str) -> String {
        match Manifest::parse(body.as_bytes(), None) {
            Ok(manifest) => panic!("accepted as {manifest:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_manifest_with_text_that_go_replaces_or_ignores_is_accepted() {
        let layer = format!(
            r#"{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"{}","size":3,"annotations":{{"a":null}}}}"#,
            a('b')
        );
        for more in [
            r#""annotations":{"a":"\ud83d"}"#,
            r#""annotations":{"a":null}"#,
            r#""subject":{}"#,
        ] {
            let body = image(&layer).replacen('{', &format!("{{{more},"), 1);
            assert!(Manifest::parse(body.as_bytes(), None).is_ok(), "{body}");
        }
    }

    #[test]
    fn a_manifest_that_cannot_be_stored_is_refused_with_its_reason() {
        let layer = |kind: &str, more: &str| {
            image(&format!(
                r#"{{"mediaType":"{kind}","digest":"{}","size":3{more}}}"#,
                a('b')
            ))
        };
        let tar = "application/vnd.oci.image.layer.v1.tar";
        for (body, why) in [
            (layer(&format!("{tar}+gzip+encrypted"), ""), "is encrypted"),
            (
                layer("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", ""),
                "foreign layers",
            ),
            (
                layer("application/vnd.oci.image.layer.nondistributable.v1.tar", ""),
                "foreign layers",
            ),
            (layer(tar, r#","urls":["https://elsewhere/"]"#), "`urls` outside"),
            (
                layer(r"text/plain\u001b[31m", ""),
                "`text/plain[31m` cannot be pulled: its media type",
            ),
            (layer(tar, "").replace(":3", ":-3"), "impossible size: -3"),
            (
                layer(tar, "").replace(":3", ":9223372036854775807"),
                "impossible size",
            ),
            (layer(tar, "").replace(&a('b'), "sha512:00"), "not `sha256:"),
            (layer(tar, "").replace("image.config", "custom"), "artifact"),
            (layer(tar, r#","Size":4"#), "`Size` may be read as `size`"),
            (
                layer(tar, "")
                    .replace(IMAGE_CONFIG_MEDIA_TYPE, IMAGE_DOCKER_CONFIG_MEDIA_TYPE)
                    .replacen('{', &format!(r#"{{"mediaType":"{OCI_IMAGE_MEDIA_TYPE}","#), 1),
                "artifact",
            ),
            (layer(tar, r#","size":4"#), "duplicate field"),
            (
                image("").replacen('{', r#"{"manifests":[],"#, 1),
                "`manifests`: does not belong",
            ),
            (
                image("").replacen('{', r#"{"Layers":[],"#, 1),
                "`Layers` may be read as `layers`",
            ),
            (
                image("").replacen('{', r#"{"layer\u017f":[],"#, 1),
                "`layer\u{17f}` may be read as `layers`",
            ),
            (image("").replace("[]", "null"), "cannot be read"),
            (r#"{"schemaVersion":1,"fsLayers":[]}"#.into(), "schema 1"),
            (
                r#"{"schemaVersion":99999}"#.into(),
                "`schemaVersion` is not supported: 99999",
            ),
            ("[]".into(), "cannot be read"),
        ] {
            let message = refusal(&body);
            assert!(message.contains(why), "{message}\nof {body}");
        }
    }

    #[test]
    fn only_a_content_type_that_contradicts_the_body_is_refused() {
        let body = image("");
        let parse = |header| Manifest::parse(body.as_bytes(), Some(header)).map(|_| ());
        assert_eq!(parse("application/json"), Ok(()));
        assert_eq!(parse(IMAGE_MANIFEST_MEDIA_TYPE), Ok(()));
        assert_eq!(
            parse("application/vnd.oci.image.index.v1+json; charset=utf-8"),
            Err(ManifestError::ContentType(OCI_IMAGE_INDEX_MEDIA_TYPE.into()))
        );
        assert_eq!(parse(SCHEMA1_SIGNED_MEDIA_TYPE), Err(ManifestError::Schema1));
    }
}
