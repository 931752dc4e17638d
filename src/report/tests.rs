//! Tests of whole runs: from events to report, summary and termination message.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicI64, Ordering};

use jiff::Timestamp;

use super::*;
use crate::oci::Digest;

/// The clock of tests that need no exact times.
fn any_time() -> Timestamp {
    Timestamp::from_second(1_795_000_000).unwrap()
}

fn blob(name: &str) -> Digest {
    Digest::of(name.as_bytes())
}

fn listed(name: &str, requester: RequesterKind, bytes: u64) -> Event {
    Event::ImageListed {
        name: name.into(),
        label: ImageLabel::new(None, name),
        requester,
        bytes,
    }
}

fn done(name: &str, state: ImagePhase, reason: Option<&str>) -> Event {
    Event::ImageDone {
        name: name.into(),
        state,
        reason: reason.map(Into::into),
    }
}

fn ended(step: Step, ok: bool, reason: &'static str, message: &str) -> Event {
    Event::StepEnded {
        step,
        ok,
        reason,
        message: message.into(),
    }
}

fn recorded(clock: fn() -> Timestamp, events: impl IntoIterator<Item = Event>) -> Recorder {
    let recorder = Recorder::new(clock);
    for event in events {
        recorder.observe(event);
    }
    recorder
}

/// A run that went well.
pub(super) fn report() -> Report {
    let events = [
        listed("example.com/release:4.18", RequesterKind::Release, 0),
        listed("example.com/tool:v1", RequesterKind::Additional, 0),
        done("example.com/release:4.18", ImagePhase::Pulled, None),
        done("example.com/tool:v1", ImagePhase::Present, None),
    ];
    recorded(any_time, events).report(0)
}

/// A run in which `images` images failed for `reason`.
pub(super) fn failing(images: usize, reason: &str) -> Report {
    let recorder = recorded(
        any_time,
        [ended(
            Step::Pull,
            false,
            "ImagesFailed",
            &format!("{images} failed"),
        )],
    );
    for index in 0..images {
        let name = format!("example.com/image-{index}:v1");
        recorder.observe(listed(&name, RequesterKind::Additional, 0));
        recorder.observe(done(&name, ImagePhase::Failed, Some(reason)));
    }
    recorder.report(1)
}

/// The release image, a component, one that fails, one that is excluded, one that stays pending.
fn eventful() -> Vec<Event> {
    let release = "example.com/release:4.18";
    vec![
        Event::StepStarted(Step::Spec),
        ended(Step::Spec, true, "AsExpected", "5 images"),
        // The release image is planned and pulled by itself.
        listed(release, RequesterKind::Release, 3 << 20),
        Event::Planned {
            images: 1,
            present: 0,
            bytes: 3 << 20,
            bytes_from_media: 0,
        },
        Event::BlobStarted {
            blob: blob("a"),
            size: 4 << 20,
            resumed: 1 << 20,
        },
        Event::BlobReceived {
            blob: blob("a"),
            bytes: 1 << 20,
        },
        // The connection broke, the attempt goes on where it was: these 2 MiB are not an earlier run's.
        Event::BlobStarted {
            blob: blob("a"),
            size: 4 << 20,
            resumed: 2 << 20,
        },
        Event::BlobReceived {
            blob: blob("a"),
            bytes: 2 << 20,
        },
        Event::BlobVerified { blob: blob("a") },
        Event::LayerCommitted { bytes: 4 << 20 },
        done(release, ImagePhase::Pulled, None),
        Event::Warned {
            message: "pattern `ab` matches digests only".into(),
        },
        Event::Warned {
            message: "pattern `ab` matches digests only".into(),
        },
        Event::Operator(OperatorReport::pending("ptp", "stable")),
        Event::Operator(OperatorReport::pending("ptp", "")),
        Event::Operator(OperatorReport {
            state: OperatorState::Found,
            index: Some("example.com/index:4.18".into()),
            bundle: Some("ptp.v1".into()),
            images: vec!["example.com/ptp:v1".into()],
            ..OperatorReport::pending("ptp", "stable")
        }),
        // Now everything, the release image being there.
        listed(release, RequesterKind::Release, 0),
        listed("example.com/etcd@sha256:e", RequesterKind::Release, 7),
        listed("example.com/gone:v1", RequesterKind::Additional, 5),
        listed("example.com/aws@sha256:a", RequesterKind::Release, 0),
        Event::Planned {
            images: 3,
            present: 1,
            bytes: (3 << 20) + 12,
            bytes_from_media: 0,
        },
        Event::LayersReused { layers: 2 },
        done(
            "example.com/aws@sha256:a",
            ImagePhase::Excluded,
            Some("excluded by `aws`"),
        ),
        done(release, ImagePhase::Present, None),
        Event::StepStarted(Step::Pull),
        done("example.com/gone:v1", ImagePhase::Failed, Some("404 Not Found")),
        done("example.com/gone:v1", ImagePhase::Pending, None),
    ]
}

