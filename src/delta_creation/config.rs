//! Configures a creation: its releases and images, its destination, and its share of the host.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use crate::oci::{Platform, Reference};
use crate::registry::RegistrySettings;

/// Everything that a creation needs to know before it starts.
#[derive(Debug)]
pub struct CreationConfig {
    /// Releases that nodes have.
    pub from: Vec<Reference>,
    /// The release that they will get; set if `from` is not empty.
    pub to: Option<Reference>,
    /// Single images: what nodes have, and what they will get.
    pub images: Vec<(Reference, Reference)>,
    /// Where the deltas go.
    pub target: Target,
    /// Which image of a multi-architecture image is meant.
    pub platform: Platform,
    /// How to reach registries.
    pub registries: RegistrySettings,
    /// The directory for temporary layers and deltas.
    pub work_dir: PathBuf,
    /// Bytes of memory for comparing files.
    pub memory: u64,
    /// How many deltas are created at the same time.
    pub jobs: NonZeroUsize,
    /// How many blobs are downloaded at the same time.
    pub max_downloads: NonZeroUsize,
    /// After this time the creation stops.
    pub deadline: Option<Duration>,
}

/// Where the deltas go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A repository: any reference in it.
    Repository(Reference),
    /// A directory with an OCI layout.
    Layout(PathBuf),
}
