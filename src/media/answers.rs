//! Notices that a medium does not answer: a share whose server is gone blocks its readers for ever.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A disk that spins up, repeats a read or writes what was copied before takes less than this.
pub const SILENCE: Duration = Duration::from_secs(300);

/// The reads of one medium.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Reads that have begun and not ended.
    waiting: usize,
    /// When the last read ended, or when one began and no other was waiting.
    last: Option<Instant>,
}

/// A read; it ends when this value is dropped.
struct Reading<'a>(&'a Answers);

impl Answers {
    /// Reads from the medium.
    pub(super) fn during<T>(&self, read: impl FnOnce() -> T) -> T {
        let mut state = self.state();
        if state.waiting == 0 {
            state.last = Some(Instant::now());
        }
        state.waiting += 1;
        drop(state);
        let _reading = Reading(self);
        read()
    }

    /// Whether reads have been waiting for [`SILENCE`], and none has ended.
    pub(super) fn are_missing(&self, now: Instant) -> bool {
        let state = self.state();
        let last = state.last.filter(|_| state.waiting > 0);
        last.is_some_and(|last| now.saturating_duration_since(last) >= SILENCE)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waiting -= 1;
        state.last = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_medium_is_silent_if_a_read_waits_and_no_other_ends() {
        let answers = Answers::default();
        let later = || Instant::now() + SILENCE;
        assert!(!answers.are_missing(later()), "nothing is read");
        answers.during(|| {
            assert!(!answers.are_missing(Instant::now()));
            let began = later();
            assert!(answers.are_missing(began));
            std::thread::sleep(Duration::from_millis(1));
            answers.during(|| ());
            assert!(!answers.are_missing(began), "another read has ended since");
            assert!(answers.are_missing(later()));
        });
        assert!(!answers.are_missing(later()));
    }
}
