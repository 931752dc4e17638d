//! Our own Job: whose pod we are, and when it will be killed.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;

use super::ClusterError;
use super::api_client::{Api, Effort};
use super::rbac::{GET_JOB, GET_POD};

/// Whose pod we are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// Not known, perhaps not yet.
    #[default]
    Unknown,
    /// No Job's.
    Nobody,
    /// This one's.
    Job(OwnJob),
}

/// A Job that runs us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnJob {
    /// Its name.
    pub name: String,
    /// Its uid: another Job may have the name later.
    pub uid: String,
    /// When it began: `status.startTime`.
    pub start: Timestamp,
    /// When it will be killed, if ever: so long after that as `spec.activeDeadlineSeconds` says.
    pub end: Option<Timestamp>,
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

/// Finds out. A pod whose name is not known has an owner that is not known.
pub(super) async fn owner(api: &Api, effort: Effort) -> Result<Owner, ClusterError> {
    let Some(pod) = &api.account.pod else {
        return Ok(Owner::Unknown);
    };
    let pod: Pod = match api.get(&GET_POD, pod, effort).await {
        Err(error) if error.is_missing() => return Err(ClusterError::NoPod { name: pod.clone() }),
        found => found?,
    };
    let mut owners = pod.metadata.owner_references.into_iter();
    let job = owners.find(|owner| owner.kind == "Job" && owner.api_version == "batch/v1");
    let Some(OwnerReference { name, uid, .. }) = job else {
        return Ok(Owner::Nobody);
    };
    let job: Job = api.get(&GET_JOB, &name, effort).await?;
    let start = start(&job, Timestamp::now());
    Ok(Owner::Job(OwnJob {
        start,
        end: end(&job, start),
        name,
        uid,
    }))
}

/// The Job's `resourceVersion` of this moment: a patch that has it changes nothing if anybody wrote the Job since.
pub(super) async fn version(api: &Api, job: &OwnJob, effort: Effort) -> Result<String, ClusterError> {
    let there: Job = api.get(&GET_JOB, &job.name, effort).await?;
    match there.metadata.uid == job.uid {
        true => Ok(there.metadata.resource_version),
        false => Err(ClusterError::Replaced {
            name: job.name.clone(),
        }),
    }
}

/// The Job's controller may make the pod before it writes when the Job started; that was a moment ago then.
fn start(job: &Job, now: Timestamp) -> Timestamp {
    let start = job.status.start_time.as_ref();
    start.and_then(|start| start.parse().ok()).unwrap_or(now)
}

fn end(job: &Job, start: Timestamp) -> Option<Timestamp> {
    let seconds = job.spec.active_deadline_seconds?;
    start.checked_add(Duration::from_secs(seconds)).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_job_ends_when_its_time_is_over() {
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
                end(&job, start(&job, now)).map(|end| end.to_string()).as_deref(),
                expected,
                "{text}"
            );
        }
    }
}
