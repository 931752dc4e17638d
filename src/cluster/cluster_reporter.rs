//! Reports a run to the cluster: annotations on this Job, and Kubernetes events.
//!
//! # Design
//!
//! Events of the run only update the [`RunState`], in the thread that emits them, under a lock that is never held during I/O.
//! Two tasks read that state. One patches the Job's annotations with the current status: immediately, when a plan has more
//! images than the one before, and periodically ([`UpdateInterval`]), so that nothing queues up behind a slow API. The other
//! sends the few Kubernetes events. The run waits for neither task, and the tasks do not wait for each other. At the end both
//! are aborted, and [`ClusterReporter::finish`] sends the last annotation and the remaining events within the time that its
//! caller allows.
//!
//! A patch that was cancelled may still arrive at the API server, and must not overwrite the last one. So every patch except
//! the last contains the `resourceVersion` that the Job had just before: a late patch has an old version, and the API refuses
//! it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout_at};

use super::ClusterError;
use super::annotations::StatusAnnotation;
use super::api_client::{Api, Effort, backoff};
use super::job_client::JobClient;
use super::kube_event::KubeEvent;
use super::own_job::{OwnJob, Owner};
use super::run_state::{Change, RunState};
use super::update_interval::{INTERVAL, UpdateInterval};
use crate::report::{Event, Observer, Phase, Report};

/// How long one annotation or event may take; the next one is more current.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// How often an annotation is retried because another client wrote the Job at the same moment. The pods of an Indexed Job
/// all start together.
const CONFLICT_RETRIES: u32 = 4;

/// Reports the events of a run to the cluster.
#[derive(Debug)]
pub struct ClusterReporter {
    shared: Arc<Shared>,
    tasks: Vec<AbortHandle>,
}

#[derive(Debug)]
struct Shared {
    job_client: JobClient,
    state: Mutex<RunState>,
    /// There is an event to send.
    event_queued: Notify,
    /// The plan has more images than the annotation: after the first plan, and after a release or a catalog is read. That
    /// happens a few times per run.
    plan_grew: Notify,
}

impl ClusterReporter {
    /// Starts the tasks in the current runtime.
    pub fn start(api: Arc<Api>, owner: Owner) -> Self {
        let node = api.account.node.clone();
        let shared = Arc::new(Shared {
            job_client: JobClient::new(api, owner),
            state: Mutex::default(),
            event_queued: Notify::new(),
            plan_grew: Notify::new(),
        });
        let on_node = node.map_or(String::new(), |node| format!(" on node `{node}`"));
        let note = format!("pre-caching starts{on_node}");
        let started = KubeEvent::new(false, "PreCacheStarted", &note);
        let change = shared.state().queue_event(started);
        shared.notify(change);
        let annotator = tokio::spawn(annotate(Arc::clone(&shared)));
        let sender = tokio::spawn(send_events(Arc::clone(&shared)));
        Self {
            shared,
            tasks: vec![annotator.abort_handle(), sender.abort_handle()],
        }
    }

    /// Reports the end of the run, within `patience`.
    pub async fn finish(&self, report: &Report, patience: Duration) {
        for task in &self.tasks {
            task.abort();
        }
        let line = format!("{} (exit code {})", report.headline(), report.exit_code);
        let note = match report.first_reason() {
            Some(reason) => format!("{line}: {reason}"),
            None => line.clone(),
        };
        let reason = match report.phase {
            Phase::Succeeded => "PreCacheSucceeded",
            Phase::Timeout => "PreCacheTimeout",
            Phase::Interrupted => "PreCacheInterrupted",
            Phase::UnrecoverableError => "PreCacheFailed",
        };
        let end = KubeEvent::new(report.phase != Phase::Succeeded, reason, &note);
        let effort = Effort::patient(patience);
        let job_client = &self.shared.job_client;
        let requests = async {
            let job = job_client.job(effort).await;
            let regarding = job.as_ref().ok().and_then(Option::as_ref);
            let annotation = async {
                match regarding {
                    Some(job) => {
                        let status = StatusAnnotation::ended(report);
                        job_client.annotate(job, status, &line, None, effort).await
                    }
                    None => Ok(()),
                }
            };
            // Together, so that a slow request does not delay the others beyond the time limit.
            let (annotated, sent, ()) = tokio::join!(
                annotation,
                job_client.send_event(&end, regarding, effort),
                self.shared.send_queued(regarding, effort)
            );
            if let Err(error) = sent {
                tracing::debug!("cannot send the event about the end of the run: {error}");
            }
            job.and(annotated)
        };
        match timeout_at(effort.until, requests).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("cannot annotate the Job with the result of this run: {error}"),
            Err(_elapsed) => tracing::warn!(
                "the annotation of the Job with the result of this run may be missing: no response in {patience:?}"
            ),
        }
    }
}

