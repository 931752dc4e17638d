//! Keeps the last runs in a file of the spool's directory, so that `status` can show them without a registry or the API.
//!
//! ```text
//! spoke-precache/                    the spool's directory, 0700
//!   history.json                     0600; at most 20 runs, newest first, at most 1 MiB
//!     {"apiVersion": "spoke-precache/v1", "kind": "History",
//!      "history": [{"id", "version", "image", "phase", "reason", "startTime", "completeTime", "exitCode",
//!                   "bytesPlanned", "bytesFetched", "images": {…}, "conditions": […], "spec": {…},
//!                   "requested": {"isComplete", "images": [{"name", "state", "digest", "id"}]}}, …]}
//!   .history.json.tmp                while it is written
//! ```
//!
//! The fields are those of UpgradeConfig's `status.history` (openshift/managed-upgrade-operator), as far as a run has them;
//! the conditions are those of the report, newest first. Only the newest list of requested images is kept.
//!
//! # Design
//!
//! A run writes its entry when it has locked the spool, when it starts to pull everything, and when it ends. A run that is
//! killed leaves its entry in the phase [`RunPhase::Pulling`]. The next run that locks the spool sets such an entry to
//! [`RunPhase::Unknown`]: only one run at a time has that lock. A run that ends without it, because another run has it, adds
//! its entry and changes no other.
//!
//! The directory itself is locked for the milliseconds of a change. The file is replaced by a rename, so a reader needs no
//! lock. The history is never the reason why a run fails: what cannot be read is replaced, with a warning, and what cannot be
//! written is a warning.

mod error;
mod history_file;
mod run_entry;
mod run_record;
mod table;

use serde::{Deserialize, Serialize};

use crate::report::API_VERSION;
use error::DamagedHistory;
pub use error::HistoryError;
pub use history_file::HistoryFile;
pub use run_entry::{ImageNumbers, RequestedImage, RequestedImages, RunEntry, RunPhase};
pub use run_record::{ResolvedIds, RunRecord};

/// The `kind` of the file.
const KIND: &str = "History";

/// How many runs are kept: a month of working days with one run each.
const RUNS: usize = 20;

/// The largest file, written or read. A run has about 8 KiB, and the list of requested images about 50 KiB.
const LIMIT: usize = 1 << 20;

/// The last runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunHistory {
    api_version: String,
    kind: String,
    /// Newest first.
    pub history: Vec<RunEntry>,
}

impl Default for RunHistory {
    fn default() -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            history: Vec::new(),
        }
    }
}

impl RunHistory {
    /// Parses the content of the file.
    fn parse(bytes: &[u8]) -> Result<Self, DamagedHistory> {
        if bytes.len() > LIMIT {
            return Err(DamagedHistory::TooLong);
        }
        let mut parsed: Self = serde_json::from_slice(bytes)?;
        if parsed.api_version != API_VERSION || parsed.kind != KIND {
            return Err(DamagedHistory::OtherKind);
        }
        parsed.history.truncate(RUNS);
        Ok(parsed)
    }

    /// The content of the file: as many runs as fit.
    fn bounded_json(&mut self) -> String {
        loop {
            let json =
                serde_json::to_string_pretty(self).expect("strings, numbers and lists always serialise");
            match self.history.as_mut_slice() {
                _ if json.len() < LIMIT => return json + "\n",
                [only] => only.shorten(),
                _ => drop(self.history.pop()),
            }
        }
    }

    /// Adds the entry of a run, or replaces it.
    fn put(&mut self, entry: RunEntry) {
        match self.history.iter_mut().find(|known| known.id == entry.id) {
            Some(known) => *known = entry,
            None => self.history.insert(0, entry),
        }
        self.history.truncate(RUNS);
        let lists = self.history.iter_mut().filter(|entry| entry.requested.is_some());
        for entry in lists.skip(1) {
            entry.requested = None;
        }
    }

    /// Closes the entries of runs that ended without a word. `id` is the run that has locked the spool.
    fn close_others(&mut self, id: &str) {
        let open = |entry: &&mut RunEntry| entry.phase == RunPhase::Pulling && entry.id != id;
        for entry in self.history.iter_mut().filter(open) {
            entry.phase = RunPhase::Unknown;
            entry.reason = Some("The run was killed, or the node lost power".to_owned());
        }
    }

    /// The last run that recorded what was requested, with its list.
    pub fn last_request(&self) -> Option<(&RunEntry, &RequestedImages)> {
        self.history
            .iter()
            .find_map(|entry| Some((entry, entry.requested.as_ref()?)))
    }
}

#[cfg(test)]
mod tests;
