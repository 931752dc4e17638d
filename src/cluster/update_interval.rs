//! When the Job is annotated.
//!
//! ```text
//! the Job begins            25 s 30 s            55 s 60 s
//! |-----|------|-------------|----|---------------|----|----   at the start, when more is wanted, and then in step
//!       start  plan         write  view          write  view
//! ```

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How often the Job is annotated in step. The hub looks every 30 s at the earliest.
pub const INTERVAL: Duration = Duration::from_secs(30);

/// How long before the hub looks. It makes its view together with the Job and renews it in intervals from then on, so what
/// is written just after that is as old as can be when it is seen.
const LEAD: Duration = Duration::from_secs(5);

/// Gives a turn at once and then every [`INTERVAL`] at most, [`LEAD`] before the hub looks.
pub(super) struct UpdateInterval {
    due: Instant,
    /// The next write in step.
    step: Instant,
}

impl UpdateInterval {
    /// `age` is how long ago the Job began.
    pub(super) fn new(age: Duration) -> Self {
        let (due, interval) = (Instant::now(), INTERVAL.as_secs());
        let into = age.as_secs() % interval;
        let wait = (2 * interval - LEAD.as_secs() - into) % interval;
        Self {
            due,
            step: due + Duration::from_secs(wait),
        }
    }

    /// Waits for the next turn; may be dropped.
    pub(super) async fn turn(&mut self) {
        sleep_until(self.due).await;
        while self.step <= Instant::now() {
            self.step += INTERVAL;
        }
        self.due = self.step;
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

    /// Seconds from the Job's start at which it sends, if it begins then, and each attempt takes and asks for so long.
    async fn sent(begins: u64, takes: u64, asks: u64) -> Vec<u64> {
        let start = Instant::now();
        let (mut sent, mut pace) = (Vec::new(), UpdateInterval::new(Duration::from_secs(begins)));
        loop {
            pace.turn().await;
            let now = begins + start.elapsed().as_secs();
            if now > 120 {
                return sent;
            }
            sent.push(now);
            sleep(Duration::from_secs(takes)).await;
            pace.put_off(Duration::from_secs(asks));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_job_is_annotated_at_once_and_then_just_before_the_hub_looks() {
        assert_eq!(sent(0, 0, 0).await, [0, 25, 55, 85, 115]);
        assert_eq!(sent(7, 0, 0).await, [7, 25, 55, 85, 115], "a pod that comes late");
        assert_eq!(sent(27, 0, 0).await, [27, 55, 85, 115]);
        assert_eq!(sent(0, 10, 0).await, [0, 25, 55, 85, 115], "an API that hangs");
        assert_eq!(sent(0, 50, 0).await, [0, 50, 100]);
        assert_eq!(sent(0, 1, 5).await, [0, 25, 55, 85, 115], "429, come back in 5 s");
        assert_eq!(sent(0, 1, 60).await, [0, 61]);
    }
}
