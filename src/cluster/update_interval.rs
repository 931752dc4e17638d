//! Schedules the annotations of the Job so that the hub's view of them is fresh.
//!
//! ```text
//! the Job starts            25 s 30 s            55 s 60 s
//! |-----|------|-------------|----|---------------|----|----   at the start, when the plan grows, and then periodically
//!       start  plan         write  view          write  view
//! ```

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The period of annotations. The hub reads the Job every 30 s at most.
pub const INTERVAL: Duration = Duration::from_secs(30);

/// How long before the hub reads the Job it is annotated. The hub creates its ManagedClusterView together with the Job and
/// refreshes it periodically, so an annotation that is written just after a refresh is the oldest when it is read.
const LEAD: Duration = Duration::from_secs(5);

/// Ticks immediately and then at most once per [`INTERVAL`], [`LEAD`] before the hub reads the Job.
pub(super) struct UpdateInterval {
    due: Instant,
    /// The next periodic tick.
    next_period: Instant,
}

impl UpdateInterval {
    /// `age` is the time since the start of the Job.
    pub(super) fn new(age: Duration) -> Self {
        let (due, interval) = (Instant::now(), INTERVAL.as_secs());
        let into = age.as_secs() % interval;
        let wait = (2 * interval - LEAD.as_secs() - into) % interval;
        Self {
            due,
            next_period: due + Duration::from_secs(wait),
        }
    }

    /// Waits for the next tick. Cancel-safe.
    pub(super) async fn tick(&mut self) {
        sleep_until(self.due).await;
        while self.next_period <= Instant::now() {
            self.next_period += INTERVAL;
        }
        self.due = self.next_period;
    }

    /// Delays the next tick by at least `wait` from now.
    pub(super) fn delay(&mut self, wait: Duration) {
        self.due = self.due.max(Instant::now() + wait);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    /// Seconds after the Job's start at which it ticks, if the program starts at `begins`, each attempt takes `takes`, and
    /// each response has a Retry-After of `retry_after`.
    async fn ticks(begins: u64, takes: u64, retry_after: u64) -> Vec<u64> {
        let start = Instant::now();
        let (mut ticks, mut interval) = (Vec::new(), UpdateInterval::new(Duration::from_secs(begins)));
        loop {
            interval.tick().await;
            let now = begins + start.elapsed().as_secs();
            if now > 120 {
                return ticks;
            }
            ticks.push(now);
            sleep(Duration::from_secs(takes)).await;
            interval.delay(Duration::from_secs(retry_after));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_job_is_annotated_immediately_and_then_just_before_the_hub_reads_it() {
        assert_eq!(ticks(0, 0, 0).await, [0, 25, 55, 85, 115]);
        assert_eq!(
            ticks(7, 0, 0).await,
            [7, 25, 55, 85, 115],
            "a pod that starts late"
        );
        assert_eq!(ticks(27, 0, 0).await, [27, 55, 85, 115]);
        assert_eq!(ticks(0, 10, 0).await, [0, 25, 55, 85, 115], "an API that hangs");
        assert_eq!(ticks(0, 50, 0).await, [0, 50, 100]);
        assert_eq!(
            ticks(0, 1, 5).await,
            [0, 25, 55, 85, 115],
            "429 with Retry-After: 5"
        );
        assert_eq!(ticks(0, 1, 60).await, [0, 61]);
    }
}
