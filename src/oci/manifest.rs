//! Manifests and lists as registries send them, parsed once into values that can be relied on.
//!
//! The body decides what it is, as for containers/image (`GuessMIMEType`): the store keeps no Content-Type, so
//! whoever reads the manifest back will judge by the body too. A Content-Type that calls a list an image, or
//! the reverse, and a body that could be read as either are refused (CVE-2021-41190).
//!
//! Everything that this program could not store faithfully is refused by name: schema 1, artifacts, foreign and
//! encrypted layers, layers of unknown type, digests that are not SHA-256, sizes that cannot be.

use std::collections::BTreeMap;

use oci_distribution::manifest::{
    IMAGE_CONFIG_MEDIA_TYPE, IMAGE_DOCKER_CONFIG_MEDIA_TYPE, IMAGE_MANIFEST_LIST_MEDIA_TYPE,
    IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::go_schema::{IMAGE_MANIFEST, INDEX};
use super::{Digest, Index, go_json};

/// What we ask a registry for, best first. Schema 1 is asked for only to be refused by name: without it some
/// registries answer 404 for an image that is there.
pub const ACCEPTED_MEDIA_TYPES: [&str; 6] = [
    OCI_IMAGE_INDEX_MEDIA_TYPE,
    IMAGE_MANIFEST_LIST_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
    IMAGE_MANIFEST_MEDIA_TYPE,
    SCHEMA1_SIGNED_MEDIA_TYPE,
    SCHEMA1_MEDIA_TYPE,
];

pub(super) const SCHEMA1_MEDIA_TYPE: &str = "application/vnd.docker.distribution.manifest.v1+json";
pub(super) const SCHEMA1_SIGNED_MEDIA_TYPE: &str =
    "application/vnd.docker.distribution.manifest.v1+prettyjws";

const LAYER_MEDIA_TYPES: [&str; 6] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
];

/// Overlay mounts no more (containers/storage `drivers/overlay`: `maxDepth`, 500 since 1.44, 128 before).
const MAX_LAYERS: usize = 500;

/// One tebibyte: no layer is that large, and sums of sizes below it cannot overflow.
const MAX_LAYER_SIZE: i64 = 1 << 40;

/// Configs are read into memory; containers/image reads no larger one (`iolimits.MaxConfigBodySize`), not even out of
/// the store.
pub const MAX_CONFIG_SIZE: u64 = 4 << 20;

/// Manifests and lists are read into memory; containers/image has the same limit
/// (`iolimits.MaxManifestBodySize`).
pub const MAX_MANIFEST_SIZE: u64 = 4 << 20;

/// What a reference led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manifest {
    /// One image, for whatever platform.
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
    /// Digest of the blob as it travels.
    pub blob: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// One of the six types of tar that exist.
    pub media_type: String,
}

impl Manifest {
    /// Reads a manifest's bytes. `content_type` is the header of the answer, if it had one.
    pub fn parse(bytes: &[u8], content_type: Option<&str>) -> Result<Self, ManifestError> {
        let fields: Fields<'_> = serde_json::from_slice(bytes).map_err(ManifestError::not_json)?;
        let form = Form::of(&fields)?;
        go_json::check(bytes, form.schema()).map_err(ManifestError::not_json)?;
        form.agree(content_type)?;
        match form {
            Form::Image => {
                let manifest = serde_json::from_slice(bytes).map_err(ManifestError::not_json)?;
                ImageManifest::check(manifest).map(Self::Image)
            }
            Form::Index { oci } => {
                let index = serde_json::from_slice(bytes).map_err(ManifestError::not_json)?;
                Index::check(index, oci).map(Self::Index)
            }
        }
    }
}

/// A body's own fields, their values left as they are: a value that is parsed into a tree takes forty times its
/// length in memory, and these are bytes that nobody has verified.
#[derive(Deserialize)]
struct Fields<'a>(#[serde(borrow)] BTreeMap<String, &'a RawValue>);

impl<'a> Fields<'a> {
    /// The value of a field, if it has the type that is expected.
    fn read<T: Deserialize<'a>>(&self, name: &str) -> Option<T> {
        self.0
            .get(name)
            .and_then(|value| serde_json::from_str(value.get()).ok())
    }
}

