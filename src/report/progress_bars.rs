//! Progress as bars on a terminal: one for each blob that is being fetched, one for all of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};

use super::progress::Progress;
use super::{Event, Observer, Size};
use crate::oci::Digest;

/// How often the total is drawn, by a thread of indicatif's: also while nothing arrives, so that a stall shows as a
/// falling rate.
const TICK: Duration = Duration::from_millis(200);

/// Digits of a digest that name a bar, as podman shows them.
const SHORT_DIGEST: usize = 12;

/// Draws bars. They vanish when it is dropped, or with a blob's end: what was achieved is the log's to say.
pub struct ProgressBars {
    multi: MultiProgress,
    progress: Arc<Mutex<Progress>>,
    total: ProgressBar,
    blobs: Mutex<HashMap<Digest, ProgressBar>>,
}

impl ProgressBars {
    /// Begins to draw on `multi`.
    pub(super) fn new(multi: MultiProgress) -> Self {
        let progress = Arc::new(Mutex::new(Progress::default()));
        let total = multi.add(ProgressBar::new(0));
        total.set_style(total_style(Arc::clone(&progress)));
        Self {
            multi,
            progress,
            total,
            blobs: Mutex::default(),
        }
    }

    fn blob(&self, digest: Digest, change: impl FnOnce(&ProgressBar)) {
        if let Some(bar) = self
            .blobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&digest)
        {
            change(bar);
        }
    }

    fn begin(&self, digest: Digest, size: u64, resumed: u64) {
        let mut blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = blobs.entry(digest).or_insert_with(|| {
            let bar = self.multi.insert_before(&self.total, ProgressBar::new(size));
            bar.set_style(blob_style());
            bar.set_prefix(digest.hex()[..SHORT_DIGEST].to_owned());
            bar
        });
        bar.set_position(resumed);
    }

    fn end(&self, digest: Digest) {
        let bar = self
            .blobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&digest);
        if let Some(bar) = bar {
            bar.finish_and_clear();
            self.multi.remove(&bar);
        }
    }
}

impl Observer for ProgressBars {
    fn observe(&self, event: Event) {
        // Drawing takes this lock for the numbers of the total, so it is released before anything is drawn.
        let snapshot = {
            let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            progress.note(&event, Instant::now());
            progress.snapshot(Instant::now())
        };
        // Before the first plan there is no total to show.
        if snapshot.images > 0 {
            self.total.update(|state| {
                state.set_len(snapshot.bytes);
                state.set_pos(snapshot.fetched);
            });
        }
        match event {
            Event::Planned { .. } => self.total.enable_steady_tick(TICK),
            Event::BlobStarted { blob, size, resumed } => self.begin(blob, size, resumed),
            Event::BlobReceived { blob, bytes } => self.blob(blob, |bar| bar.inc(bytes)),
            Event::BlobVerified { blob } | Event::BlobAbandoned { blob } => self.end(blob),
            _ => (),
        }
    }
}

impl Drop for ProgressBars {
    fn drop(&mut self) {
        for (_, bar) in self.blobs.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            bar.finish_and_clear();
        }
        self.total.disable_steady_tick();
        self.total.finish_and_clear();
    }
}

fn blob_style() -> ProgressStyle {
    ProgressStyle::with_template("{prefix} [{bar:16}] {size}")
        .expect("the template is a literal and a test draws it")
        .with_key("size", |state: &ProgressState, text: &mut dyn std::fmt::Write| {
            let _ = write!(
                text,
                "{} of {}",
                Size(state.pos()),
                Size(state.len().unwrap_or(0))
            );
        })
        .progress_chars("=> ")
}

fn total_style(progress: Arc<Mutex<Progress>>) -> ProgressStyle {
    ProgressStyle::with_template("total        [{bar:16}] {far}")
        .expect("the template is a literal and a test draws it")
        .with_key("far", move |_: &ProgressState, text: &mut dyn std::fmt::Write| {
            let snapshot = progress
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .snapshot(Instant::now());
            let _ = write!(text, "{}", snapshot.brief());
        })
        .progress_chars("=> ")
}
