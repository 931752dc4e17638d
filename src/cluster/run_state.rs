//! Tracks the state of a run for the cluster: its progress, its current failures, and the events to send.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::annotations::{FAILING, StatusAnnotation};
use super::kube_event::KubeEvent;
use crate::report::{Event, Progress, Step, Time};

/// How many failures of steps become events. A run may repeat a step once.
const STEP_FAILURES: usize = 16;

/// How long a retried request counts as a current failure.
const RETRY_MEMORY: Duration = Duration::from_secs(60);

/// The state of a run, from the run's events.
#[derive(Debug, Default)]
pub(super) struct RunState {
    progress: Progress,
    /// The number of images of the largest plan so far.
    wanted: u64,
    step: Option<Step>,
    /// The deadline, and how many images will be missing then.
    deadline: Option<Time>,
    missing: Option<u64>,
    /// The last request that failed and is retried.
    retried: Option<(Instant, String)>,
    /// The images that failed last, and why.
    failed: VecDeque<(String, String)>,
    /// The events to send.
    queue: VecDeque<KubeEvent>,
    /// The steps' failures so far.
    step_failures: Vec<KubeEvent>,
}

/// What the tasks should do after an event of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing; the next periodic annotation has the new state.
    Minor,
    /// The plan has more images than before: annotate now.
    PlanGrew,
    /// There is an event to send.
    EventQueued,
}

impl RunState {
    /// Takes note of an event of the run.
    pub(super) fn note(&mut self, event: Event, now: Instant) -> Change {
        self.progress.note(&event, now);
        match event {
            Event::StepStarted(step) => self.step = Some(step),
            Event::Planned { images, .. } if images > self.wanted => {
                self.wanted = images;
                return Change::PlanGrew;
            }
            Event::StepEnded {
                step,
                ok: false,
                reason,
                message,
            } => return self.step_failed(KubeEvent::new(true, reason, &format!("{step:?}: {message}"))),
            Event::Deadline { report, .. } => self.deadline = Some(report.time),
            Event::Forecast(forecast) => self.missing = Some(forecast.images),
            Event::Retrying { why, .. } => self.retried = Some((now, why)),
            Event::ImageDone {
                name,
                state: phase,
                reason,
            } => {
                self.failed.retain(|(failed, _)| *failed != name);
                if phase.is_failure() {
                    self.failed.push_front((name, reason.unwrap_or_default()));
                    self.failed.truncate(FAILING);
                }
            }
            _ => {}
        }
        Change::Minor
    }

    /// The status to annotate, and its line for people.
    pub(super) fn status(&self, now: Instant) -> (StatusAnnotation, String) {
        let progress = self.progress.snapshot(now);
        let status = StatusAnnotation {
            deadline: self.deadline,
            missing_at_deadline: self.missing,
            ..StatusAnnotation::running(&progress, self.step, self.failing(now))
        };
        (status, progress.to_string())
    }

    fn failing(&self, now: Instant) -> Vec<String> {
        let recent = |(when, _): &&(Instant, String)| now.saturating_duration_since(*when) < RETRY_MEMORY;
        let retried = self.retried.as_ref().filter(recent).map(|(_, why)| why.clone());
        let failed = self.failed.iter().map(|(name, why)| format!("{name}: {why}"));
        retried.into_iter().chain(failed).collect()
    }

    /// Queues the failure of a step, unless an event with the same text was queued before.
    fn step_failed(&mut self, event: KubeEvent) -> Change {
        let is_known = self.step_failures.iter().any(|other| other.has_same_text(&event));
        if is_known || self.step_failures.len() >= STEP_FAILURES {
            return Change::Minor;
        }
        self.step_failures.push(event.clone());
        self.queue_event(event)
    }

    /// Keeps an event until it is sent.
    pub(super) fn queue_event(&mut self, event: KubeEvent) -> Change {
        self.queue.push_back(event);
        Change::EventQueued
    }

    /// The next event to send. It stays in the queue until it is sent, so that one whose request was cancelled at the end of
    /// the run is sent again.
    pub(super) fn next_event(&self) -> Option<KubeEvent> {
        self.queue.front().cloned()
    }

    /// Removes an event that was sent or refused.
    pub(super) fn remove_event(&mut self, event: &KubeEvent) {
        self.queue.retain(|other| !other.is_same(event));
    }
}
