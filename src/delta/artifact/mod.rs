//! Reads and writes the documents that describe deltas in a registry: one index for a pair of releases, and an artifact for
//! each image and format.
//!
//! ```text
//! manifest of the target release
//!      ↑ subject
//! index            artifactType application/vnd.spoke-precache.delta-index.v1
//!   └─ manifests   one descriptor for each artifact: artifactType, target image, sources
//!        └─ artifact   artifactType application/vnd.io.github.containers.oci-delta.v1, or ours
//!             ├─ subject  manifest of the target image
//!             └─ layers   image-manifest, image-config, then one delta for each layer (`delta.to`)
//! ```
//!
//! The artifact with deltas in `tardf1` is the one of containers/oci-delta (README, `pkg/oci-delta/create.go`), and other
//! programs apply it. Ours has the same layout with another artifact type and our media type. All blobs, artifacts and the
//! index are in one repository.
//!
//! What is parsed here is untrusted: sizes and counts are bounded, and nothing unknown is kept in memory. A wrong document
//! costs a delta, never an image.

mod annotations;
mod artifact_type;
mod bounded;
mod delta_artifact;
mod delta_index;
mod error;
#[cfg(test)]
mod tests;

pub use annotations::FROM;
pub use artifact_type::{DELTA_INDEX, EMPTY_CONFIG};
pub use delta_artifact::{DeltaArtifact, NewArtifact};
pub use delta_index::{ArtifactDescriptor, DeltaIndex};
pub use error::ArtifactError;
