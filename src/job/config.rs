//! Configures a run: what to pull, from where, into which store, and within which limits.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;

use super::deltas::DeltaLocation;
use super::signature_policy::SignaturePolicy;
use crate::cluster::ClusterRelease;
use crate::oci::Platform;
use crate::preflight::Threshold;
use crate::priority::IoPriority;
use crate::registry::RegistrySettings;
use crate::release_signature::{NamedKeyring, StoreUrl};
use crate::spec::VersionSpec;
use crate::store::{HostState, StorageConf};

/// Everything that a run needs to know before it starts.
#[derive(Debug)]
pub struct JobConfig {
    /// What to pull.
    pub spec: VersionSpec,
    /// Warnings about the version spec.
    pub warnings: Vec<String>,
    /// Which image of a multi-architecture image to pull.
    pub platform: Platform,
    /// The graph root.
    pub graph_root: PathBuf,
    /// The store's options from the host's storage.conf and crio.conf.
    pub storage_conf: StorageConf,
    /// Where to read which layers are in use.
    pub host_state: HostState,
    /// How to reach registries.
    pub registries: RegistrySettings,
    /// Which signatures an image needs.
    pub signature_policy: SignaturePolicy,
    /// How the release's signature is verified.
    pub release_signature: ReleaseSignatureConfig,
    /// Where deltas are besides the repositories of the images; none if no deltas are used.
    pub deltas: Option<Vec<DeltaLocation>>,
    /// The spool's directory.
    pub spool: PathBuf,
    /// When the run must end, even if it is not finished.
    pub deadline: Option<Instant>,
    /// When this process will be killed, even if it is not finished: the deadline of the Kubernetes Job. The run schedules
    /// its work by it and continues until then, because the hub treats any earlier end as a failure.
    pub known_end: Option<Instant>,
    /// How many blobs are downloaded at the same time.
    pub max_downloads: NonZeroUsize,
    /// How many layers are unpacked at the same time.
    pub max_unpacks: NonZeroUsize,
    /// The disk priority of the threads that unpack and verify layers.
    pub disk_priority: IoPriority,
    /// Disk usage at which the kubelet removes images.
    pub image_gc_high_threshold: Threshold,
}

/// How the release's signature is verified.
#[derive(Clone, Debug, Default)]
pub struct ReleaseSignatureConfig {
    /// The keyrings of the flags.
    pub keys: Vec<NamedKeyring>,
    /// The signature stores of the flags.
    pub stores: Vec<StoreUrl>,
    /// What the cluster's API returned.
    pub cluster: ClusterRelease,
    /// Whether a release that is not verifiable is refused.
    pub required: bool,
}

impl JobConfig {
    /// Whether to retry without limit, because the deadline or another program ends the run.
    pub(super) fn never_gives_up(&self) -> bool {
        self.registries.give_up_after.is_none()
    }

    /// The objects of the node's ostree repository, if it is visible.
    pub(super) fn ostree_objects(&self) -> PathBuf {
        self.registries.host_root.join("ostree/repo/objects")
    }

    /// The earlier of both deadlines.
    pub(super) fn end(&self) -> Option<Instant> {
        [self.deadline, self.known_end].into_iter().flatten().min()
    }
}
