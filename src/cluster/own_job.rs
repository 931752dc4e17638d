//! Finds the Job that owns this pod, its start and its deadline.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;

use super::ClusterError;
use super::api_client::{Api, Effort};
use super::rbac::{GET_JOB, GET_POD};

/// The owner of this pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// Unknown, perhaps not yet known.
    #[default]
    Unknown,
    /// The pod belongs to no Job.
    NoJob,
    /// The pod belongs to this Job.
    Job(OwnJob),
}

/// The Job that owns this pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnJob {
    /// Its name.
    pub name: String,
    /// Its uid: another Job may get the same name later.
    pub uid: String,
    /// Its start: `status.startTime`.
    pub start: Timestamp,
    /// Its deadline, if it has one: `spec.activeDeadlineSeconds` after the start.
    pub deadline: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: PodMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMetadata {
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnerReference {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

#[derive(Deserialize)]
struct Job {
    #[serde(default)]
    metadata: JobMetadata,
    #[serde(default)]
    spec: JobSpec,
    #[serde(default)]
    status: JobStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JobMetadata {
    uid: String,
    resource_version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JobSpec {
    active_deadline_seconds: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JobStatus {
    start_time: Option<String>,
}

/// Finds the owner of this pod. It is unknown if the pod's name is unknown.
pub(super) async fn find_owner(api: &Api, effort: Effort) -> Result<Owner, ClusterError> {
    let Some(pod) = &api.account.pod else {
        return Ok(Owner::Unknown);
    };
    let pod: Pod = match api.get(&GET_POD, pod, effort).await {
        Err(error) if error.is_not_found() => return Err(ClusterError::NoPod { name: pod.clone() }),
        found => found?,
    };
    let mut owners = pod.metadata.owner_references.into_iter();
    let job = owners.find(|owner| owner.kind == "Job" && owner.api_version == "batch/v1");
    let Some(OwnerReference { name, uid, .. }) = job else {
        return Ok(Owner::NoJob);
    };
    let job: Job = api.get(&GET_JOB, &name, effort).await?;
    let start = start(&job, Timestamp::now());
    Ok(Owner::Job(OwnJob {
        start,
        deadline: deadline(&job, start),
        name,
        uid,
    }))
}

/// The Job's current `resourceVersion`: the API refuses a patch with it if another client has written the Job since.
pub(super) async fn resource_version(
    api: &Api,
    job: &OwnJob,
    effort: Effort,
) -> Result<String, ClusterError> {
    let current: Job = api.get(&GET_JOB, &job.name, effort).await?;
    match current.metadata.uid == job.uid {
        true => Ok(current.metadata.resource_version),
        false => Err(ClusterError::Replaced {
            name: job.name.clone(),
        }),
    }
}

/// The Job's start. The Job's controller may create the pod before it writes the start, which then was a moment ago.
fn start(job: &Job, now: Timestamp) -> Timestamp {
    let start = job.status.start_time.as_ref();
    start.and_then(|start| start.parse().ok()).unwrap_or(now)
}

fn deadline(job: &Job, start: Timestamp) -> Option<Timestamp> {
    let seconds = job.spec.active_deadline_seconds?;
    start.checked_add(Duration::from_secs(seconds)).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_deadline_is_counted_from_the_start() {
        for (text, expected) in [
            (
                r#"{"spec": {"activeDeadlineSeconds": 14400}, "status": {"startTime": "2026-01-02T03:04:05Z"}}"#,
                Some("2026-01-02T07:04:05Z"),
            ),
            (
                r#"{"spec": {}, "status": {"startTime": "2026-01-02T03:04:05Z"}}"#,
                None,
            ),
            (
                r#"{"spec": {"activeDeadlineSeconds": 14400}, "status": {}}"#,
                Some("2026-01-02T07:00:00Z"),
            ),
            (
                r#"{"spec": {"activeDeadlineSeconds": 14400}, "status": {"startTime": "soon"}}"#,
                Some("2026-01-02T07:00:00Z"),
            ),
            (
                r#"{"spec": {"activeDeadlineSeconds": 9223372036854775807}, "status": {}}"#,
                None,
            ),
            (r#"{"metadata": {}}"#, None),
        ] {
            let job: Job = serde_json::from_str(text).unwrap();
            let now = "2026-01-02T03:00:00Z".parse().unwrap();
            assert_eq!(
                deadline(&job, start(&job, now))
                    .map(|time| time.to_string())
                    .as_deref(),
                expected,
                "{text}"
            );
        }
    }
}
