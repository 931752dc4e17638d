//! Lets one thread at a time read a medium, in the order in which they ask.
//!
//! A disk reads one blob after the other several times faster than many blobs at once. The lock is not a `Mutex`, because
//! its guard moves with the reader from thread to thread.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// The lock of one medium. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadingLock(Arc<(Mutex<Turns>, Condvar)>);

#[derive(Debug, Default)]
struct Turns {
    /// The ticket of the thread that reads now.
    serving: u64,
    /// The next ticket.
    next: u64,
}

/// Permission to read; dropping it lets the next thread read.
#[derive(Debug)]
pub(super) struct ReadingTurn(ReadingLock);

impl ReadingLock {
    /// Waits until every thread that asked earlier has finished.
    pub(super) fn wait(&self) -> ReadingTurn {
        let (turns, changed) = &*self.0;
        let mut state = turns.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = state.next;
        state.next += 1;
        while state.serving != ticket {
            state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        ReadingTurn(self.clone())
    }
}

impl Drop for ReadingTurn {
    fn drop(&mut self) {
        let (turns, changed) = &*self.0.0;
        turns.lock().unwrap_or_else(PoisonError::into_inner).serving += 1;
        changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_ends_in_another_thread_lets_the_next_one_read() {
        let lock = ReadingLock::default();
        let turn = lock.wait();
        let waiter = std::thread::spawn({
            let lock = lock.clone();
            move || drop(lock.wait())
        });
        std::thread::spawn(move || drop(turn)).join().expect("no panic");
        waiter.join().expect("no panic");
        drop(lock.wait());
    }
}