#[test]
fn the_report_is_the_documented_json() {
    static SECOND: AtomicI64 = AtomicI64::new(1_795_000_000);
    let clock = || Timestamp::from_second(SECOND.fetch_add(1, Ordering::Relaxed)).unwrap();
    let recorder = recorded(clock, eventful());
    recorder.observe(Event::Stopped {
        phase: Phase::Timeout,
        why: "stopped by the Job's deadline, signal 15".into(),
    });
    let report = recorder.report(143);
    let time = |second: i64| Time(Timestamp::from_second(1_795_000_000 + second).unwrap()).to_string();
    let not_reached = |step: &str| {
        serde_json::json!({
            "type": step, "status": "Unknown", "reason": "NotReached",
            "message": "The run did not reach this step", "lastProbeTime": time(4), "lastTransitionTime": time(0),
        })
    };
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&report.json()).unwrap(),
        serde_json::json!({
            "apiVersion": "spoke-precache/v1",
            "kind": "Report",
            "phase": "Timeout",
            "exitCode": 143,
            "reason": "stopped by the Job's deadline, signal 15",
            "startTime": "2026-11-18T11:06:40Z",
            "completeTime": "2026-11-18T11:06:44Z",
            "conditions": [
                {
                    "type": "Spec", "status": "True", "reason": "AsExpected", "message": "5 images",
                    "startTime": time(1), "completeTime": time(2),
                    "lastProbeTime": time(2), "lastTransitionTime": time(2),
                },
                not_reached("Store"), not_reached("ReleaseVerified"), not_reached("Release"), not_reached("Operators"),
                not_reached("Resolve"),
                not_reached("Preflight"),
                {
                    "type": "Pull", "status": "Unknown", "reason": "Unfinished",
                    "message": "The run ended before this step did",
                    "startTime": time(3), "lastProbeTime": time(4), "lastTransitionTime": time(3),
                },
                not_reached("Verify"),
            ],
            "totals": {
                "imagesWanted": 3, "imagesPresent": 0, "imagesPulled": 1, "imagesFailed": 1,
                "operatorsWanted": 2, "operatorsFound": 1, "operatorsFailed": 0,
                "layersPulled": 1, "layersFromStore": 0, "layersReused": 2,
                "bytesPlanned": (3 << 20) + 12, "bytesFetched": 3 << 20, "bytesFromMedia": 0, "bytesResumed": 1 << 20, "bytesFromStore": 0, "bytesSaved": 0,
            },
            "operators": [
                {
                    "package": "ptp", "channel": "stable", "state": "found", "index": "example.com/index:4.18",
                    "bundle": "ptp.v1", "images": ["example.com/ptp:v1"],
                },
                { "package": "ptp", "channel": "", "state": "pending" },
            ],
            "images": [
                { "name": "example.com/release:4.18", "source": "release", "state": "pulled", "bytes": 3 << 20 },
                { "name": "example.com/etcd@sha256:e", "source": "release", "state": "pending", "bytes": 7 },
                {
                    "name": "example.com/gone:v1", "source": "additional", "state": "failed",
                    "reason": "404 Not Found", "bytes": 5,
                },
                {
                    "name": "example.com/aws@sha256:a", "source": "release", "state": "excluded",
                    "reason": "excluded by `aws`", "bytes": 0,
                },
            ],
            "warnings": ["pattern `ab` matches digests only"],
        })
    );
}

