//! Tells the cluster how a run goes: annotations on our own Job, and events.
//!
//! # Design
//!
//! Events of the run only count, in whatever thread they come, under a lock that is held for no I/O. Two tasks look at that
//! state: one patches the Job's annotations with what is true at that moment, at once, when a plan wants more images than the
//! one before it, and in step with the hub ([`UpdateInterval`]), so nothing queues up behind an API that is slow; the other sends Kubernetes' events, of which few are kept. The run waits
//! for neither, and neither task for the other. At the end both are dropped, and [`ClusterReporter::finish`] sends the last annotation
//! and the events that are left in the time that its caller has.
//!
//! A patch that was dropped may still be on its way, and must not come after the last one. So each but the last has the
//! `resourceVersion` that the Job had just before: when it is late, the Job has another one, and the API refuses it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as Moment};

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout_at};

use super::ClusterError;
use super::annotations::{FAILING, Status};
use super::api_client::{Api, Effort, backoff};
use super::job_client::JobClient;
use super::kube_event::KubeEvent;
use super::own_job::{OwnJob, Owner};
use super::update_interval::{INTERVAL, UpdateInterval};
use crate::report::{Event, Observer, Phase, Progress, Report, Step};

/// How long one annotation or event may take; the next one says more.
const SEND_PATIENCE: Duration = Duration::from_secs(10);

/// How often an annotation is tried again because somebody else wrote the Job at the same moment. The pods of an Indexed Job
/// all begin at once.
const CONFLICTS: u32 = 4;

/// Failures of steps that are told. There are eight steps, and a run may come to one of them twice.
const FAILURES: usize = 16;

/// How long a request that is tried again counts as something that fails now.
const TROUBLE_MEMORY: Duration = Duration::from_secs(60);

/// Says what happens to the cluster.
#[derive(Debug)]
pub struct ClusterReporter {
    shared: Arc<Shared>,
    tasks: Vec<AbortHandle>,
}

#[derive(Debug)]
struct Shared {
    messenger: JobClient,
    state: Mutex<State>,
    /// There is an event to send.
    news: Notify,
    /// More images are wanted than the Job says: a first plan, or what a release or a catalog names. That is a handful of
    /// times.
    growth: Notify,
}

#[derive(Debug, Default)]
struct State {
    progress: Progress,
    /// Images of the plan that wants most.
    wanted: u64,
    step: Option<Step>,
    /// The last request that failed and is tried again.
    retried: Option<(Moment, String)>,
    /// The images that failed last, and why.
    failed: VecDeque<(String, String)>,
    happenings: VecDeque<KubeEvent>,
    /// The steps' failures so far.
    failures: Vec<KubeEvent>,
}

impl ClusterReporter {
    /// Begins to listen and to tell, with tasks of the runtime that this is called in.
    pub fn start(api: Arc<Api>, owner: Owner) -> Self {
        let node = api.account.node.clone();
        let shared = Arc::new(Shared {
            messenger: JobClient::new(api, owner),
            state: Mutex::default(),
            news: Notify::new(),
            growth: Notify::new(),
        });
        let on_node = node.map_or(String::new(), |node| format!(" on node `{node}`"));
        shared.happened(KubeEvent::new(
            false,
            "PreCacheStarted",
            &format!("pre-caching begins{on_node}"),
        ));
        let annotator = tokio::spawn(annotate(Arc::clone(&shared)));
        let poster = tokio::spawn(post(Arc::clone(&shared)));
        Self {
            shared,
            tasks: vec![annotator.abort_handle(), poster.abort_handle()],
        }
    }

    /// Tells how the run ended, within `patience`.
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
        let messenger = &self.shared.messenger;
        let told = async {
            let job = messenger.job(effort).await;
            let regarded = job.as_ref().ok().and_then(Option::as_ref);
            let annotated = async {
                match regarded {
                    Some(job) => {
                        messenger
                            .annotate(job, Status::ended(report), &line, None, effort)
                            .await
                    }
                    None => Ok(()),
                }
            };
            // All at once: none is to keep the others from being told in time.
            let (annotated, ended, ()) = tokio::join!(
                annotated,
                messenger.send(&end, regarded, effort),
                self.shared.send_rest(regarded, effort)
            );
            if let Err(error) = ended {
                tracing::debug!("the cluster does not hear of the end by an event: {error}");
            }
            job.and(annotated)
        };
        match timeout_at(effort.until, told).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("the Job does not say how this run ended: {error}"),
            Err(_elapsed) => {
                tracing::warn!("the Job may not say how this run ended: no answer in {patience:?}")
            }
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
        let now = Moment::now();
        let mut state = self.shared.state();
        state.progress.note(&event, now);
        match event {
            Event::StepStarted(step) => state.step = Some(step),
            Event::Planned { images, .. } if images > state.wanted => {
                state.wanted = images;
                self.shared.growth.notify_one();
            }
            Event::StepEnded {
                step,
                ok: false,
                reason,
                message,
            } => {
                drop(state);
                let note = format!("{step:?}: {message}");
                self.shared.failed(KubeEvent::new(true, reason, &note));
            }
            Event::Retrying { why, .. } => state.retried = Some((now, why)),
            Event::ImageDone {
                name,
                state: fate,
                reason,
            } => {
                state.failed.retain(|(failed, _)| *failed != name);
                if fate.is_failure() {
                    state.failed.push_front((name, reason.unwrap_or_default()));
                    state.failed.truncate(FAILING);
                }
            }
            _ => {}
        }
    }
}

