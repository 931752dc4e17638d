//! One stop signal for the whole run, with its reason.
//!
//! Tasks await it, threads poll it between tar entries and chunks. The first reason stands: a SIGTERM after
//! the deadline changes nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Why the run is to end before its work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// `--deadline`, or the Job's own.
    Deadline,
    /// A signal with this number.
    Signal(i32),
    /// Trouble in one part that ends the others; the run ends with that trouble and not with this.
    FatalError,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("the deadline"),
            Self::Signal(number) => write!(f, "signal {number}"),
            Self::FatalError => f.write_str("trouble elsewhere"),
        }
    }
}

/// The work was cut off by [`Cancel`]; nothing is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped by {0}")]
pub struct Stopped(pub StopReason);

/// A handle to the signal; clones share it.
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

    /// The reason, if the run is to stop.
    pub fn reason(&self) -> Option<StopReason> {
        *self.0.borrow()
    }

    /// For threads: an error when the run is to stop.
    pub fn check(&self) -> Result<(), Stopped> {
        self.reason().map_or(Ok(()), |reason| Err(Stopped(reason)))
    }

    /// For tasks: completes when the run is to stop.
    pub async fn stopped(&self) -> Stopped {
        let mut receiver = self.0.subscribe();
        loop {
            if let Some(reason) = *receiver.borrow_and_update() {
                return Stopped(reason);
            }
            // The sender lives as long as `self`; `changed` cannot fail while we hold it.
            let _ = receiver.changed().await;
        }
    }

    /// For tasks: sleeps, or ends early when the run is to stop.
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
    async fn the_first_reason_stands_and_wakes_who_waits() {
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
