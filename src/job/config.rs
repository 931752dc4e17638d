//! Configures a run: what to pull, from where, into which store, and within which limits.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use super::deltas::DeltaLocation;
use super::run_end::RunEnd;
use super::signature_policy::SignaturePolicy;
use crate::cluster::{ClusterRelease, KubeletConfig, ManifestFilters, PodTemplates, PoolPins};
use crate::cluster_version::ClusterVersion;
use crate::media::MediumPath;
use crate::oci::Platform;
use crate::preflight::Threshold;
use crate::priority::IoPriority;
use crate::registry::RegistrySettings;
use crate::release_signature::{NamedKeyring, StoreUrl};
use crate::spec::VersionSpec;
use crate::store::{HostState, StorageConf};
use crate::upgrade_readiness::PinPatterns;
use crate::write_back::IoBudget;

/// Everything that a run needs to know before it starts.
#[derive(Debug)]
pub struct JobConfig {
    /// What to pull.
    pub spec: VersionSpec,
    /// Why there is nothing to do, if the cluster requests no release and nothing else is requested. Then there is no run.
    pub nothing_requested: Option<String>,
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
    /// Where manifests and blobs are looked up before registries are asked.
    pub media: Vec<MediumPath>,
    /// How to reach registries.
    pub registries: RegistrySettings,
    /// Which signatures an image needs.
    pub signature_policy: SignaturePolicy,
    /// How the release's signature is verified.
    pub release_signature: ReleaseSignatureConfig,
    /// Which manifests of the release apply, and whether the cluster is installing it.
    pub cluster: ClusterView,
    /// Which images of the release are pulled.
    pub only_used: OnlyUsedConfig,
    /// What CRI-O pins.
    pub pins: PinPatterns,
    /// What the cluster says about the upgrade, if a verification judges whether it finds its images.
    pub upgrade: Option<UpgradeConfig>,
    /// Where deltas are besides the repositories of the images; none if no deltas are used.
    pub deltas: Option<Vec<DeltaLocation>>,
    /// The spool's directory.
    pub spool: PathBuf,
    /// When the run has to end, even if it is not finished.
    pub end: RunEnd,
    /// How many blobs are downloaded at the same time.
    pub max_downloads: NonZeroUsize,
    /// How many layers are unpacked at the same time.
    pub max_unpacks: NonZeroUsize,
    /// The disk priority of the threads that unpack and verify layers.
    pub disk_priority: IoPriority,
    /// How many bytes are written to the disk at once.
    pub io_budget: IoBudget,
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

/// Which images of the release are pulled: all, or those that the node uses.
#[derive(Clone, Debug, Default)]
pub struct OnlyUsedConfig {
    /// Whether images that the node does not use are left out.
    pub is_requested: bool,
    /// The images of the cluster's pod templates, which count as used.
    pub pod_templates: PodTemplates,
    /// Whether a pool of the node has a PinnedImageSet, or will have one.
    pub is_pinned: bool,
}

/// What the cluster says about the upgrade.
#[derive(Clone, Debug)]
pub struct UpgradeConfig {
    /// The kubelet's settings, as far as they are known.
    pub kubelet: KubeletConfig,
    /// The PinnedImageSets of the node's pools, or why they are unknown.
    pub pool_pins: Result<PoolPins, String>,
}

/// What is known about the cluster that the release will update.
#[derive(Clone, Debug)]
pub struct ClusterView {
    /// Its ClusterVersion, or why it is unknown.
    pub version: Result<ClusterVersion, String>,
    /// By what else its version operator filters manifests.
    pub filters: ManifestFilters,
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
}
