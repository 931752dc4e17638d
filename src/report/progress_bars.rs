//! Shows progress as bars on a terminal: one for each blob that is being downloaded, and one for the run.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};

use super::bar_layout::{blob_line, total_line};
use super::progress::Progress;
use super::{Event, Observer};
use crate::oci::Digest;

/// How often a thread of indicatif's draws the total, also while no byte arrives: a stall shows as a falling rate.
const TICK: Duration = Duration::from_millis(200);

/// Draws bars. A blob's bar disappears when its download ends, and all disappear when this is dropped: the log reports the
/// results.
pub struct ProgressBars {
    multi: MultiProgress,
    /// Rows and columns of the terminal.
    size: fn() -> (u16, u16),
    progress: Arc<Mutex<Progress>>,
    total: ProgressBar,
    blobs: Mutex<Blobs>,
}

#[derive(Default)]
struct Blobs {
    bars: HashMap<Digest, ProgressBar>,
    /// The component that needs the blob first.
    components: HashMap<Digest, String>,
}

impl ProgressBars {
    /// Starts to draw on `multi`.
    pub(super) fn new(multi: MultiProgress, size: fn() -> (u16, u16)) -> Self {
        let progress = Arc::new(Mutex::new(Progress::default()));
        let total = multi.add(ProgressBar::new(0));
        total.set_style(style({
            let progress = Arc::clone(&progress);
            move |_| {
                let progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
                total_line(size().1.into(), &progress.snapshot(Instant::now()))
            }
        }));
        Self {
            multi,
            size,
            progress,
            total,
            blobs: Mutex::default(),
        }
    }

    fn name(&self, digest: Digest, component: String) {
        let mut blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        blobs.components.entry(digest).or_insert(component);
    }

    fn start(&self, digest: Digest, size: u64, resumed: u64) {
        let mut blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        let Blobs { bars, components } = &mut *blobs;
        let bar = bars.entry(digest).or_insert_with(|| {
            let bar = self.multi.insert_before(&self.total, ProgressBar::new(size));
            let (component, terminal) = (components.get(&digest).cloned(), self.size);
            bar.set_style(style(move |state| {
                let (position, length) = (state.pos(), state.len().unwrap_or(0));
                blob_line(
                    terminal().1.into(),
                    component.as_deref(),
                    &digest,
                    position,
                    length,
                )
            }));
            bar
        });
        bar.set_position(resumed);
    }

    fn advance(&self, digest: Digest, bytes: u64) {
        let blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = blobs.bars.get(&digest) {
            bar.inc(bytes);
        }
    }

    fn end(&self, digest: Digest) {
        let mut blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = blobs.bars.remove(&digest);
        drop(blobs);
        if let Some(bar) = bar {
            bar.finish_and_clear();
            self.multi.remove(&bar);
        }
    }
}

impl Observer for ProgressBars {
    fn observe(&self, event: Event) {
        // Drawing the total takes this lock, so it is released before anything is drawn.
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
            Event::BlobListed { blob, label, .. } => self.name(blob, label.component().to_owned()),
            Event::BlobStarted { blob, size, resumed } => self.start(blob, size, resumed),
            Event::BlobReceived { blob, bytes } | Event::BlobCopied { blob, bytes, .. } => {
                self.advance(blob, bytes);
            }
            Event::BlobVerified { blob } | Event::BlobAbandoned { blob } => self.end(blob),
            _ => (),
        }
    }
}

impl Drop for ProgressBars {
    fn drop(&mut self) {
        let mut blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, bar) in blobs.bars.drain() {
            bar.finish_and_clear();
        }
        self.total.disable_steady_tick();
        self.total.finish_and_clear();
    }
}

/// A bar whose text is `line`.
fn style(line: impl Fn(&ProgressState) -> String + Clone + Send + Sync + 'static) -> ProgressStyle {
    ProgressStyle::with_template("{line}")
        .expect("the template is a literal and a test draws it")
        .with_key("line", move |state: &ProgressState, text: &mut dyn Write| {
            let _ = text.write_str(&line(state));
        })
}
