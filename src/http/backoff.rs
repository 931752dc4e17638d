//! Computes the pauses between attempts: exponential backoff with jitter and an upper bound.

use std::ops::Range;
use std::time::Duration;

/// The doublings after which the pause no longer grows; more would overflow.
const MAX_DOUBLINGS: u32 = 16;

/// The pauses of one operation.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    jitter: Range<f64>,
    failures: u32,
}

impl Backoff {
    /// Pauses of `first`, twice `first`, and so on up to `longest`, each multiplied by a random factor from `jitter`, so that
    /// many nodes that failed together do not return together.
    pub const fn new(first: Duration, longest: Duration, jitter: Range<f64>) -> Self {
        Self {
            first,
            longest,
            jitter,
            failures: 0,
        }
    }

    /// The pause after one more failure.
    pub fn next_pause(&mut self) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.failures.min(MAX_DOUBLINGS));
        self.failures = self.failures.saturating_add(1);
        let factor = rand::random_range(self.jitter.clone());
        doubled.min(self.longest).mul_f64(factor)
    }

    /// Starts again with the first pause.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let (first, longest) = (Duration::from_millis(500), Duration::from_secs(30));
        let mut backoff = Backoff::new(first, longest, 0.5..1.5);
        for doublings in 0..100 {
            let middle = first.saturating_mul(1 << doublings.min(16)).min(longest);
            let pause = backoff.next_pause();
            assert!(
                pause >= middle / 2 && pause < middle.mul_f64(1.5),
                "{doublings}: {pause:?}"
            );
        }
        backoff.reset();
        assert!(backoff.next_pause() < first.mul_f64(1.5));
    }
}
