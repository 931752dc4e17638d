//! What a run is to do, and with what.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;

use crate::oci::Platform;
use crate::preflight::Threshold;
use crate::priority::IoPriority;
use crate::registry::RegistrySettings;
use crate::spec::VersionSpec;
use crate::store::{HostState, StorageConf};

/// Everything that a run needs to know before it begins.
#[derive(Debug)]
pub struct JobConfig {
    /// What to pull.
    pub spec: VersionSpec,
    /// Things in the version spec that are odd and stop nothing.
    pub warnings: Vec<String>,
    /// Which instance of a multi-architecture image.
    pub platform: Platform,
    /// The graph root.
    pub graph_root: PathBuf,
    /// What the host's storage.conf and crio.conf say of it.
    pub storage_conf: StorageConf,
    /// Where to see which layers are in use.
    pub host_state: HostState,
    /// How to reach registries.
    pub registries: RegistrySettings,
    /// The spool's directory.
    pub spool: PathBuf,
    /// When the run is to end, done or not.
    pub deadline: Option<Instant>,
    /// When we will be killed, done or not: the Job's own deadline. The work is ordered by it, and goes on until then, for
    /// to the hub any end before it is a failure.
    pub known_end: Option<Instant>,
    /// Blobs at the same time.
    pub max_downloads: NonZeroUsize,
    /// Layers at the same time.
    pub max_unpacks: NonZeroUsize,
    /// Of the threads that unpack layers, and of those that read them again.
    pub disk_priority: IoPriority,
    /// Disk use at which the kubelet removes images.
    pub image_gc_high_threshold: Threshold,
}

impl JobConfig {
    /// Whether to go on as long as another try may help, for somebody ends the run in time.
    pub(super) fn never_gives_up(&self) -> bool {
        self.registries.give_up_after.is_none()
    }

    /// When there is no more time, whoever takes it away.
    pub(super) fn end(&self) -> Option<Instant> {
        [self.deadline, self.known_end].into_iter().flatten().min()
    }
}
