//! Defines a Kubernetes event (`events.k8s.io/v1`) about this Job, or about this pod if it has no Job.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::annotations::cut;
use super::api_client::{Body, FIELD_MANAGER};

/// The longest `note`, in bytes (kubernetes `validation/events.go`: 1 KiB).
const NOTE_LIMIT: usize = 1024;

/// The longest `reportingInstance`, in bytes.
const INSTANCE_LIMIT: usize = 128;

/// One event, with the time of its creation.
#[derive(Clone, Debug)]
pub(super) struct KubeEvent {
    /// Part of its name, so that sending it twice creates it once.
    id: u64,
    time: Timestamp,
    is_warning: bool,
    reason: String,
    note: String,
}

/// The object that an event is about (the field `regarding`).
#[derive(Clone, Debug)]
pub(super) struct Regarding<'a> {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) uid: Option<&'a str>,
}

impl KubeEvent {
    pub(super) fn new(is_warning: bool, reason: &str, note: &str) -> Self {
        Self {
            id: rand::random(),
            time: Timestamp::now(),
            is_warning,
            reason: reason.to_owned(),
            note: cut(note, NOTE_LIMIT),
        }
    }

    /// Whether both are the same event.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
    }

    /// Whether both have the same text.
    pub(super) fn has_same_text(&self, other: &Self) -> bool {
        self.reason == other.reason && self.note == other.note
    }

    pub(super) fn body(&self, regarding: &Regarding<'_>, pod: Option<&str>) -> Body {
        Body::new("application/json", &self.json(regarding, pod))
    }

    fn json(&self, regarding: &Regarding<'_>, pod: Option<&str>) -> Value {
        let mut object = json!({
            "apiVersion": regarding.api_version,
            "kind": regarding.kind,
            "namespace": regarding.namespace,
            "name": regarding.name,
        });
        if let Some(uid) = regarding.uid {
            object["uid"] = uid.into();
        }
        // `metav1.MicroTime` always has six digits.
        let time = self.time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": format!("{}.{:016x}", regarding.name, self.id),
                "namespace": regarding.namespace,
            },
            "eventTime": time,
            "type": if self.is_warning { "Warning" } else { "Normal" },
            "reason": self.reason,
            "action": "PreCache",
            "note": self.note,
            "regarding": object,
            "reportingController": FIELD_MANAGER,
            "reportingInstance": cut(pod.unwrap_or(regarding.name), INSTANCE_LIMIT),
        })
    }
}