#[test]
fn the_summary_has_results_failures_and_hints() {
    let recorder = recorded(any_time, eventful());
    recorder.observe(ended(
        Step::Pull,
        false,
        "ImagesFailed",
        "1 image could not be pulled\nhint: see above",
    ));
    assert_eq!(
        recorder
            .report(1)
            .summary("some images are missing after retries"),
        "\
UnrecoverableError: 1 of 3 images are in the store, 2 missing
images:    1 pulled, 0 present before, 1 failed, 1 pending; 1 excluded
operators: 1 found, 0 failed, 1 pending
layers:    1 pulled, 2 present before
received:  3.0 MiB of 3.0 MiB planned in 0 s; 1.0 MiB more were in the spool
Pull: ImagesFailed: 1 image could not be pulled
  hint: see above
failed:    example.com/gone:v1
           404 Not Found
warning:   pattern `ab` matches digests only
exit code 1: some images are missing after retries
"
    );
}

#[test]
fn the_number_of_missing_images_is_reported_only_if_it_is_known() {
    use ImagePhase::{Damaged, Failed, Pending, Pulled};
    use RequesterKind::{Additional, Operator, Release};
    let failed = |step, reason| ended(step, false, reason, "see above");
    let read = |step| ended(step, true, "Read", "all of it");
    for (code, images, steps, headline) in [
        (
            124,
            vec![(Release, Pending)],
            vec![Event::StepStarted(Step::Release)],
            "Timeout: the release image is incomplete, and it names more images",
        ),
        (
            3,
            vec![(Release, Pending), (Additional, Pulled)],
            vec![failed(Step::Release, "NotEnoughSpace")],
            "UnrecoverableError: the release image is incomplete, and it names more images; of the 2 known images 1 \
             are in the store",
        ),
        (
            5,
            vec![(Release, Failed)],
            vec![failed(Step::Release, "UnexpectedContent")],
            "UnrecoverableError: the release image cannot be read, so the images that it names are unknown",
        ),
        (
            124,
            vec![(Release, Pending), (Release, Pending)],
            vec![Event::StepStarted(Step::Release)],
            "Timeout: 0 of 2 images are in the store, 2 missing",
        ),
        (
            143,
            vec![(Release, Pulled), (Operator, Pending)],
            vec![read(Step::Release), Event::StepStarted(Step::Operators)],
            "Interrupted: the operator indexes are incomplete, and they name more images; of the 2 known images 1 are \
             in the store",
        ),
        (
            7,
            vec![(Release, Pulled), (Release, Damaged)],
            vec![read(Step::Release)],
            "UnrecoverableError: 1 of 2 images are undamaged in the store, 1 damaged",
        ),
        (
            7,
            vec![(Additional, Pulled), (Additional, Damaged), (Additional, Failed)],
            vec![],
            "UnrecoverableError: 1 of 3 images are undamaged in the store, 1 missing, 1 damaged",
        ),
    ] {
        let recorder = recorded(any_time, steps);
        for (number, (requester, state)) in images.into_iter().enumerate() {
            let name = format!("example.com/{number}:1");
            recorder.observe(listed(&name, requester, 0));
            recorder.observe(done(&name, state, None));
        }
        assert_eq!(recorder.report(code).headline(), headline);
    }
}

#[test]
fn downloaded_and_resumed_bytes_are_counted_apart() {
    let started = |name, resumed| Event::BlobStarted {
        blob: blob(name),
        size: 100,
        resumed,
    };
    let received = |name, bytes| Event::BlobReceived {
        blob: blob(name),
        bytes,
    };
    let repeated = Event::BlobRepeated {
        blob: blob("a"),
        bytes: 7,
    };
    let recorder = recorded(
        any_time,
        [
            started("a", 10),
            received("a", 50),
            // Again in the same run, from a registry that does not know ranges.
            started("a", 60),
            repeated,
            received("a", 40),
            // The bytes in the spool were wrong.
            started("b", 30),
            received("b", 70),
            started("b", 0),
            received("b", 100),
            started("b", 100),
            // Whole.
            started("c", 100),
        ],
    );
    let totals = recorder.report(0).totals;
    assert_eq!((totals.bytes_fetched, totals.bytes_resumed), (267, 110));
}

