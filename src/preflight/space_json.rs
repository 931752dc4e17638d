//! The verdict as JSON: the plan document's `space`. All sizes in bytes.

use serde::{Serialize, Serializer};

use super::{Cause, Holds, Threshold, Verdict};

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        VerdictDocument::of(self).serialize(serializer)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VerdictDocument {
    fits: bool,
    high_threshold_percent: Threshold,
    required: u64,
    cached: u64,
    file_systems: Vec<CheckDocument>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckDocument {
    holds: &'static [&'static str],
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mount: Option<String>,
    capacity: u64,
    available: u64,
    headroom: u64,
    needed: u64,
    cause: Cause,
    shortfall: u64,
}

impl VerdictDocument {
    fn of(verdict: &Verdict) -> Self {
        let checks = verdict.checks.iter().map(|check| CheckDocument {
            holds: match check.holds {
                Holds::Both => &["store", "spool"],
                Holds::Store => &["store"],
                Holds::Spool => &["spool"],
            },
            path: check.space.path.to_string_lossy().into_owned(),
            mount: check.space.mount.as_ref().map(ToString::to_string),
            capacity: check.space.capacity,
            available: check.space.available,
            headroom: check.headroom,
            needed: check.needed,
            cause: check.cause,
            shortfall: check.shortfall,
        });
        Self {
            fits: verdict.fits,
            high_threshold_percent: verdict.threshold,
            required: verdict.demand.required,
            cached: verdict.demand.cached,
            file_systems: checks.collect(),
        }
    }
}
