//! Records a run in the history while it works and when it ends.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::Value;

use super::error::HistoryError;
use super::history_file::{Changed, HistoryFile};
use super::run_entry::RunEntry;
use crate::oci::{Digest, ImageId, Reference};
use crate::report::{Event, Observer, Printable, Recorder, Report, Step};
use crate::spec::VersionSpec;

/// The digest and the id of each requested image that a registry resolved, by its normalised reference.
pub type ResolvedIds = HashMap<String, (Digest, ImageId)>;

/// The entry of this run. Clones share it.
#[derive(Clone)]
pub struct RunRecord(Arc<Shared>);

struct Shared {
    file: HistoryFile,
    id: String,
    image: Option<String>,
    spec: Option<Value>,
    recorder: Arc<Recorder>,
    /// Whether the last entry is written. Held while an entry is written, so that none replaces the last one.
    has_ended: Mutex<bool>,
}

impl RunRecord {
    /// The record of a run with this spool; without a version spec, if that was not usable.
    pub fn new(spool: &Path, spec: Option<&VersionSpec>, recorder: Arc<Recorder>) -> Self {
        let image = spec.and_then(|spec| spec.platform_image.as_ref());
        Self(Arc::new(Shared {
            file: HistoryFile::in_directory(spool),
            id: format!("{:016x}", rand::random::<u64>()),
            image: image.map(Reference::to_string),
            // The printer's own output parses.
            spec: spec.and_then(|spec| serde_json::from_str(&spec.to_json()).ok()),
            recorder,
            has_ended: Mutex::new(false),
        }))
    }

    /// Writes the last entry. Where `is_stopped`, it does not wait for the disk.
    pub fn end(&self, report: &Report, resolved: &ResolvedIds, is_stopped: bool) {
        let mut has_ended = self.0.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        *has_ended = true;
        let mut entry = self.0.entry(report, true);
        let images = entry
            .requested
            .iter_mut()
            .flat_map(|requested| &mut requested.images);
        for image in images {
            if let Some((digest, id)) = resolved.get(&image.name) {
                (image.digest, image.id) = (Some(digest.to_string()), Some(id.to_string()));
            }
        }
        let changed = self.0.file.change(|history| history.put(entry));
        warn(changed.and_then(|changed| match is_stopped {
            true => Ok(()),
            false => changed.sync(),
        }));
    }
}

impl Shared {
    fn entry(&self, report: &Report, ends: bool) -> RunEntry {
        RunEntry::of(report, &self.id, self.image.clone(), self.spec.clone(), ends)
    }

    /// Writes the entry of a run that has locked the spool.
    fn write_running(&self) {
        let written = self.change_running().transpose();
        warn(written.and_then(|changed| changed.map_or(Ok(()), |changed| changed.sync())));
    }

    /// The same without a sync, during which the run may end; none if it has ended.
    fn change_running(&self) -> Option<Result<Changed, HistoryError>> {
        let has_ended = self.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *has_ended {
            return None;
        }
        let entry = self.entry(&self.recorder.report(0), false);
        Some(self.file.change(|history| {
            history.close_others(&self.id);
            history.put(entry);
        }))
    }
}

impl Observer for RunRecord {
    /// Writes in a thread, because an observer must not wait for the disk.
    fn observe(&self, event: Event) {
        let is_due = matches!(
            event,
            // The spool is locked from here on.
            Event::StepEnded { step: Step::Store, ok: true, .. }
            // The release and the catalogs are read.
            | Event::StepStarted(Step::Pull)
        );
        if !is_due {
            return;
        }
        let shared = Arc::clone(&self.0);
        let spawned = thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || shared.write_running());
        if let Err(error) = spawned {
            tracing::warn!("cannot record this run before its end: {error}");
        }
    }
}

fn warn(written: Result<(), HistoryError>) {
    match written {
        Ok(()) => {}
        Err(error @ HistoryError::NoDirectory { .. }) => tracing::debug!("this run is not recorded: {error}"),
        Err(error) => tracing::warn!("this run is not recorded: {}", Printable(&error.to_string())),
    }
}
