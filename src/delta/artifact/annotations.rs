//! Names the annotations of delta artifacts and of their index.

/// Digest of the target image's manifest.
pub(super) const TARGET: &str = "io.github.containers.delta.target";
/// Digest of the manifest of old image 0.
pub(super) const SOURCE: &str = "io.github.containers.delta.source";
/// Digest of the config of old image 0.
pub(super) const SOURCE_CONFIG: &str = "io.github.containers.delta.source-config";
/// JSON array of the digests of the blobs that the target shares with old image 0.
pub(super) const REUSED: &str = "io.github.containers.delta.reused";
/// JSON array of their diffIDs, in the same order.
pub(super) const REUSED_DIFF_ID: &str = "io.github.containers.delta.reused-diff-id";
/// Of a layer: what it is.
pub(super) const CONTENT: &str = "io.github.containers.delta.content";
/// Of a layer: digest of the blob that it makes, as the target image's manifest names it.
pub(super) const TO: &str = "io.github.containers.delta.to";

/// Of a layer: length in bytes of the tar that it makes.
pub(super) const TAR_SIZE: &str = "io.spoke-precache.delta.tar-size";
/// Digests of the configs of the old images, separated by commas; image 0 first.
pub(super) const SOURCES: &str = "io.spoke-precache.delta.sources";
/// The ostree commit in old image 0.
pub(super) const OSTREE_COMMIT: &str = "io.spoke-precache.delta.ostree-commit";
/// Of an index: the old release, as a reference with the digest of its manifest. Nodes read indexes from releases that they
/// have first.
pub const FROM: &str = "io.spoke-precache.delta.from";
/// Of an index: the new release, as a reference with the digest of its manifest.
pub(super) const RELEASE: &str = "io.spoke-precache.delta.release";
/// Of an index: digests of the manifests of target images for which no delta saves anything, separated by commas.
pub(super) const WITHOUT: &str = "io.spoke-precache.delta.without";

/// Values of [`CONTENT`].
pub(super) const IMAGE_MANIFEST: &str = "image-manifest";
pub(super) const IMAGE_CONFIG: &str = "image-config";
pub(super) const IMAGE_LAYER: &str = "image-layer";
