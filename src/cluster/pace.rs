//! How often the Job is annotated.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How often the Job is annotated at most. The hub looks every 30 s at the earliest.
pub const INTERVAL: Duration = Duration::from_secs(30);

/// Gives a turn at once and then every [`INTERVAL`] at most.
pub(super) struct Pace {
    due: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { due: Instant::now() }
    }

    pub(super) async fn turn(&mut self) {
        sleep_until(self.due).await;
        self.due = Instant::now() + INTERVAL;
    }

    /// The next turn comes after `wait` at the earliest.
    pub(super) fn put_off(&mut self, wait: Duration) {
        self.due = self.due.max(Instant::now() + wait);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    /// Seconds from the start at which it sends, if each attempt takes and asks for so long.
    async fn sent(takes: u64, asks: u64) -> Vec<u64> {
        let start = Instant::now();
        let (mut sent, mut pace) = (Vec::new(), Pace::new());
        loop {
            pace.turn().await;
            if start.elapsed().as_secs() > 100 {
                return sent;
            }
            sent.push(start.elapsed().as_secs());
            sleep(Duration::from_secs(takes)).await;
            pace.put_off(Duration::from_secs(asks));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_job_is_annotated_at_once_and_then_every_thirty_seconds_at_most() {
        assert_eq!(sent(0, 0).await, [0, 30, 60, 90]);
        assert_eq!(sent(10, 0).await, [0, 30, 60, 90], "an API that hangs");
        assert_eq!(sent(50, 0).await, [0, 50, 100]);
        assert_eq!(sent(1, 5).await, [0, 30, 60, 90], "429, come back in 5 s");
        assert_eq!(sent(1, 60).await, [0, 61]);
    }
}
