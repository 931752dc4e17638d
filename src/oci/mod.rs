//! The OCI vocabulary: digests, identifiers, references, manifests and platforms.
//!
//! Nothing here does I/O. A value that was received keeps its bytes ([`Content`]), for a manifest is stored,
//! hashed and compared as the bytes that crossed the wire and never as what they were parsed to.

mod content;
mod digest;
mod go_json;
mod go_schema;
mod id;
mod image;
mod index;
mod manifest;
mod platform;
mod reference;

pub use content::Content;
pub use digest::{Digest, DigestError, Hasher};
pub use id::{DiffId, ImageId, LayerId};
pub use image::{Layer, ResolvedImage};
pub use index::Index;
pub use manifest::{
    ACCEPTED_MEDIA_TYPES, ImageManifest, LayerDescriptor, MAX_CONFIG_SIZE, MAX_MANIFEST_SIZE, Manifest,
    ManifestError,
};
pub use platform::Platform;
pub(crate) use reference::is_domain;
pub use reference::{Reference, ReferenceError};