/// What a body claims to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Image,
    Index { oci: bool },
}

impl Form {
    fn of(fields: &Fields<'_>) -> Result<Self, ManifestError> {
        let media_type: Option<String> = fields.read("mediaType");
        match media_type.as_deref() {
            Some(OCI_IMAGE_MEDIA_TYPE | IMAGE_MANIFEST_MEDIA_TYPE) => return Ok(Self::Image),
            Some(OCI_IMAGE_INDEX_MEDIA_TYPE) => return Ok(Self::Index { oci: true }),
            Some(IMAGE_MANIFEST_LIST_MEDIA_TYPE) => return Ok(Self::Index { oci: false }),
            Some(SCHEMA1_MEDIA_TYPE | SCHEMA1_SIGNED_MEDIA_TYPE) => return Err(ManifestError::Schema1),
            Some(other) if !other.is_empty() => return Err(ManifestError::MediaType(excerpt(other))),
            _ => {}
        }
        match fields.read::<i64>("schemaVersion") {
            Some(2) => {}
            Some(1) => return Err(ManifestError::Schema1),
            Some(version) => return Err(ManifestError::SchemaVersion(version.to_string())),
            None => return Err(ManifestError::SchemaVersion("missing".into())),
        }
        // One instance will do, whatever follows it.
        let has_instances = fields.0.get("manifests").is_some_and(|instances| {
            let inside = instances.get().trim_start().strip_prefix('[');
            inside.is_some_and(|inside| !inside.trim_start().starts_with(']'))
        });
        Ok(if has_instances && !fields.0.contains_key("config") {
            Self::Index { oci: true }
        } else {
            Self::Image
        })
    }

    /// What Go decodes such a body into.
    fn schema(self) -> go_json::Type {
        match self {
            Self::Image => IMAGE_MANIFEST,
            Self::Index { .. } => INDEX,
        }
    }

    /// Docker's and OCI's types for the same form are taken for each other, and types that say nothing, such as
    /// `application/json`, are passed over: caches and object stores send them.
    fn agree(self, content_type: Option<&str>) -> Result<(), ManifestError> {
        let Some(header) = content_type else { return Ok(()) };
        let essence = header.split(';').next().unwrap_or_default().trim();
        let is_index = match essence {
            OCI_IMAGE_MEDIA_TYPE | IMAGE_MANIFEST_MEDIA_TYPE => false,
            OCI_IMAGE_INDEX_MEDIA_TYPE | IMAGE_MANIFEST_LIST_MEDIA_TYPE => true,
            SCHEMA1_MEDIA_TYPE | SCHEMA1_SIGNED_MEDIA_TYPE => return Err(ManifestError::Schema1),
            _ => return Ok(()),
        };
        if is_index == matches!(self, Self::Index { .. }) {
            Ok(())
        } else {
            Err(ManifestError::ContentType(excerpt(essence)))
        }
    }
}

/// What is read of an image's manifest; the rest is for others, who may take more than serde does.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
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
    fn check(manifest: Body) -> Result<Self, ManifestError> {
        let config = &manifest.config;
        // In a manifest that says it is OCI's, containers/image takes Docker's config for an artifact's
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
            return Err(ManifestError::size("config", config));
        }
        Ok(Self {
            config: digest(&config.digest)?,
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
        let blob = digest(&layer.digest)?;
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
            return refuse("foreign layers lie outside the registry and may not be redistributed");
        }
        if layer.urls.as_ref().is_some_and(|urls| !urls.is_empty()) {
            return refuse("it is to be had from `urls` outside the registry");
        }
        if !LAYER_MEDIA_TYPES.contains(&kind) {
            return refuse("its media type is not one of a layer");
        }
        Ok(Self {
            blob,
            size: size_of(&layer)?,
            media_type: layer.media_type,
        })
    }
}

pub(super) fn digest(text: &str) -> Result<Digest, ManifestError> {
    text.parse().map_err(|_| ManifestError::Digest(excerpt(text)))
}

fn size_of(descriptor: &Descriptor) -> Result<u64, ManifestError> {
    match u64::try_from(descriptor.size) {
        Ok(size) if descriptor.size <= MAX_LAYER_SIZE => Ok(size),
        _ => Err(ManifestError::size("blob", descriptor)),
    }
}

