//! Writes the space check as JSON: `space` in the plan document. All sizes in bytes.

use serde::{Serialize, Serializer};

use super::{Cause, FilesystemUse, SpaceCheck, Threshold};

impl Serialize for SpaceCheck {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        SpaceDocument::of(self).serialize(serializer)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpaceDocument {
    fits: bool,
    high_threshold_percent: Threshold,
    required: u64,
    cached: u64,
    file_systems: Vec<FilesystemDocument>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FilesystemDocument {
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

impl SpaceDocument {
    fn of(check: &SpaceCheck) -> Self {
        let filesystems = check.filesystems.iter().map(|check| FilesystemDocument {
            holds: match check.used_for {
                FilesystemUse::Both => &["store", "spool"],
                FilesystemUse::Store => &["store"],
                FilesystemUse::Spool => &["spool"],
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
            fits: check.fits,
            high_threshold_percent: check.threshold,
            required: check.demand.required,
            cached: check.demand.cached,
            file_systems: filesystems.collect(),
        }
    }
}
