//! Records one condition for each step of a run, by the rules for conditions of a ClusterOperator.
//!
//! The rules are those of openshift/api (`types_cluster_operator.go`) and of the cluster-version operator
//! (`internal/operatorstatus.go`): every condition has a reason in CamelCase, also when all is well (`AsExpected`), and a
//! message that is a sentence. A step that is not done is `Unknown` and not `False`, because progress is not failure. A step
//! that is repeated with the same result has not changed its status in between.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Step, Time};

/// The condition of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The step.
    #[serde(rename = "type")]
    pub step: Step,
    /// Whether it achieved its goal.
    pub status: Status,
    /// One word in CamelCase.
    pub reason: String,
    /// For people: a sentence, and after an error its hint on another line.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// Achieved.
    True,
    /// Not achieved.
    False,
    /// The step was not reached, or the run ended during it.
    Unknown,
}

/// Reason and message of a step that started and did not end before the report is made.
const UNFINISHED: (&str, &str) = ("Unfinished", "The run ended before this step did");

/// Reason and message of a step that was not reached or not needed.
const NOT_REACHED: (&str, &str) = ("NotReached", "The run did not reach this step");

/// The longest message in bytes. The log has the whole text.
const MESSAGE_LIMIT: usize = 2048;

/// The conditions of all steps.
#[derive(Debug)]
pub(super) struct Conditions {
    began: Timestamp,
    steps: BTreeMap<Step, Recorded>,
}

/// The condition of a step that was reached.
#[derive(Debug)]
struct Recorded {
    condition: Condition,
    /// Status and last transition before the step was repeated.
    before: Option<(Status, Time)>,
}

impl Conditions {
    pub(super) fn new(began: Timestamp) -> Self {
        Self {
            began,
            steps: BTreeMap::new(),
        }
    }

    pub(super) fn start(&mut self, step: Step, now: Timestamp) {
        let Recorded { condition, before } = self.at(step, now);
        if condition.complete_time.take().is_some() {
            *before = Some((condition.status, condition.last_transition_time));
        }
        condition.set(Status::Unknown, UNFINISHED.0, UNFINISHED.1, now);
        condition.start_time.get_or_insert(Time(now));
    }

    pub(super) fn end(&mut self, step: Step, ok: bool, reason: &str, message: &str, now: Timestamp) {
        let status = if ok { Status::True } else { Status::False };
        self.end_with(step, status, reason, message, now);
    }

    /// Ends a step without a result.
    pub(super) fn end_unknown(&mut self, step: Step, reason: &str, message: &str, now: Timestamp) {
        self.end_with(step, Status::Unknown, reason, message, now);
    }

    fn end_with(&mut self, step: Step, status: Status, reason: &str, message: &str, now: Timestamp) {
        debug_assert!(is_camel_case(reason), "{step:?}: `{reason}`");
        let Recorded { condition, before } = self.at(step, now);
        // What TALM's log has on further lines is not needed to know that all is well.
        let first_line = || message.lines().next().unwrap_or_default();
        let message = if status == Status::True {
            first_line()
        } else {
            message
        };
        condition.set(status, reason, message, now);
        if let Some((_, since)) = before.take_if(|(before, _)| *before == status) {
            condition.last_transition_time = since;
        }
        condition.start_time.get_or_insert(Time(now));
        condition.complete_time = Some(Time(now));
    }

    fn at(&mut self, step: Step, now: Timestamp) -> &mut Recorded {
        self.steps.entry(step).or_insert_with(|| Recorded {
            condition: Condition::unknown(step, UNFINISHED, now, now),
            before: None,
        })
    }

