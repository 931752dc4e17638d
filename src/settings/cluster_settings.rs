//! Finds the service account of this pod, and selects the settings that a run takes from the cluster's API.
//!
//! A flag, a variable or a file of the host takes precedence over the API, because it was set for this node.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use crate::cli::Flags;
use crate::cluster::{ClusterInfo, Owner, PATIENCE, ServiceAccount};
use crate::preflight::Threshold;
use crate::registry::{ClusterAuthorities, Pem};

/// Where the kubelet mounts a service account's files. Only tests set the variable.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const SERVICE_ACCOUNT_VARIABLE: &str = "SPOKE_PRECACHE_SERVICE_ACCOUNT";

/// The service account, if this is a pod that has one and `--no-cluster` is not set.
pub fn service_account(flags: &Flags) -> Option<ServiceAccount> {
    if flags.cluster.no_cluster {
        return None;
    }
    let dir = text(SERVICE_ACCOUNT_VARIABLE).map_or_else(|| SERVICE_ACCOUNT.into(), PathBuf::from);
    if !dir.join("token").exists() {
        return None;
    }
    let host = text("KUBERNETES_SERVICE_HOST")?;
    let port = text("KUBERNETES_SERVICE_PORT_HTTPS").or_else(|| text("KUBERNETES_SERVICE_PORT"));
    // The host name is the pod's name, except in an Indexed Job and on the host's network, where the downward API sets it.
    let host_name = || Some(fs::read_to_string("/etc/hostname").ok()?.trim().to_owned());
    Some(ServiceAccount {
        host,
        port: port.and_then(|port| port.parse().ok()).unwrap_or(443),
        dir,
        pod: text("POD_NAME").or_else(|| text("HOSTNAME")).or_else(host_name),
        node: text("NODE_NAME"),
        index: text("JOB_COMPLETION_INDEX").and_then(|index| index.parse().ok()),
    })
}

/// How long the start waits for a busy API.
pub fn cluster_patience(flags: &Flags) -> Duration {
    let flag = flags.cluster.cluster_patience.map(SignedDuration::unsigned_abs);
    flag.unwrap_or(PATIENCE)
}

/// When Kubernetes will kill the Job, in this process's monotonic clock.
pub(super) fn job_end(cluster: &ClusterInfo) -> Option<Instant> {
    let deadline = cluster.job()?.deadline?;
    let left = deadline.duration_since(Timestamp::now());
    let left = Duration::try_from(left).unwrap_or_default();
    tracing::info!("Kubernetes kills the Job at {deadline}; the run plans its work accordingly");
    Instant::now().checked_add(left)
}

/// Whether Kubernetes may end the run at a deadline. In a pod whose Job is unknown, it may.
pub(super) fn may_be_ended(flags: &Flags, cluster: &ClusterInfo) -> bool {
    match &cluster.owner {
        Owner::Job(job) => job.deadline.is_some(),
        Owner::Unknown => service_account(flags).is_some(),
        Owner::NoJob => false,
    }
}

/// The kubelet's own threshold, if it is valid.
pub(super) fn threshold(cluster: &ClusterInfo) -> Option<Threshold> {
    let percent = cluster.kubelet.as_ref()?.image_gc_high_threshold?;
    match Threshold::new(percent) {
        Ok(threshold) => {
            tracing::info!("the kubelet removes images when the disk is {threshold} % full");
            Some(threshold)
        }
        Err(error) => {
            tracing::warn!("ignoring the kubelet's `imageGCHighThresholdPercent`: {error}");
            None
        }
    }
}

/// The certificate authorities that the cluster trusts.
pub(super) fn authorities(cluster: &ClusterInfo) -> Vec<ClusterAuthorities> {
    let authorities = cluster.ca_bundles.iter().map(|bundle| ClusterAuthorities {
        host: bundle.host.clone(),
        pem: Pem {
            path: bundle.origin.clone().into(),
            bytes: bundle.pem.clone().into_bytes(),
        },
    });
    authorities.collect()
}

/// A variable that is set and not empty.
fn text(name: &str) -> Option<String> {
    let value = env::var_os(name)?;
    let value = value.to_string_lossy().trim().to_owned();
    (!value.is_empty()).then_some(value)
}
