//! Annotates this Job and sends events about it, or about this pod if it has no Job.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::annotations::StatusAnnotation;
use super::api_client::{Api, Body, Effort};
use super::kube_event::{KubeEvent, Regarding};
use super::own_job::{OwnJob, Owner};
use super::rbac::{CREATE_EVENT, PATCH_JOB};
use super::{ClusterError, own_job};

/// Sends requests about this Job; finds the Job first if it is unknown.
#[derive(Debug)]
pub(super) struct JobClient {
    api: Arc<Api>,
    owner: Mutex<Owner>,
}

impl JobClient {
    pub(super) fn new(api: Arc<Api>, owner: Owner) -> Self {
        Self {
            api,
            owner: Mutex::new(owner),
        }
    }

    /// The time since the start of this Job; zero if it is unknown.
    pub(super) fn age(&self) -> Duration {
        match &*self.owner() {
            Owner::Job(job) => Timestamp::now().duration_since(job.start).unsigned_abs(),
            Owner::Unknown | Owner::NoJob => Duration::ZERO,
        }
    }

    /// This Job, requested from the API until it is known.
    pub(super) async fn job(&self, effort: Effort) -> Result<Option<OwnJob>, ClusterError> {
        let known = self.owner().clone();
        let owner = match known {
            Owner::Unknown => own_job::find_owner(&self.api, effort).await?,
            known => known,
        };
        *self.owner() = owner.clone();
        Ok(match owner {
            Owner::Job(job) => Some(job),
            Owner::Unknown | Owner::NoJob => None,
        })
    }

    /// The Job's current `resourceVersion`.
    pub(super) async fn resource_version(
        &self,
        job: &OwnJob,
        effort: Effort,
    ) -> Result<String, ClusterError> {
        own_job::resource_version(&self.api, job, effort).await
    }

    /// Annotates the Job; with a `resource_version` only if the Job still has it.
    pub(super) async fn annotate(
        &self,
        job: &OwnJob,
        status: StatusAnnotation,
        line: &str,
        resource_version: Option<&str>,
        effort: Effort,
    ) -> Result<(), ClusterError> {
        let status = StatusAnnotation {
            node: self.api.account.node.clone(),
            ..status.with_deadline(job.deadline, Timestamp::now())
        };
        let annotations = status.annotations(line, self.api.account.index);
        // With the uid, the API refuses the patch if another Job has the name now.
        let mut metadata = json!({"uid": job.uid, "annotations": annotations});
        if let Some(version) = resource_version {
            metadata["resourceVersion"] = version.into();
        }
        let body = Body::new("application/merge-patch+json", &json!({"metadata": metadata}));
        self.api.send(&PATCH_JOB, &job.name, &body, effort).await
    }

    /// Sends an event about the Job, or about this pod without one.
    pub(super) async fn send_event(
        &self,
        event: &KubeEvent,
        job: Option<&OwnJob>,
        effort: Effort,
    ) -> Result<(), ClusterError> {
        let pod = self.api.account.pod.as_deref();
        let namespace = &self.api.namespace;
        let regarding = match (job, pod) {
            (Some(job), _) => Regarding {
                api_version: "batch/v1",
                kind: "Job",
                namespace,
                name: &job.name,
                uid: Some(&job.uid),
            },
            (None, Some(pod)) => Regarding {
                api_version: "v1",
                kind: "Pod",
                namespace,
                name: pod,
                uid: None,
            },
            // No object that the event could be about.
            (None, None) => return Ok(()),
        };
        let body = event.body(&regarding, pod);
        self.api.send(&CREATE_EVENT, "", &body, effort).await
    }

    fn owner(&self) -> MutexGuard<'_, Owner> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
