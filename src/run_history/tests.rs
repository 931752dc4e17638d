//! Tests the history without a run: its bounds, damaged files, and several writers.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;

use super::*;
use crate::report::{Event, ImageLabel, ImagePhase, Observer as _, Recorder, RequesterKind, Step};

fn recorder(images: usize) -> Arc<Recorder> {
    let recorder = Arc::new(Recorder::new(Timestamp::now));
    for step in [Step::Spec, Step::Release, Step::Operators] {
        let (reason, message) = ("AsExpected", "done".to_owned());
        recorder.observe(Event::StepEnded {
            step,
            ok: true,
            reason,
            message,
        });
    }
    for index in 0..images {
        let name = format!("example.com/image-{index}:v1");
        let label = ImageLabel::new(None, &name);
        let requester = RequesterKind::Additional;
        recorder.observe(Event::ImageListed {
            name: name.clone(),
            label,
            requester,
            bytes: 1,
        });
        recorder.observe(Event::ImageDone {
            name,
            state: ImagePhase::Pulled,
            reason: None,
        });
    }
    recorder
}

/// A run that ends with `code` and records it in `spool`.
fn ended(spool: &Path, images: usize, code: u8) {
    let recorder = recorder(images);
    let record = RunRecord::new(spool, None, Arc::clone(&recorder));
    record.end(&recorder.report(code), &HashMap::new(), false);
}

fn history(spool: &Path) -> RunHistory {
    HistoryFile::in_directory(spool).read().unwrap()
}

#[test]
fn the_last_runs_are_kept_newest_first_with_one_list_of_images() {
    let spool = tempfile::tempdir().unwrap();
    for run in 0..RUNS + 5 {
        ended(spool.path(), 2, u8::try_from(run).unwrap());
    }
    let RunHistory { history, .. } = history(spool.path());
    let codes: Vec<_> = history.iter().filter_map(|entry| entry.exit_code).collect();
    assert_eq!(codes, (5..25).rev().collect::<Vec<u8>>());
    let lists = history.iter().filter(|entry| entry.requested.is_some());
    assert_eq!(lists.count(), 1);
    let requested = history[0].requested.as_ref().unwrap();
    assert!(requested.is_complete && requested.images.len() == 2);
    assert_eq!(
        fs::read_dir(spool.path()).unwrap().count(),
        1,
        "no temporary file"
    );
}

#[test]
fn a_run_without_a_list_does_not_remove_the_list_of_an_earlier_run() {
    let spool = tempfile::tempdir().unwrap();
    ended(spool.path(), 3, 0);
    ended(spool.path(), 0, 2);
    let history = history(spool.path());
    let (entry, requested) = history.last_request().unwrap();
    assert_eq!((entry.exit_code, requested.images.len()), (Some(0), 3));
}

#[test]
fn the_file_is_bounded_and_a_list_that_does_not_fit_is_not_complete() {
    let spool = tempfile::tempdir().unwrap();
    ended(spool.path(), 30_000, 0);
    let RunHistory { history, .. } = history(spool.path());
    let requested = history[0].requested.as_ref().unwrap();
    assert!(!requested.is_complete && requested.images.len() < 30_000);

    let mut large = RunHistory {
        history: vec![history[0].clone(); RUNS],
        ..RunHistory::default()
    };
    let spec = "x".repeat(LIMIT / 4);
    for entry in &mut large.history {
        entry.spec = Some(serde_json::json!({ "data": spec }));
    }
    assert!(large.bounded_json().len() <= LIMIT);
    assert_eq!(large.history.len(), 2);
    let spec = "x".repeat(LIMIT);
    large.history[0].spec = Some(serde_json::json!({ "data": spec }));
    assert!(large.bounded_json().len() <= LIMIT);
    assert_eq!(large.history.len(), 1);
}

