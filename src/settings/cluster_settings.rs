//! The cluster whose pod this is: the way to its API, and what of its answers a run goes by.
//!
//! A flag, a variable or a file of the host says more than the API: it was put there for this node, or by somebody who means
//! it.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use crate::cli::Flags;
use crate::cluster::{ClusterInfo, Owner, PATIENCE, ServiceAccount};
use crate::preflight::Threshold;
use crate::registry::{ClusterAuthorities, Pem};

/// Where the kubelet mounts a service account's files. The variable is for tests alone.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const SERVICE_ACCOUNT_VARIABLE: &str = "SPOKE_PRECACHE_SERVICE_ACCOUNT";

/// The way to the API, if this is a pod with a service account and `--no-cluster` is not given.
pub fn account(flags: &Flags) -> Option<ServiceAccount> {
    if flags.cluster.no_cluster {
        return None;
    }
    let dir = text(SERVICE_ACCOUNT_VARIABLE).map_or_else(|| SERVICE_ACCOUNT.into(), PathBuf::from);
    if !dir.join("token").exists() {
        return None;
    }
    let host = text("KUBERNETES_SERVICE_HOST")?;
    let port = text("KUBERNETES_SERVICE_PORT_HTTPS").or_else(|| text("KUBERNETES_SERVICE_PORT"));
    // A pod's name is its host's, but not in an Indexed Job and not with the host's network; then the downward API says it.
    let of_host = || Some(fs::read_to_string("/etc/hostname").ok()?.trim().to_owned());
    Some(ServiceAccount {
        host,
        port: port.and_then(|port| port.parse().ok()).unwrap_or(443),
        dir,
        pod: text("POD_NAME").or_else(|| text("HOSTNAME")).or_else(of_host),
        node: text("NODE_NAME"),
        index: text("JOB_COMPLETION_INDEX").and_then(|index| index.parse().ok()),
    })
}

/// How long the start waits for an API that is busy.
pub fn cluster_patience(flags: &Flags) -> Duration {
    let chosen = flags.cluster.cluster_patience.map(SignedDuration::unsigned_abs);
    chosen.unwrap_or(PATIENCE)
}

/// When the Job will be killed, by our own clock.
pub(super) fn end(facts: &ClusterInfo) -> Option<Instant> {
    let end = facts.job()?.end?;
    let left = end.duration_since(Timestamp::now());
    let left = Duration::try_from(left).unwrap_or_default();
    tracing::info!("the Job will be killed at {end}, and the work is ordered by that");
    Instant::now().checked_add(left)
}

/// Whether somebody else ends the run in time, as far as is known: in a pod, nobody needs to have said so yet.
pub(super) fn may_be_ended(flags: &Flags, facts: &ClusterInfo) -> bool {
    match &facts.owner {
        Owner::Job(job) => job.end.is_some(),
        Owner::Unknown => account(flags).is_some(),
        Owner::Nobody => false,
    }
}

/// The kubelet's own threshold, if it can be worked with.
pub(super) fn threshold(facts: &ClusterInfo) -> Option<Threshold> {
    let percent = facts.image_gc_high_threshold?;
    match Threshold::new(percent) {
        Ok(threshold) => {
            tracing::info!("the kubelet removes images from {threshold} % on");
            Some(threshold)
        }
        Err(error) => {
            tracing::warn!("no use of the kubelet's imageGCHighThresholdPercent: {error}");
            None
        }
    }
}

/// Whom the cluster trusts.
pub(super) fn authorities(facts: &ClusterInfo) -> Vec<ClusterAuthorities> {
    let authorities = facts.authorities.iter().map(|them| ClusterAuthorities {
        host: them.host.clone(),
        pem: Pem {
            path: them.place.clone().into(),
            bytes: them.pem.clone().into_bytes(),
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