#[test]
fn what_deltas_save_is_counted_once_for_each_delta_and_without_those_that_failed() {
    let applied = |name: &str, delta, bytes, whole_bytes| Event::DeltaApplied {
        name: name.to_owned(),
        delta: blob(delta),
        source: blob("old"),
        bytes,
        whole_bytes,
    };
    let failed = |delta| Event::SourceFailed {
        name: "example.com/b:1".to_owned(),
        source: blob(delta),
        reason: "the old image has no regular file `usr/bin/b`".to_owned(),
        bytes: 1 << 20,
        more_bytes: 40 << 20,
    };
    let recorder = recorded(
        any_time,
        [
            listed("example.com/a:1", RequesterKind::Additional, 7 << 20),
            listed("example.com/b:1", RequesterKind::Additional, 1 << 20),
            Event::Planned {
                images: 2,
                present: 0,
                bytes: 8 << 20,
                bytes_from_media: 0,
            },
            applied("example.com/a:1", "first", 2 << 20, 100 << 20),
            applied("example.com/a:1", "second", 5 << 20, 50 << 20),
            // Another layer from the same delta.
            applied("example.com/a:1", "second", 5 << 20, 50 << 20),
            failed("third"),
            failed("third"),
            done("example.com/a:1", ImagePhase::Pulled, None),
            done("example.com/b:1", ImagePhase::Pulled, None),
            Event::BlobReceived {
                blob: blob("all"),
                bytes: 48 << 20,
            },
        ],
    );
    let report = recorder.report(0);
    assert_eq!(report.totals.bytes_saved, (150 - 7 - 1) << 20);
    assert_eq!(report.totals.bytes_planned, (8 + 40) << 20);
    let [a, b] = report.images.as_slice() else {
        panic!("{:?}", report.images);
    };
    assert_eq!(
        (a.delta.clone(), a.delta_bytes),
        (Some(blob("old").to_string()), 7 << 20)
    );
    assert_eq!((b.delta.clone(), b.delta_bytes), (None, 0));
    let summary = report.summary("done");
    for line in [
        "Succeeded: all 2 images are in the store; received 48.0 MiB instead of 190.0 MiB\n",
        "deltas:    142.0 MiB saved, for 1 image\n",
        "fallback:  planned sources for 1 image could not be used; example.com/b:1:\n           the old image has no regular file",
    ] {
        assert!(summary.contains(line), "{line}: {summary}");
    }
}

#[test]
fn a_run_that_fails_early_is_not_called_complete() {
    let recorder = recorded(
        any_time,
        [ended(Step::Spec, false, "Unusable", "no `platform.image`")],
    );
    let report = recorder.report(2);
    assert_eq!(
        report.termination_message("arguments or version spec unusable"),
        "UnrecoverableError: the run ended before any image was checked (exit code 2: arguments or version spec unusable); \
         Spec: Unusable: No `platform.image`"
    );
}

#[test]
fn the_last_result_of_an_image_counts() {
    let recorder = recorded(
        any_time,
        [
            done("repaired", ImagePhase::Failed, Some("reset")),
            done("repaired", ImagePhase::Pulled, None),
            done("late", ImagePhase::Pulled, None),
            done("late", ImagePhase::Failed, Some("not in the store any more")),
        ],
    );
    let report = recorder.report(1);
    let states: Vec<_> = report
        .images
        .iter()
        .map(|image| (image.state, image.reason.as_deref()))
        .collect();
    assert_eq!(
        states,
        [
            (ImagePhase::Pulled, None),
            (ImagePhase::Failed, Some("not in the store any more"))
        ]
    );
    assert_eq!(report.totals.images_missing(), 1);
}

#[test]
fn an_excluded_image_that_another_requester_wants_is_wanted() {
    let events = [
        listed("example.com/aws:1", RequesterKind::Release, 0),
        done("example.com/aws:1", ImagePhase::Excluded, Some("pattern `aws`")),
        listed("example.com/aws:1", RequesterKind::Operator, 0),
    ];
    let report = recorded(any_time, events).report(124);
    assert_eq!(report.totals.images_wanted, 1);
    let image = &report.images[0];
    let reported = (image.source, image.state, image.reason.as_deref());
    assert_eq!(
        reported,
        (Some(RequesterKind::Operator), ImagePhase::Pending, None)
    );
}

/// A mebibyte of `operators.packagesAndChannels` has 100,000 lines. A linear search for each took minutes.
#[test]
fn many_operators_are_recorded_in_linear_time() {
    let begin = std::time::Instant::now();
    let recorder = Recorder::new(any_time);
    for channel in 0..100_000 {
        recorder.observe(Event::Operator(OperatorReport::pending(
            "p",
            &channel.to_string(),
        )));
    }
    assert_eq!(recorder.report(124).totals.operators_wanted, 100_000);
    assert!(
        begin.elapsed() < std::time::Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
}