    /// All steps in their order, `now`: those of every run, then others that were reached.
    pub(super) fn list(&self, now: Timestamp) -> Vec<Condition> {
        let condition = |step| match self.steps.get(&step) {
            Some(Recorded { condition, .. }) => condition.clone(),
            None => Condition::unknown(step, NOT_REACHED, self.began, now),
        };
        let more = self.steps.keys().filter(|step| !Step::ALL.contains(step));
        let steps = Step::ALL.iter().chain(more);
        let mut conditions: Vec<_> = steps.map(|step| condition(*step)).collect();
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
    /// The reason of a step that succeeded without anything particular, as in a healthy ClusterOperator.
    pub const AS_EXPECTED: &str = "AsExpected";

    /// The reason of a version spec that requests nothing, because the cluster does not.
    pub const NOTHING_REQUESTED: &str = "NothingRequested";

    /// Whether the run reached its step.
    pub fn is_reached(&self) -> bool {
        self.start_time.is_some()
    }

    fn unknown(step: Step, (reason, message): (&str, &str), since: Timestamp, now: Timestamp) -> Self {
        Self {
            step,
            status: Status::Unknown,
            reason: reason.to_owned(),
            message: message.to_owned(),
            start_time: None,
            complete_time: None,
            last_probe_time: Time(now),
            last_transition_time: Time(since),
        }
    }

    fn set(&mut self, status: Status, reason: &str, message: &str, now: Timestamp) {
        if self.status != status {
            self.last_transition_time = Time(now);
        }
        self.status = status;
        self.reason = reason.to_owned();
        self.message = sentence(message);
        self.last_probe_time = Time(now);
    }
}

/// Whether a reason is one word in CamelCase.
fn is_camel_case(reason: &str) -> bool {
    reason.starts_with(|first: char| first.is_ascii_uppercase())
        && reason.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The message with a capital, unless it begins with a name such as `registries.conf`, and of bounded length.
fn sentence(message: &str) -> String {
    let message = message.trim();
    let first = message.split_whitespace().next().unwrap_or_default();
    let is_word = |word: &str| word.bytes().all(|byte| byte.is_ascii_lowercase());
    let mut sentence = message.to_owned();
    if let (true, Some(letter)) = (
        is_word(first.trim_end_matches([',', ':', ';'])),
        sentence.get_mut(..1),
    ) {
        letter.make_ascii_uppercase();
    }
    if sentence.len() > MESSAGE_LIMIT {
        sentence.truncate(sentence.floor_char_boundary(MESSAGE_LIMIT - '…'.len_utf8()));
        sentence.push('…');
    }
    sentence
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
        conditions.end(Step::Spec, true, "AsExpected", "4 images", at(2));
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
                "type": "Spec", "status": "True", "reason": "AsExpected", "message": "4 images",
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

    #[test]
    fn a_step_that_is_repeated_with_the_same_result_has_not_changed() {
        let mut conditions = Conditions::new(at(0));
        conditions.end(Step::Preflight, true, "SpaceSuffices", "enough\ndetails", at(1));
        conditions.start(Step::Preflight, at(5));
        let during = conditions.list(at(6))[6].clone();
        assert_eq!(
            (during.status, during.reason.as_str()),
            (Status::Unknown, "Unfinished"),
            "nothing is claimed before it is done"
        );
        conditions.end(
            Step::Preflight,
            true,
            "SpaceSuffices",
            "enough\nother details",
            at(7),
        );
        let again = conditions.list(at(9))[6].clone();
        assert_eq!(again.message, "Enough");
        assert_eq!(
            (again.status, again.last_transition_time, again.last_probe_time),
            (Status::True, Time(at(1)), Time(at(7)))
        );
    }

    #[test]
    fn a_message_is_a_sentence_of_bounded_length() {
        for (message, expected) in [
            (
                "cannot read `a`\nhint: mount it\n",
                "Cannot read `a`\nhint: mount it",
            ),
            ("invalid: x", "Invalid: x"),
            ("4 of 5 images", "4 of 5 images"),
            ("`a` is missing", "`a` is missing"),
            ("registries.conf is invalid", "registries.conf is invalid"),
            ("", ""),
            ("ärger", "ärger"),
        ] {
            assert_eq!(sentence(message), expected);
        }
        let long = sentence(&"ä".repeat(MESSAGE_LIMIT));
        assert!(long.len() <= MESSAGE_LIMIT && long.ends_with('…'));
    }

    #[test]
    fn a_reason_is_one_word_in_camel_case() {
        for failure in ["AsExpected", "NoKeys", UNFINISHED.0, NOT_REACHED.0] {
            assert!(is_camel_case(failure), "{failure}");
        }
        for wrong in ["", "asExpected", "As expected", "As_Expected"] {
            assert!(!is_camel_case(wrong), "{wrong}");
        }
    }
}
