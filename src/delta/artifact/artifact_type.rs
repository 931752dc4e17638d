//! Lists the artifact types of delta artifacts and of their index.

use super::super::Format;

/// The artifact type of the index of a pair of releases.
pub const DELTA_INDEX: &str = "application/vnd.spoke-precache.delta-index.v1";

/// The config blob of every artifact (OCI image spec, "Guidance for an Empty Descriptor").
pub const EMPTY_CONFIG: &[u8] = b"{}";

impl Format {
    /// The artifact type of an artifact with deltas in this format.
    pub fn artifact_type(self) -> &'static str {
        match self {
            Self::TarDiff => "application/vnd.io.github.containers.oci-delta.v1",
            Self::InflatedTarDiff => "application/vnd.spoke-precache.delta.v1",
        }
    }

    /// The format of an artifact with this type.
    pub fn of_artifact_type(artifact_type: &str) -> Option<Self> {
        [Self::TarDiff, Self::InflatedTarDiff]
            .into_iter()
            .find(|format| format.artifact_type() == artifact_type)
    }
}
