//! Lists the reasons why a manifest or a config cannot be used.

use super::Digest;

/// Overlay mounts at most this many layers (containers/storage `drivers/overlay`: `maxDepth`, 500 since 1.44, 128 before).
pub(super) const MAX_LAYERS: usize = 500;

/// The most signatures of one image. This is containers/image's limit for a lookaside store (`maxLookasideSignatures`); it
/// has none for attachments. Real images have fewer than ten.
pub const MAX_SIGNATURES: usize = 128;

/// How many characters of a registry's text an error repeats.
const EXCERPT_CHARS: usize = 120;

/// A registry's text in a form that is safe to log: bounded, on one line, without terminal escapes.
pub(super) fn excerpt(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(EXCERPT_CHARS)
        .collect()
}

/// Why an image cannot be used. A retry helps in none of these cases.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not JSON that Go decodes, ambiguous, or a required field is missing.
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
    /// An unknown `mediaType`.
    #[error("the manifest's `mediaType` is not supported: `{0}`")]
    MediaType(String),
    /// The header contradicts the body.
    #[error("the registry sends the manifest as `{0}`, which contradicts its body")]
    ContentType(String),
    /// Not an image.
    #[error("the reference leads to an artifact with a config of type `{0}`, not to an image")]
    Artifact(String),
    /// A layer that cannot be stored.
    #[error("layer {blob} of type `{media_type}` cannot be pulled: {why}")]
    Layer {
        /// Digest of the blob.
        blob: Digest,
        /// From the manifest.
        media_type: String,
        /// For people.
        why: &'static str,
    },
    /// More layers than overlay can mount.
    #[error("the manifest has {0} layers, overlay can mount {MAX_LAYERS}")]
    TooManyLayers(usize),
    /// The manifest of an image's signatures is another kind of document.
    #[error("the signatures' manifest is not an OCI image manifest, the registry sends it as `{0}`")]
    NotAttachments(String),
    /// More signatures than any image has.
    #[error("the manifest has {0} signatures, more than {MAX_SIGNATURES} are not read")]
    TooManySignatures(usize),
    /// Not SHA-256, or not a digest.
    #[error("the manifest names a digest that is not `sha256:<64 hex>`: `{0}`")]
    Digest(String),
    /// Negative, or larger than any layer.
    #[error("the manifest gives {what} `{digest}` an impossible size: {size} bytes")]
    Size {
        /// Config or blob.
        what: &'static str,
        /// From the manifest.
        digest: String,
        /// From the manifest.
        size: i64,
    },
    /// The list lacks the requested platform.
    #[error("the list has no image for `{wanted}`; it has: {available}")]
    NoSuchPlatform {
        /// The requested platform.
        wanted: String,
        /// The platforms of the list.
        available: String,
    },
    /// The chosen instance is a list itself.
    #[error("the list leads to another list, {0}, where an image is expected")]
    NestedIndex(Digest),
    /// The config is not the one that the manifest names.
    #[error("the config's digest is {found}, the manifest names {expected}")]
    ConfigDigest {
        /// From the manifest.
        expected: Digest,
        /// The digest of the received bytes.
        found: Digest,
    },
    /// The config's length is not the one that the manifest names.
    #[error("the config has {found} bytes, the manifest names {expected}")]
    ConfigSize {
        /// From the manifest.
        expected: u64,
        /// The length of the received bytes.
        found: u64,
    },
    /// Not JSON, or without `rootfs`.
    #[error("the config cannot be read: {0}")]
    Config(String),
    /// The numbers of diffIDs and layers differ.
    #[error("the manifest has {layers} layers, the config {diff_ids} `diff_ids`")]
    DiffIds {
        /// Layers of the manifest.
        layers: usize,
        /// Elements of `rootfs.diff_ids`.
        diff_ids: usize,
    },
}

impl ManifestError {
    pub(crate) fn not_json(error: serde_json::Error) -> Self {
        Self::NotJson(excerpt(&error.to_string()))
    }

    /// The same for a config.
    pub(super) fn config(error: impl ToString) -> Self {
        Self::Config(excerpt(&error.to_string()))
    }

    pub(super) fn digest(text: &str) -> Self {
        Self::Digest(excerpt(text))
    }
}