impl State {
    fn failing(&self, now: Moment) -> Vec<String> {
        let recent = |(when, _): &&(Moment, String)| now.saturating_duration_since(*when) < TROUBLE_MEMORY;
        let retried = self.retried.as_ref().filter(recent).map(|(_, why)| why.clone());
        let failed = self.failed.iter().map(|(name, why)| format!("{name}: {why}"));
        retried.into_iter().chain(failed).collect()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an event until it is sent.
    fn happened(&self, happening: KubeEvent) {
        self.state().happenings.push_back(happening);
        self.news.notify_one();
    }

    /// A step failed. What was said before is no news.
    fn failed(&self, happening: KubeEvent) {
        let mut state = self.state();
        if state.failures.len() < FAILURES && !state.failures.iter().any(|said| said.repeats(&happening)) {
            state.failures.push(happening.clone());
            drop(state);
            self.happened(happening);
        }
    }

    /// Says how far it is.
    async fn tell(&self) -> Result<(), ClusterError> {
        let effort = Effort::once(SEND_PATIENCE);
        let Some(job) = self.messenger.job(effort).await? else {
            return Ok(());
        };
        let (mut conflicts, mut backoff) = (0, backoff());
        loop {
            match self.tell_once(&job, effort).await {
                // Its controller wrote the Job meanwhile, or another pod of an Indexed Job did.
                Err(error) if error.is_conflict() && conflicts < CONFLICTS => {
                    conflicts += 1;
                    sleep(backoff.next_pause()).await;
                }
                told => return told,
            }
        }
    }

    async fn tell_once(&self, job: &OwnJob, effort: Effort) -> Result<(), ClusterError> {
        let version = self.messenger.version(job, effort).await?;
        let (status, line) = {
            let (state, now) = (self.state(), Moment::now());
            let progress = state.progress.snapshot(now);
            let status = Status::running(&progress, state.step, state.failing(now));
            (status, progress.to_string())
        };
        self.messenger
            .annotate(job, status, &line, Some(&version), effort)
            .await
    }

    /// The event to send next. It stays until it is sent, so that one that was on its way when the run ended is sent again.
    fn next(&self) -> Option<KubeEvent> {
        self.state().happenings.front().cloned()
    }

    /// Nothing more is to be done about this one.
    fn is_done(&self, happening: &KubeEvent) {
        self.state().happenings.retain(|other| !other.is(happening));
    }

    /// The same, for whoever does not know the Job yet.
    async fn send_next(&self, happening: &KubeEvent, effort: Effort) -> Result<(), ClusterError> {
        let job = match self.messenger.job(effort).await {
            // Who may not ask for the Job may still say something of the pod.
            Err(error) if error.is_refusal() => None,
            job => job?,
        };
        self.messenger.send(happening, job.as_ref(), effort).await
    }

    /// Sends the events that are left.
    async fn send_rest(&self, job: Option<&OwnJob>, effort: Effort) {
        while let Some(happening) = self.next() {
            match self.messenger.send(&happening, job, effort).await {
                Err(error) if !error.is_refusal() => {
                    tracing::debug!("the cluster does not hear of all events: {error}");
                    return;
                }
                Ok(()) | Err(_) => self.is_done(&happening),
            }
        }
    }
}

async fn annotate(shared: Arc<Shared>) {
    let (mut pace, mut is_well) = (UpdateInterval::new(shared.messenger.age()), true);
    loop {
        tokio::select! {
            () = pace.turn() => {}
            () = shared.growth.notified(), if is_well => {}
        }
        match (shared.tell().await, is_well) {
            (Ok(()), true) => {}
            (Ok(()), false) => {
                tracing::info!("the Job says again how far this run is");
                is_well = true;
            }
            (Err(error), was_well) => {
                match was_well {
                    true => tracing::warn!("the Job does not say how far this run is: {error}"),
                    false => tracing::debug!("the Job still does not say how far this run is: {error}"),
                }
                is_well = false;
                pace.put_off(error.retry_after().unwrap_or_default());
            }
        }
    }
}

/// Sends events as they come. One that cannot be sent yet is tried again when the Job may be annotated again; one that the
/// API will never take stands in no other's way.
async fn post(shared: Arc<Shared>) {
    let mut is_well = true;
    loop {
        shared.news.notified().await;
        while let Some(happening) = shared.next() {
            let Err(error) = shared.send_next(&happening, Effort::patient(SEND_PATIENCE)).await else {
                shared.is_done(&happening);
                is_well = true;
                continue;
            };
            match std::mem::replace(&mut is_well, false) {
                true => tracing::warn!("the cluster does not hear of an event: {error}"),
                false => tracing::debug!("the cluster does not hear of another event: {error}"),
            }
            match error.is_refusal() {
                true => shared.is_done(&happening),
                false => sleep(error.retry_after().unwrap_or_default().max(INTERVAL)).await,
            }
        }
    }
}
