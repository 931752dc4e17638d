//! Talks to the cluster's API: reads settings of the node and of this Job, and reports the run's progress.
//!
//! ```text
//! ServiceAccount → Api ─┬─ ClusterInfo::query ───→ threshold, pull policy, proxy, this Job,     at the start
//!                       │                             release keys and signatures, pod templates,
//!                       │                             filters of manifests, requested release
//!                       ├─ ClusterReporter ──────→ annotations of this Job, events              during the run
//!                       ├─ PoolPins::query ──────→ PinnedImageSets of this node's pools         for the OS image, `--for-upgrade`
//!                       └─ PinnedImageSets::apply                                               after the run
//! ```
//!
//! All of it is optional: a value that the API does not return in time is left out, a Job that cannot be annotated is a
//! warning in the log, and no error here ends a run. [`UpgradeObjects`] are the exception: they are the version spec of
//! `--from-cluster`. Only the start waits, at most [`PATIENCE`]. Only requests of [`RULES`]
//! are sent. The token is sent only to the API server, whose certificate must be signed by the service account's `ca.crt`,
//! and is in no message. Requests use no proxy.

mod annotations;
mod api_client;
mod cluster_info;
mod cluster_release;
mod cluster_reporter;
mod error;
mod job_client;
mod kube_event;
mod kubelet_config;
mod manifest_filters;
mod own_job;
mod pinned_image_set;
mod pod_templates;
mod pool_pins;
mod pull_credentials_policy;
mod rbac;
mod run_state;
mod service_account;
mod update_interval;
mod upgrade_objects;

pub use api_client::Api;
pub use cluster_info::{CaBundle, ClusterInfo, ClusterNeeds, ClusterProxy, PATIENCE};
pub use cluster_release::{ClusterRelease, ClusterSignature, ReleaseNeeds};
pub use cluster_reporter::ClusterReporter;
pub use error::ClusterError;
pub use kubelet_config::KubeletConfig;
pub use manifest_filters::{FeatureGates, ManifestFilters, OperatorSettings};
pub use own_job::{OwnJob, Owner};
pub use pinned_image_set::PinnedImageSets;
pub use pod_templates::{PodTemplates, TemplateImage};
pub use pool_pins::PoolPins;
pub use rbac::{CONFIG_NAMESPACE, MANAGED_NAMESPACE, RULES, Rule, RuleScope};
pub use service_account::ServiceAccount;
pub use update_interval::INTERVAL;
pub use upgrade_objects::UpgradeObjects;
