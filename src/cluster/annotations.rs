//! Builds the annotations of this Job, which the hub reads with the Job.
//!
//! ```text
//! spoke-precache.io/progress: images 41/187, 3.2 GiB of 18.4 GiB (17 %), 12.1 MiB/s in 8 downloads, 21 min 2 s left
//! spoke-precache.io/status: {"phase":"Running","node":"sno-1","time":"2026-11-20T13:39:00Z","images":{"wanted":187,…},…}
//! ```
//!
//! One line for people, and the same as JSON for programs. Each pod of an Indexed Job has its own two keys, with the index
//! after a dot. Their size is at most [`LIMIT`], also with long messages of a registry.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::report::{Printable, ProgressSnapshot, Report, Step, Time};

/// The largest size of keys and values together, in bytes. All annotations of an object may have 256 KiB; the hub stores a
/// copy for each spoke.
pub(super) const LIMIT: usize = 4096;

/// The longest line or reason, in bytes.
const TEXT_LIMIT: usize = 500;

/// How many current failures are reported.
pub(super) const FAILING: usize = 4;

/// The keys without index.
const PROGRESS: &str = "spoke-precache.io/progress";
const STATUS: &str = "spoke-precache.io/status";

/// The JSON value. Numbers are bytes, images or seconds.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusAnnotation {
    /// `Running`, or the result: `Succeeded`, `Timeout`, `Interrupted`, `UnrecoverableError`.
    pub(super) phase: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit_code: Option<u8>,
    /// The first reason, if it did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    /// When this was written. An old time means that the run hangs or cannot reach the API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) time: Option<Time>,
    /// The current step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step: Option<Step>,
    pub(super) images: ImageCounts,
    pub(super) bytes: ByteCounts,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes_per_second: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seconds_left: Option<u64>,
    /// When the run has to end: when Kubernetes kills the Job, or before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deadline: Option<Time>,
    /// Whether the run ends before that at the current rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) in_time: Option<bool>,
    /// How many images will be missing then, by the last forecast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) missing_at_deadline: Option<u64>,
    /// The current failures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) failing: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct ImageCounts {
    wanted: u64,
    here: u64,
    failed: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct ByteCounts {
    planned: u64,
    fetched: u64,
    /// What deltas saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    saved: Option<u64>,
}

impl StatusAnnotation {
    /// The status of a running Job.
    pub(super) fn running(progress: &ProgressSnapshot, step: Option<Step>, failing: Vec<String>) -> Self {
        Self {
            phase: "Running".to_owned(),
            step,
            images: ImageCounts {
                wanted: progress.images,
                here: progress.images_here,
                failed: progress.images_failed,
            },
            bytes: ByteCounts {
                planned: progress.bytes,
                fetched: progress.fetched,
                saved: None,
            },
            bytes_per_second: (progress.downloads > 0).then_some(progress.rate),
            seconds_left: progress.time_left().map(|left| left.as_secs()),
            failing,
            ..Self::default()
        }
    }

    /// Adds the time and the Job's deadline, if the run has no earlier one.
    pub(super) fn with_deadline(self, deadline: Option<Timestamp>, now: Timestamp) -> Self {
        let left = |deadline: Timestamp| deadline.duration_since(now).as_secs();
        let own = self.deadline.map(|Time(deadline)| deadline);
        let deadline = deadline.into_iter().chain(own).min();
        let in_time = self.seconds_left.zip(deadline);
        Self {
            time: Some(Time(now)),
            deadline: deadline.map(Time),
            in_time: in_time
                .map(|(needed, deadline)| i64::try_from(needed).is_ok_and(|needed| needed < left(deadline))),
            ..self
        }
    }

    /// The status of a Job that has ended.
    pub(super) fn ended(report: &Report) -> Self {
        let totals = &report.totals;
        Self {
            phase: format!("{:?}", report.phase),
            exit_code: Some(report.exit_code),
            reason: report.first_reason(),
            images: ImageCounts {
                wanted: totals.images_wanted,
                here: totals.images_here(),
                failed: totals.images_failed,
            },
            bytes: ByteCounts {
                planned: totals.bytes_planned,
                fetched: totals.bytes_fetched,
                saved: (totals.bytes_saved > 0).then_some(totals.bytes_saved),
            },
            deadline: report.deadline.map(|deadline| deadline.time),
            ..Self::default()
        }
    }

