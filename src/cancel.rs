//! Stops a run: one stop signal for all tasks and threads, with its reason.
//!
//! Tasks await it; threads poll it between tar entries and chunks. The first reason counts: a SIGTERM after the deadline
//! changes nothing.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;

/// Why the run stops before its work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// `--deadline`, or the Job's own.
    Deadline,
    /// The upgrade of the cluster begins at this time, and CRI-O pulls what is missing.
    Upgrade(Timestamp),
    /// A signal with this number.
    Signal(i32),
    /// An error in one task that stops the others; the run ends with that error and not with this reason.
    FatalError,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("the deadline"),
            Self::Upgrade(at) => write!(f, "the upgrade, which begins at {at}"),
            Self::Signal(number) => write!(f, "signal {number}"),
            Self::FatalError => f.write_str("an error in another task"),
        }
    }
}

/// [`Cancel`] stopped the work; the work itself has no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped by {0}")]
pub struct Stopped(pub StopReason);

/// A handle to the stop signal; clones share it.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<watch::Sender<Option<StopReason>>>);

impl Default for Cancel {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Cancel {
    /// Stops the run; later calls change nothing.
    pub fn stop(&self, reason: StopReason) {
        self.0.send_if_modified(|now| {
            let first = now.is_none();
            now.get_or_insert(reason);
            first
        });
    }

    /// Stops the run at `deadline`, for `reason`. A thread waits for it and not a task: the threads of the runtime may all be blocked, by
    /// a log that is not read or a disk that hangs.
    ///
    /// # Errors
    /// If no thread can be started. Then the deadline does not stop the run.
    pub fn stop_at(&self, deadline: Instant, reason: StopReason) -> io::Result<()> {
        let cancel = self.clone();
        let wait = move || {
            thread::sleep(deadline.saturating_duration_since(Instant::now()));
            cancel.stop(reason);
        };
        thread::Builder::new().name("deadline".to_owned()).spawn(wait)?;
        Ok(())
    }

    /// The reason, if the run was stopped.
    pub fn reason(&self) -> Option<StopReason> {
        *self.0.borrow()
    }

    /// For threads: an error once the run was stopped.
    pub fn check(&self) -> Result<(), Stopped> {
        self.reason().map_or(Ok(()), |reason| Err(Stopped(reason)))
    }

    /// For tasks: completes when the run is stopped.
    pub async fn stopped(&self) -> Stopped {
        let mut receiver = self.0.subscribe();
        loop {
            if let Some(reason) = *receiver.borrow_and_update() {
                return Stopped(reason);
            }
            // The sender lives as long as `self`, so `changed` cannot fail.
            let _ = receiver.changed().await;
        }
    }

    /// For tasks: sleeps, or returns early when the run is stopped.
    pub async fn sleep(&self, duration: Duration) -> Result<(), Stopped> {
        tokio::select! {
            () = tokio::time::sleep(duration) => Ok(()),
            stopped = self.stopped() => Err(stopped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_reason_counts_and_wakes_waiting_tasks() {
        let cancel = Cancel::default();
        assert_eq!(cancel.check(), Ok(()));
        let waiter = tokio::spawn({
            let cancel = cancel.clone();
            async move { cancel.stopped().await }
        });
        cancel.stop(StopReason::Deadline);
        cancel.stop(StopReason::Signal(15));
        assert_eq!(waiter.await.ok(), Some(Stopped(StopReason::Deadline)));
        assert_eq!(cancel.check(), Err(Stopped(StopReason::Deadline)));
    }
}
