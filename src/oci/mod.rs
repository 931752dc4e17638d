//! Defines the OCI types: digests, identifiers, references, manifests and platforms.
//!
//! Nothing here does I/O. A received value keeps its bytes ([`Content`]): a manifest is stored, hashed and compared as the
//! bytes that were received, never as a serialised form of the parsed value.

mod content;
mod descriptor;
mod digest;
pub(crate) mod go_json;
mod id;
mod image;
mod index;
mod manifest;
mod manifest_error;
mod manifest_kind;
mod media_type;
mod platform;
mod reference;
mod scope;
mod signature_manifest;

pub use content::Content;
pub use descriptor::Descriptor;
pub use digest::{Digest, DigestError, Hasher};
pub use id::{DiffId, ImageId, LayerId};
pub use image::{Layer, ResolvedImage};
pub use index::Index;
pub use manifest::{ImageManifest, LayerDescriptor, MAX_CONFIG_SIZE, MAX_MANIFEST_SIZE, Manifest};
pub use manifest_error::{MAX_SIGNATURES, ManifestError};
pub use media_type::{
    ACCEPTED_MEDIA_TYPES, OCI_EMPTY_MEDIA_TYPE, OCI_IMAGE_CONFIG_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
};
pub use platform::Platform;
pub(crate) use reference::{DEFAULT_DOMAIN, OFFICIAL, is_component, is_domain, parts};
pub use reference::{Reference, ReferenceError};
pub(crate) use scope::scopes_of;
pub use signature_manifest::{SignatureLayer, SignatureManifest};
