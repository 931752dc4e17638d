//! Speaks to the cluster of our own Job, or of our pod where there is none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::annotations::Status;
use super::api_client::{Api, Body, Effort};
use super::kube_event::{KubeEvent, Regarding};
use super::own_job::{OwnJob, Owner};
use super::rbac::{CREATE_EVENT, PATCH_JOB};
use super::{ClusterError, own_job};

/// Knows whom to speak of, and finds out until it does.
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

    /// How long ago our Job began, as far as that is known.
    pub(super) fn age(&self) -> Duration {
        match &*self.owner() {
            Owner::Job(job) => Timestamp::now().duration_since(job.start).unsigned_abs(),
            Owner::Unknown | Owner::Nobody => Duration::ZERO,
        }
    }

    /// Our Job, asked for again as long as it is not known.
    pub(super) async fn job(&self, effort: Effort) -> Result<Option<OwnJob>, ClusterError> {
        let known = self.owner().clone();
        let owner = match known {
            Owner::Unknown => own_job::owner(&self.api, effort).await?,
            known => known,
        };
        *self.owner() = owner.clone();
        Ok(match owner {
            Owner::Job(job) => Some(job),
            Owner::Unknown | Owner::Nobody => None,
        })
    }

    /// The Job's `resourceVersion` of this moment.
    pub(super) async fn version(&self, job: &OwnJob, effort: Effort) -> Result<String, ClusterError> {
        own_job::version(&self.api, job, effort).await
    }

    /// Annotates the Job; with a `version` only if the Job still has that.
    pub(super) async fn annotate(
        &self,
        job: &OwnJob,
        status: Status,
        line: &str,
        version: Option<&str>,
        effort: Effort,
    ) -> Result<(), ClusterError> {
        let status = Status {
            node: self.api.account.node.clone(),
            ..status.until(job.end, Timestamp::now())
        };
        let annotations = status.annotations(line, self.api.account.index);
        // With its uid, a Job that has taken the name meanwhile is left alone.
        let mut metadata = json!({"uid": job.uid, "annotations": annotations});
        if let Some(version) = version {
            metadata["resourceVersion"] = version.into();
        }
        let body = Body::new("application/merge-patch+json", &json!({"metadata": metadata}));
        self.api.send(&PATCH_JOB, &job.name, &body, effort).await
    }

    /// Sends an event that regards our Job, or else our pod.
    pub(super) async fn send(
        &self,
        happening: &KubeEvent,
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
            // Nobody to speak of.
            (None, None) => return Ok(()),
        };
        let body = happening.body(&regarding, pod);
        self.api.send(&CREATE_EVENT, "", &body, effort).await
    }

    fn owner(&self) -> MutexGuard<'_, Owner> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