impl Drop for ClusterReporter {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Observer for ClusterReporter {
    fn observe(&self, event: Event) {
        let change = self.shared.state().note(event, Instant::now());
        self.shared.notify(change);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self, change: Change) {
        match change {
            Change::Minor => {}
            Change::PlanGrew => self.plan_grew.notify_one(),
            Change::EventQueued => self.event_queued.notify_one(),
        }
    }

    /// Annotates the Job with the current status.
    async fn annotate(&self) -> Result<(), ClusterError> {
        let effort = Effort::once(SEND_TIMEOUT);
        let Some(job) = self.job_client.job(effort).await? else {
            return Ok(());
        };
        let (mut conflicts, mut backoff) = (0, backoff());
        loop {
            match self.annotate_once(&job, effort).await {
                // The Job's controller or another pod of an Indexed Job wrote the Job meanwhile.
                Err(error) if error.is_conflict() && conflicts < CONFLICT_RETRIES => {
                    conflicts += 1;
                    sleep(backoff.next_pause()).await;
                }
                result => return result,
            }
        }
    }

    async fn annotate_once(&self, job: &OwnJob, effort: Effort) -> Result<(), ClusterError> {
        let version = self.job_client.resource_version(job, effort).await?;
        let (status, line) = self.state().status(Instant::now());
        self.job_client
            .annotate(job, status, &line, Some(&version), effort)
            .await
    }

    /// Sends an event about the Job, which may still be unknown.
    async fn send_event(&self, event: &KubeEvent, effort: Effort) -> Result<(), ClusterError> {
        let job = match self.job_client.job(effort).await {
            // Without permission to read the Job, events about the pod may still be allowed.
            Err(error) if error.is_refusal() => None,
            job => job?,
        };
        self.job_client.send_event(event, job.as_ref(), effort).await
    }

    /// Sends the events that are still in the queue.
    async fn send_queued(&self, job: Option<&OwnJob>, effort: Effort) {
        loop {
            let Some(event) = self.state().next_event() else {
                return;
            };
            match self.job_client.send_event(&event, job, effort).await {
                Err(error) if !error.is_refusal() => {
                    tracing::debug!("cannot send the remaining events: {error}");
                    return;
                }
                Ok(()) | Err(_) => self.state().remove_event(&event),
            }
        }
    }
}

/// Annotates the Job until it is aborted.
async fn annotate(shared: Arc<Shared>) {
    let mut interval = UpdateInterval::new(shared.job_client.age());
    let mut is_working = true;
    loop {
        tokio::select! {
            () = interval.tick() => {}
            () = shared.plan_grew.notified(), if is_working => {}
        }
        match (shared.annotate().await, is_working) {
            (Ok(()), true) => {}
            (Ok(()), false) => {
                tracing::info!("the Job is annotated with the progress of this run again");
                is_working = true;
            }
            (Err(error), was_working) => {
                match was_working {
                    true => tracing::warn!("cannot annotate the Job with the progress of this run: {error}"),
                    false => tracing::debug!("still cannot annotate the Job: {error}"),
                }
                is_working = false;
                interval.delay(error.retry_after().unwrap_or_default());
            }
        }
    }
}

/// Sends events until it is aborted. An event that cannot be sent yet is retried after the interval of annotations; one that
/// the API refuses is dropped, so that it does not block the others.
async fn send_events(shared: Arc<Shared>) {
    let mut is_working = true;
    loop {
        shared.event_queued.notified().await;
        loop {
            let Some(event) = shared.state().next_event() else {
                break;
            };
            let Err(error) = shared.send_event(&event, Effort::patient(SEND_TIMEOUT)).await else {
                shared.state().remove_event(&event);
                is_working = true;
                continue;
            };
            match std::mem::replace(&mut is_working, false) {
                true => tracing::warn!("cannot send an event to the cluster: {error}"),
                false => tracing::debug!("cannot send another event to the cluster: {error}"),
            }
            match error.is_refusal() {
                true => shared.state().remove_event(&event),
                false => sleep(error.retry_after().unwrap_or_default().max(INTERVAL)).await,
            }
        }
    }
}