#[test]
fn a_killed_run_is_closed_by_the_next_one_that_locks_the_spool() {
    let spool = tempfile::tempdir().unwrap();
    let start = || {
        let record = RunRecord::new(spool.path(), None, recorder(1));
        let (step, reason, message) = (Step::Store, "AsExpected", "open".to_owned());
        record.observe(Event::StepEnded {
            step,
            ok: true,
            reason,
            message,
        });
    };
    let phases = || {
        let RunHistory { history, .. } = history(spool.path());
        history.iter().map(|entry| entry.phase).collect::<Vec<_>>()
    };
    let wait_for = |expected: &[RunPhase]| {
        let began = std::time::Instant::now();
        while phases() != expected {
            assert!(began.elapsed().as_secs() < 20, "{:?}", phases());
            std::thread::yield_now();
        }
    };
    start();
    wait_for(&[RunPhase::Pulling]);
    // This run has not locked the spool: the other may be alive.
    ended(spool.path(), 1, 7);
    wait_for(&[RunPhase::Failed, RunPhase::Pulling]);
    start();
    wait_for(&[RunPhase::Pulling, RunPhase::Failed, RunPhase::Unknown]);
}

#[test]
fn no_entry_of_a_running_run_replaces_its_last_one() {
    let spool = tempfile::tempdir().unwrap();
    for _ in 0..20 {
        let recorder = recorder(1);
        let record = RunRecord::new(spool.path(), None, Arc::clone(&recorder));
        record.observe(Event::StepStarted(Step::Pull));
        record.end(&recorder.report(0), &HashMap::new(), true);
    }
    let open = |entry: &RunEntry| entry.phase != RunPhase::Completed;
    assert!(!history(spool.path()).history.iter().any(open));
}

#[test]
fn runs_that_end_at_once_are_all_recorded() {
    let spool = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| ended(spool.path(), 5, 1));
        }
    });
    assert_eq!(history(spool.path()).history.len(), 4);
}

#[test]
fn what_is_damaged_or_hostile_is_an_error_and_is_replaced() {
    let long = format!("{{\"a\": \"{}\"}}", "x".repeat(LIMIT));
    let deep = "[".repeat(100_000);
    let other = r#"{"apiVersion": "v1", "kind": "History", "history": []}"#;
    let wrong = r#"{"apiVersion": "spoke-precache/v1", "kind": "History", "history": [{"id": 1}]}"#;
    let contents = [
        ("damaged", ""),
        ("damaged", "{\"history\": ["),
        ("damaged", &deep),
        ("too long", &long),
        ("another kind", other),
        ("damaged", wrong),
    ];
    let fifo = |path: &Path| {
        let (kind, mode) = (
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        );
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
    };
    for (expected, content) in contents {
        is_replaced(expected, |path| fs::write(path, content).unwrap());
    }
    is_replaced("not a regular file", |path| symlink("/etc/passwd", path).unwrap());
    is_replaced("not a regular file", fifo);
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    assert!(!passwd.contains("History"), "a link is replaced and not followed");
}

#[track_caller]
fn is_replaced(expected: &str, arrange: impl Fn(&Path)) {
    let spool = tempfile::tempdir().unwrap();
    let file = HistoryFile::in_directory(spool.path());
    arrange(&file.path());
    let error = file.read().unwrap_err().to_string();
    assert!(error.contains(expected), "{expected}: {error}");
    ended(spool.path(), 1, 0);
    assert_eq!(history(spool.path()).history.len(), 1, "{expected}");
    assert!(fs::symlink_metadata(file.path()).unwrap().is_file());
}

#[test]
fn without_the_directory_nothing_is_recorded_and_nothing_created() {
    let directory = tempfile::tempdir().unwrap();
    let spool = directory.path().join("none");
    ended(&spool, 1, 0);
    assert!(!spool.exists());
    assert_eq!(history(&spool), RunHistory::default());
}

#[test]
fn the_table_has_a_line_for_each_run_and_its_reason_below() {
    let spool = tempfile::tempdir().unwrap();
    let recorder = recorder(2);
    recorder.observe(Event::Stopped {
        phase: crate::report::Phase::Timeout,
        why: "stopped by the deadline\u{1b}[2J".to_owned(),
    });
    let record = RunRecord::new(spool.path(), None, Arc::clone(&recorder));
    record.end(&recorder.report(124), &HashMap::new(), false);
    let table = history(spool.path()).table();
    let lines: Vec<&str> = table.lines().collect();
    let [header, run, reason] = lines.as_slice() else {
        panic!("{table}");
    };
    assert!(header.starts_with("STARTED ") && header.len() <= 100, "{header}");
    assert!(
        run.contains(" Stopped ") && run.contains(" 2/2 ") && run.ends_with(" 124"),
        "{run}"
    );
    assert_eq!(*reason, "  stopped by the deadline?[2J");
}
