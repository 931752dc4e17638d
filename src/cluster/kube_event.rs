//! Kubernetes' events of `events.k8s.io/v1`: the start, each step's failure and the end, regarding our Job or, where there is
//! none, our pod.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::annotations::cut;
use super::api_client::{Body, FIELD_MANAGER};

/// What a `note` may have, in bytes (kubernetes `validation/events.go`: 1 KiB).
const NOTE_LIMIT: usize = 1024;

/// What `reportingInstance` may have, in bytes.
const INSTANCE_LIMIT: usize = 128;

/// One event, made when it happened.
#[derive(Clone, Debug)]
pub(super) struct KubeEvent {
    /// Makes its name: whoever sends it twice makes it once.
    id: u64,
    time: Timestamp,
    is_trouble: bool,
    reason: String,
    note: String,
}

/// What an event regards.
#[derive(Clone, Debug)]
pub(super) struct Regarding<'a> {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) uid: Option<&'a str>,
}

impl KubeEvent {
    pub(super) fn new(is_trouble: bool, reason: &str, note: &str) -> Self {
        Self {
            id: rand::random(),
            time: Timestamp::now(),
            is_trouble,
            reason: reason.to_owned(),
            note: cut(note, NOTE_LIMIT),
        }
    }

    /// This very event, and not one like it.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.id == other.id
    }

    /// The same thing, said again.
    pub(super) fn repeats(&self, other: &Self) -> bool {
        self.reason == other.reason && self.note == other.note
    }

    pub(super) fn body(&self, regarding: &Regarding<'_>, pod: Option<&str>) -> Body {
        Body::new("application/json", &self.document(regarding, pod))
    }

    fn document(&self, regarding: &Regarding<'_>, pod: Option<&str>) -> Value {
        let mut object = json!({
            "apiVersion": regarding.api_version,
            "kind": regarding.kind,
            "namespace": regarding.namespace,
            "name": regarding.name,
        });
        if let Some(uid) = regarding.uid {
            object["uid"] = uid.into();
        }
        // `metav1.MicroTime` has six digits, always.
        let time = self.time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": format!("{}.{:016x}", regarding.name, self.id),
                "namespace": regarding.namespace,
            },
            "eventTime": time,
            "type": if self.is_trouble { "Warning" } else { "Normal" },
            "reason": self.reason,
            "action": "PreCache",
            "note": self.note,
            "regarding": object,
            "reportingController": FIELD_MANAGER,
            "reportingInstance": cut(pod.unwrap_or(regarding.name), INSTANCE_LIMIT),
        })
    }
}
