//! Configures an export: what is exported, where it goes, and how it is downloaded.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use crate::oci::{Platform, Reference};
use crate::registry::RegistrySettings;
use crate::release_signature::StoreUrl;
use crate::spec::VersionSpec;

/// Everything that an export needs to know before it starts.
#[derive(Debug)]
pub struct ExportConfig {
    /// What is exported.
    pub spec: VersionSpec,
    /// Warnings about the version spec.
    pub warnings: Vec<String>,
    /// The release that the nodes have: its blobs are left out.
    pub since: Option<Reference>,
    /// Which image of a multi-architecture image is exported.
    pub platform: Platform,
    /// The directory, or the tar.
    pub output: PathBuf,
    /// The directory for blobs until they are complete, and for temporary files.
    pub work_dir: PathBuf,
    /// How to reach registries.
    pub registries: RegistrySettings,
    /// Where the signatures of releases are, if not where the release states it.
    pub signature_stores: Vec<StoreUrl>,
    /// How many blobs are downloaded at the same time.
    pub max_downloads: NonZeroUsize,
    /// After this time the export stops.
    pub deadline: Option<Duration>,
}
