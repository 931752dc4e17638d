//! Records one condition for each step of a run, like the conditions of a Kubernetes object.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::{Step, Time};

/// The condition of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The step.
    #[serde(rename = "type")]
    pub step: Step,
    /// Whether it achieved its goal.
    pub status: Status,
    /// One word in CamelCase.
    pub reason: String,
    /// For people.
    pub message: String,
    /// When it started, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it ended, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complete_time: Option<Time>,
    /// When this was last updated.
    pub last_probe_time: Time,
    /// When `status` last changed.
    pub last_transition_time: Time,
}

/// A condition's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Status {
    /// Achieved.
    True,
    /// Not achieved.
    False,
    /// The step was not reached, or the run ended during it.
    Unknown,
}

/// Reason and message of a step that started and did not end before the report is made.
const UNFINISHED: (&str, &str) = ("Unfinished", "the run ended before this step did");

/// Reason and message of a step that was not reached or not needed.
const NOT_REACHED: (&str, &str) = ("NotReached", "the run did not reach this step");

/// The conditions of all steps.
#[derive(Debug)]
pub(super) struct Conditions {
    began: Timestamp,
    steps: BTreeMap<Step, Condition>,
}

impl Conditions {
    pub(super) fn new(began: Timestamp) -> Self {
        Self {
            began,
            steps: BTreeMap::new(),
        }
    }

    pub(super) fn start(&mut self, step: Step, now: Timestamp) {
        let condition = self.at(step, UNFINISHED, now);
        condition.set(Status::Unknown, UNFINISHED.0, UNFINISHED.1, now);
        condition.start_time.get_or_insert(Time(now));
        condition.complete_time = None;
    }

    pub(super) fn end(&mut self, step: Step, ok: bool, reason: &str, message: &str, now: Timestamp) {
        let condition = self.at(step, UNFINISHED, now);
        let status = if ok { Status::True } else { Status::False };
        condition.set(status, reason, message, now);
        condition.start_time.get_or_insert(Time(now));
        condition.complete_time = Some(Time(now));
    }

    /// Ends a step without a result.
    pub(super) fn end_unknown(&mut self, step: Step, reason: &str, message: &str, now: Timestamp) {
        let condition = self.at(step, UNFINISHED, now);
        condition.set(Status::Unknown, reason, message, now);
        condition.start_time.get_or_insert(Time(now));
        condition.complete_time = Some(Time(now));
    }

    fn at(&mut self, step: Step, (reason, message): (&str, &str), now: Timestamp) -> &mut Condition {
        self.steps.entry(step).or_insert_with(|| Condition {
            step,
            status: Status::Unknown,
            reason: reason.to_owned(),
            message: message.to_owned(),
            start_time: None,
            complete_time: None,
            last_probe_time: Time(now),
            last_transition_time: Time(now),
        })
    }

    /// All steps in their order, `now`.
    pub(super) fn list(&self, now: Timestamp) -> Vec<Condition> {
        let not_reached = |step| Condition {
            step,
            status: Status::Unknown,
            reason: NOT_REACHED.0.to_owned(),
            message: NOT_REACHED.1.to_owned(),
            start_time: None,
            complete_time: None,
            last_probe_time: Time(now),
            last_transition_time: Time(self.began),
        };
        let known = Step::ALL.map(|step| {
            self.steps
                .get(&step)
                .cloned()
                .unwrap_or_else(|| not_reached(step))
        });
        let mut conditions = known.to_vec();
        for condition in &mut conditions {
            // A step that has ended does not change.
            if condition.complete_time.is_none() {
                condition.last_probe_time = Time(now);
            }
        }
        conditions
    }
}

impl Condition {
    fn set(&mut self, status: Status, reason: &str, message: &str, now: Timestamp) {
        if self.status != status {
            self.last_transition_time = Time(now);
        }
        self.status = status;
        self.reason = reason.to_owned();
        self.message = message.to_owned();
        self.last_probe_time = Time(now);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_000_000 + second).unwrap()
    }

    #[test]
    fn each_step_has_a_condition() {
        let mut conditions = Conditions::new(at(0));
        conditions.start(Step::Spec, at(1));
        conditions.end(Step::Spec, true, "Read", "4 images", at(2));
        conditions.start(Step::Pull, at(3));

        let list = conditions.list(at(9));
        let words: Vec<_> = list
            .iter()
            .map(|condition| (condition.step, condition.status))
            .collect();
        assert_eq!(
            words,
            [
                (Step::Spec, Status::True),
                (Step::Store, Status::Unknown),
                (Step::ReleaseVerified, Status::Unknown),
                (Step::Release, Status::Unknown),
                (Step::Operators, Status::Unknown),
                (Step::Resolve, Status::Unknown),
                (Step::Preflight, Status::Unknown),
                (Step::Pull, Status::Unknown),
                (Step::Verify, Status::Unknown),
            ]
        );
        assert_eq!(
            serde_json::to_value(&list[0]).unwrap(),
            serde_json::json!({
                "type": "Spec", "status": "True", "reason": "Read", "message": "4 images",
                "startTime": Time(at(1)), "completeTime": Time(at(2)),
                "lastProbeTime": Time(at(2)), "lastTransitionTime": Time(at(2)),
            })
        );
        let pull = &list[7];
        assert_eq!(
            (pull.reason.as_str(), pull.start_time),
            ("Unfinished", Some(Time(at(3))))
        );
        assert_eq!(
            (pull.last_probe_time, pull.last_transition_time),
            (Time(at(9)), Time(at(3)))
        );
        assert_eq!(
            (list[8].reason.as_str(), list[8].last_transition_time),
            ("NotReached", Time(at(0)))
        );
    }

    #[test]
    fn a_step_without_a_result_has_its_reason() {
        let mut conditions = Conditions::new(at(0));
        conditions.end_unknown(Step::ReleaseVerified, "NoKeys", "no keys", at(1));
        let condition = &conditions.list(at(9))[2];
        assert_eq!(
            (condition.status, condition.reason.as_str()),
            (Status::Unknown, "NoKeys")
        );
        assert_eq!(condition.complete_time, Some(Time(at(1))));
    }

    #[test]
    fn a_repeated_step_lasts_from_its_first_start_to_its_last_end() {
        let mut conditions = Conditions::new(at(0));
        for (ok, time) in [(true, 1), (true, 3), (false, 5)] {
            conditions.start(Step::Pull, at(time));
            conditions.end(Step::Pull, ok, "Any", "", at(time + 1));
        }
        let pull = &conditions.list(at(9))[7];
        assert_eq!(
            (pull.start_time, pull.complete_time),
            (Some(Time(at(1))), Some(Time(at(6))))
        );
        assert_eq!(
            (pull.status, pull.last_transition_time),
            (Status::False, Time(at(6)))
        );
    }
}
