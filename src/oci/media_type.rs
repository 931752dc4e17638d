//! Lists the media types of manifests, and of the configs and layers that they name.

pub use oci_distribution::manifest::{
    IMAGE_CONFIG_MEDIA_TYPE as OCI_IMAGE_CONFIG_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE,
};
use oci_distribution::manifest::{IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE};

/// The `Accept` header of a manifest request, most preferred first. Schema 1 cannot be stored, but it is listed: without
/// it some registries answer 404 for an image that exists, and the error would be wrong.
pub const ACCEPTED_MEDIA_TYPES: [&str; 6] = [
    OCI_IMAGE_INDEX_MEDIA_TYPE,
    IMAGE_MANIFEST_LIST_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
    IMAGE_MANIFEST_MEDIA_TYPE,
    SCHEMA1_SIGNED_MEDIA_TYPE,
    SCHEMA1_MEDIA_TYPE,
];

/// The media type of an artifact's config, if the artifact has none.
pub const OCI_EMPTY_MEDIA_TYPE: &str = "application/vnd.oci.empty.v1+json";

pub(super) const SCHEMA1_MEDIA_TYPE: &str = "application/vnd.docker.distribution.manifest.v1+json";
pub(super) const SCHEMA1_SIGNED_MEDIA_TYPE: &str =
    "application/vnd.docker.distribution.manifest.v1+prettyjws";

/// Every media type of a layer that is a tar.
pub(super) const LAYER_MEDIA_TYPES: [&str; 6] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
];