    /// The annotations; `line` is the one for people.
    pub(super) fn annotations(mut self, line: &str, index: Option<u32>) -> BTreeMap<String, String> {
        let line = cut(line, TEXT_LIMIT);
        self.reason = self.reason.map(|reason| cut(&reason, TEXT_LIMIT));
        for text in &mut self.failing {
            *text = cut(text, TEXT_LIMIT);
        }
        self.failing.truncate(FAILING);
        let key = |name: &str| match index {
            Some(index) => format!("{name}.{index}"),
            None => name.to_owned(),
        };
        loop {
            // Serialising plain fields cannot fail.
            let status = serde_json::to_string(&self).unwrap_or_default();
            let annotations = BTreeMap::from([(key(PROGRESS), line.clone()), (key(STATUS), status)]);
            let size: usize = annotations
                .iter()
                .map(|(key, value)| key.len() + value.len())
                .sum();
            // JSON doubles the length of quotation marks and backslashes.
            if size <= LIMIT || self.failing.pop().is_none() {
                return annotations;
            }
        }
    }
}

/// A text on one line, cut to at most `limit` bytes.
pub(super) fn cut(text: &str, limit: usize) -> String {
    let mut text = Printable(text).to_string();
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit - '…'.len_utf8()));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::report::{DeadlineReport, DeadlineSource, Event, Observer, Recorder};

    #[test]
    fn annotations_stay_below_their_limit_with_any_text() {
        for letter in ["\"", "\\", "ä", "\u{1b}", "𝄞", "x"] {
            let long = letter.repeat(9000);
            let status = StatusAnnotation {
                phase: "UnrecoverableError".to_owned(),
                reason: Some(long.clone()),
                node: Some("n".repeat(253)),
                failing: vec![long.clone(); 50],
                ..StatusAnnotation::running(&ProgressSnapshot::default(), Some(Step::Preflight), Vec::new())
            };
            let annotations = status.annotations(&long, Some(u32::MAX));
            let size: usize = annotations
                .iter()
                .map(|(key, value)| key.len() + value.len())
                .sum();
            assert!(size <= LIMIT, "{letter}: {size}");
            let status = &annotations[&format!("{STATUS}.{}", u32::MAX)];
            let status: serde_json::Value = serde_json::from_str(status).unwrap();
            assert!(!status["failing"].as_array().unwrap().is_empty(), "{letter}");
        }
    }

    #[test]
    fn a_run_is_in_time_if_it_ends_before_the_deadline() {
        let now = Timestamp::UNIX_EPOCH;
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        for (seconds_left, deadline, in_time) in [
            (Some(20), at(21), Some(true)),
            (Some(20), at(20), Some(false)),
            (Some(u64::MAX), at(20), Some(false)),
            (Some(20), at(-5), Some(false)),
            (Some(20), None, None),
            (None, at(20), None),
        ] {
            let status = StatusAnnotation {
                seconds_left,
                ..StatusAnnotation::default()
            };
            assert_eq!(
                status.with_deadline(deadline, now).in_time,
                in_time,
                "{seconds_left:?} {deadline:?}"
            );
        }
    }

    #[test]
    fn the_end_has_the_deadline_of_the_run_if_that_is_earlier_than_the_jobs() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let recorder = Recorder::new(Timestamp::now);
        let report = DeadlineReport {
            time: Time(at(20)),
            source: DeadlineSource::Upgrade,
        };
        recorder.observe(Event::Deadline {
            at: std::time::Instant::now(),
            report,
            upgrade_at: Some(report.time),
        });
        let status = StatusAnnotation::ended(&recorder.report(124)).with_deadline(Some(at(60)), at(0));
        assert_eq!(status.deadline.map(|Time(time)| time), Some(at(20)));
    }

    #[test]
    fn the_status_of_a_running_job_has_progress_and_failures() {
        let progress = ProgressSnapshot {
            images: 10,
            images_here: 4,
            images_failed: 1,
            bytes: 3000,
            fetched: 1000,
            rate: 100,
            downloads: 2,
            ..ProgressSnapshot::default()
        };
        let status = StatusAnnotation::running(&progress, Some(Step::Pull), vec!["a\nb".to_owned()]);
        let annotations = status.annotations(&progress.to_string(), None);
        assert_eq!(
            annotations[PROGRESS],
            "images 4/10 (1 failed), <0.1 MiB of <0.1 MiB (33 %), <0.1 MiB/s in 2 downloads, 20 s left"
        );
        assert_eq!(
            annotations[STATUS],
            r#"{"phase":"Running","step":"Pull","images":{"wanted":10,"here":4,"failed":1},"bytes":{"planned":3000,"fetched":1000},"bytesPerSecond":100,"secondsLeft":20,"failing":["a b"]}"#
        );
    }
}
