//! The cluster's API, as far as this run has business there: what it says of the node and of our Job, and what it is told.
//!
//! ```text
//! service account ─ServiceAccount→ Api ─┬─ ClusterInfo::learn ──→ threshold, pull policy, proxy, our Job      at the start
//!                                ├─ ClusterReporter ────────→ annotations of our Job, events              during the run
//!                                └─ PinnedImageSet::apply                                        after it
//! ```
//!
//! All of it is a help and nothing of it is needed: what the API does not say in time is gone without, a Job that cannot be
//! annotated costs a line in the log, and no error here ends a run. Only the start waits, [`PATIENCE`] at most. What is asked is what [`RULES`] has and nothing
//! else. The token goes to the API server alone, whose certificate the service account's `ca.crt` must vouch for, and is in
//! no message. No proxy is between.

mod annotations;
mod api_client;
mod cluster_info;
mod cluster_reporter;
mod error;
mod job_client;
mod kube_event;
mod own_job;
mod pinned_image_set;
mod pull_credentials_policy;
mod rbac;
mod service_account;
mod update_interval;

pub use api_client::Api;
pub use cluster_info::{Authorities, ClusterInfo, ClusterProxy, PATIENCE};
pub use cluster_reporter::ClusterReporter;
pub use error::ClusterError;
pub use own_job::{OwnJob, Owner};
pub use pinned_image_set::PinnedImageSets;
pub use pull_credentials_policy::PullVerification;
pub use rbac::{CONFIG_NAMESPACE, RULES, Rule, Scope};
pub use service_account::ServiceAccount;
pub use update_interval::INTERVAL;
