//! Logs progress as a line every few seconds, where there is no terminal.
//!
//! # Design
//!
//! Events are only counted, in the thread that reports them. A separate thread logs every few seconds, also while no byte
//! arrives: a broken link shows as a rate of 0 and not as silence. The thread ends when the observer is dropped, because
//! that closes the channel, which never carries a message.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::progress::Progress;
use super::{Event, Observer};

/// With this interval the log of a four-hour run stays below 3000 lines.
const INTERVAL: Duration = Duration::from_secs(5);

/// Logs at intervals how far a run is.
pub struct ProgressLines {
    progress: Arc<Mutex<Progress>>,
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLines {
    /// Starts the thread.
    pub fn start() -> std::io::Result<Self> {
        Self::every(INTERVAL, |line| tracing::info!("{line}"))
    }

    fn every(interval: Duration, log: impl Fn(String) + Send + 'static) -> std::io::Result<Self> {
        let progress = Arc::new(Mutex::new(Progress::default()));
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("progress".into()).spawn({
            let progress = Arc::clone(&progress);
            move || {
                while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(interval) {
                    let snapshot = progress
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .snapshot(Instant::now());
                    if snapshot.is_busy() {
                        log(snapshot.to_string());
                    }
                }
            }
        })?;
        Ok(Self {
            progress,
            end: Some(end),
            thread: Some(thread),
        })
    }
}

impl Observer for ProgressLines {
    fn observe(&self, event: Event) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.note(&event, Instant::now());
    }
}

impl Drop for ProgressLines {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has no consequence any more.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn logs_while_work_is_left_and_ends_at_once() {
        let (sender, lines) = mpsc::channel();
        let observer =
            ProgressLines::every(Duration::from_millis(5), move |line| sender.send(line).unwrap()).unwrap();
        observer.observe(Event::Planned {
            images: 2,
            present: 0,
            bytes: 1 << 20,
            bytes_from_media: 0,
        });
        for _ in 0..2 {
            let line = lines.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!(line, "images 0/2, 0.0 MiB of 1.0 MiB (0 %)");
        }
        drop(observer);
        // The thread has ended and dropped its sender.
        assert!(lines.try_iter().all(|line| line.starts_with("images 0/2")));
        assert_eq!(lines.try_recv(), Err(mpsc::TryRecvError::Disconnected));

        let started = Instant::now();
        drop(ProgressLines::every(Duration::from_secs(3600), drop).unwrap());
        assert!(started.elapsed() < Duration::from_secs(60));
    }
}
