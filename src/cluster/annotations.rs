//! What our own Job is annotated with, for whoever reads it at the hub: the hub's view copies the whole Job.
//!
//! ```text
//! spoke-precache.io/progress: images 41/187, 3.2 GiB of 18.4 GiB (17 %), 12.1 MiB/s in 8 downloads, 21 min 2 s left
//! spoke-precache.io/status: {"phase":"Running","node":"sno-1","time":"2026-11-20T13:39:00Z","images":{"wanted":187,…},…}
//! ```
//!
//! One line for people, the same as JSON for programs. The pods of an Indexed Job each have their own two keys, with the
//! index behind a dot. Together they stay below [`LIMIT`], whatever a registry says.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::report::{Printable, ProgressSnapshot, Report, Step, Time};

/// Keys and values together, in bytes. All annotations of an object together may have 256 KiB; the hub holds a copy for each
/// spoke.
pub(super) const LIMIT: usize = 4096;

/// What a line or a reason may take up, in bytes.
const TEXT_LIMIT: usize = 500;

/// Troubles of this moment that are told.
pub(super) const FAILING: usize = 4;

/// Keys without index.
const PROGRESS: &str = "spoke-precache.io/progress";
const STATUS: &str = "spoke-precache.io/status";

/// The JSON. Numbers are bytes, images or seconds.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    /// `Running`, or how it ended: `Succeeded`, `Timeout`, `Interrupted`, `UnrecoverableError`.
    pub(super) phase: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit_code: Option<u8>,
    /// The first reason, if it did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    /// When this was written. Of a run that hangs or has no API any more it grows old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) time: Option<Time>,
    /// What it is at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step: Option<Step>,
    pub(super) images: Images,
    pub(super) bytes: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes_per_second: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seconds_left: Option<u64>,
    /// When the Job will be killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deadline: Option<Time>,
    /// Whether the rest comes before that, at this rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) in_time: Option<bool>,
    /// What goes wrong at the moment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) failing: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Images {
    wanted: u64,
    here: u64,
    failed: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Bytes {
    planned: u64,
    fetched: u64,
}

impl Status {
    /// Of a run that goes on.
    pub(super) fn running(progress: &ProgressSnapshot, step: Option<Step>, failing: Vec<String>) -> Self {
        Self {
            phase: "Running".to_owned(),
            step,
            images: Images {
                wanted: progress.images,
                here: progress.images_here,
                failed: progress.images_failed,
            },
            bytes: Bytes {
                planned: progress.bytes,
                fetched: progress.fetched,
            },
            bytes_per_second: (progress.downloads > 0).then_some(progress.rate),
            seconds_left: progress.time_left().map(|left| left.as_secs()),
            failing,
            ..Self::default()
        }
    }

    /// The same, with what is known of the Job's end.
    pub(super) fn until(self, end: Option<Timestamp>, now: Timestamp) -> Self {
        let left = |end: Timestamp| end.duration_since(now).as_secs();
        let in_time = self.seconds_left.zip(end);
        Self {
            time: Some(Time(now)),
            deadline: end.map(Time),
            in_time: in_time
                .map(|(needed, end)| i64::try_from(needed).is_ok_and(|needed| needed < left(end))),
            ..self
        }
    }

    /// Of one that has ended.
    pub(super) fn ended(report: &Report) -> Self {
        let totals = &report.totals;
        Self {
            phase: format!("{:?}", report.phase),
            exit_code: Some(report.exit_code),
            reason: report.first_reason(),
            images: Images {
                wanted: totals.images_wanted,
                here: totals.images_here(),
                failed: totals.images_failed,
            },
            bytes: Bytes {
                planned: totals.bytes_planned,
                fetched: totals.bytes_fetched,
            },
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
            // Of plain fields nothing is refused.
            let status = serde_json::to_string(&self).unwrap_or_default();
            let annotations = BTreeMap::from([(key(PROGRESS), line.clone()), (key(STATUS), status)]);
            let size: usize = annotations
                .iter()
                .map(|(key, value)| key.len() + value.len())
                .sum();
            // Quotation marks and backslashes become twice as long in JSON.
            if size <= LIMIT || self.failing.pop().is_none() {
                return annotations;
            }
        }
    }
}

/// At most `limit` bytes of a text, on one line.
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

    #[test]
    fn they_stay_below_their_limit_whatever_is_said() {
        for letter in ["\"", "\\", "ä", "\u{1b}", "𝄞", "x"] {
            let long = letter.repeat(9000);
            let status = Status {
                phase: "UnrecoverableError".to_owned(),
                reason: Some(long.clone()),
                node: Some("n".repeat(253)),
                failing: vec![long.clone(); 50],
                ..Status::running(&ProgressSnapshot::default(), Some(Step::Preflight), Vec::new())
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
    fn the_rest_is_in_time_or_not() {
        let now = Timestamp::UNIX_EPOCH;
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        for (seconds_left, end, in_time) in [
            (Some(20), at(21), Some(true)),
            (Some(20), at(20), Some(false)),
            (Some(u64::MAX), at(20), Some(false)),
            (Some(20), at(-5), Some(false)),
            (Some(20), None, None),
            (None, at(20), None),
        ] {
            let status = Status {
                seconds_left,
                ..Status::default()
            };
            assert_eq!(
                status.until(end, now).in_time,
                in_time,
                "{seconds_left:?} {end:?}"
            );
        }
    }

    #[test]
    fn a_running_job_says_what_a_program_wants_to_know() {
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
        let status = Status::running(&progress, Some(Step::Pull), vec!["a\nb".to_owned()]);
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