/// The length of a registry's text that an error may repeat.
const EXCERPT_CHARS: usize = 120;

/// A piece of a registry's text that may appear in a log: bounded, on one line, without terminal escapes.
pub(super) fn excerpt(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(EXCERPT_CHARS)
        .collect()
}

/// Why an image cannot be used. None of these goes away by trying again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not JSON that Go decodes, ambiguous, or without a field that must be there.
    #[error("the manifest cannot be read: {0}")]
    NotJson(String),
    /// Schema 1, signed or not.
    #[error(
        "the manifest is of schema 1, which is not supported\nhint: push the image again with a current tool, \
         which converts it to schema 2"
    )]
    Schema1,
    /// Neither 1 nor 2.
    #[error("the manifest's `schemaVersion` is not supported: {0}")]
    SchemaVersion(String),
    /// `mediaType` is none of those that we know.
    #[error("the manifest's `mediaType` is not supported: `{0}`")]
    MediaType(String),
    /// The header contradicts the body.
    #[error("the registry calls the manifest `{0}`, its body says otherwise")]
    ContentType(String),
    /// Not an image.
    #[error("the reference leads to an artifact with a config of type `{0}`, not to an image")]
    Artifact(String),
    /// A layer that cannot be stored.
    #[error("layer {blob} of type `{media_type}` cannot be pulled: {why}")]
    Layer {
        /// Digest of the blob.
        blob: Digest,
        /// As the manifest says.
        media_type: String,
        /// For people.
        why: &'static str,
    },
    /// More layers than overlay can mount.
    #[error("the manifest has {0} layers, overlay can mount {MAX_LAYERS}")]
    TooManyLayers(usize),
    /// Not SHA-256, or not a digest.
    #[error("the manifest names a digest that is not `sha256:<64 hex>`: `{0}`")]
    Digest(String),
    /// Negative or absurd.
    #[error("the manifest gives {what} `{digest}` an impossible size: {size} bytes")]
    Size {
        /// Config or blob.
        what: &'static str,
        /// As the manifest says.
        digest: String,
        /// As the manifest says.
        size: i64,
    },
    /// The list lacks the wanted platform.
    #[error("the list has no image for `{wanted}`; it has: {available}")]
    NoSuchPlatform {
        /// The platform that was looked for.
        wanted: String,
        /// Those that there are.
        available: String,
    },
    /// The chosen instance is a list itself.
    #[error("the list leads to another list, {0}, where an image is expected")]
    NestedIndex(Digest),
    /// The config is not the one that the manifest names.
    #[error("the config's digest is {found}, the manifest names {expected}")]
    ConfigDigest {
        /// As the manifest says.
        expected: Digest,
        /// What there is.
        found: Digest,
    },
    /// The config's length is not the one that the manifest names.
    #[error("the config has {found} bytes, the manifest says {expected}")]
    ConfigSize {
        /// As the manifest says.
        expected: u64,
        /// What there is.
        found: u64,
    },
    /// Not JSON, or without `rootfs`.
    #[error("the config cannot be read: {0}")]
    Config(String),
    /// As many diffIDs as layers are needed.
    #[error("the manifest has {layers} layers, the config {diff_ids} `diff_ids`")]
    DiffIds {
        /// Layers of the manifest.
        layers: usize,
        /// Elements of `rootfs.diff_ids`.
        diff_ids: usize,
    },
}

impl ManifestError {
    fn not_json(error: serde_json::Error) -> Self {
        Self::NotJson(excerpt(&error.to_string()))
    }

    /// The same for a config.
    pub(super) fn config(error: impl ToString) -> Self {
        Self::Config(excerpt(&error.to_string()))
    }

    fn size(what: &'static str, descriptor: &Descriptor) -> Self {
        Self::Size {
            what,
            digest: excerpt(&descriptor.digest),
            size: descriptor.size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_go_replaces_or_passes_over_is_no_reason_to_refuse() {
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
    fn refuses_by_name_what_cannot_be_stored() {
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
    fn a_header_that_contradicts_the_body_is_refused_and_one_that_says_nothing_is_not() {
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
