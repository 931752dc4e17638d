//! Runs jobs on threads, as many as fit into a limit of memory.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::error::DiffError;

/// The next job, and what the jobs under way need.
struct State {
    next: usize,
    running: usize,
    used: u64,
    error: Option<DiffError>,
}

/// Runs `work` on every job with at most `threads` threads. Jobs start in their order, as soon as the memory of those
/// under way and their own `cost` fit into `memory`, or nothing else runs. Returns the results in the same order, or the
/// first error.
pub(super) fn run<J: Sync, R: Send>(
    jobs: &[J],
    (threads, memory): (usize, u64),
    cost: impl Fn(&J) -> u64 + Sync,
    work: impl Fn(&J) -> Result<R, DiffError> + Sync,
) -> Result<Vec<R>, DiffError> {
    let results: Vec<Mutex<Option<R>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let state = Mutex::new(State {
        next: 0,
        running: 0,
        used: 0,
        error: None,
    });
    let changed = Condvar::new();
    let worker = || {
        let mut now = lock(&state);
        while now.next < jobs.len() && now.error.is_none() {
            let (index, needed) = (now.next, cost(&jobs[now.next]));
            if now.running > 0 && now.used.saturating_add(needed) > memory {
                now = changed.wait(now).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            now.next += 1;
            now.running += 1;
            now.used = now.used.saturating_add(needed);
            drop(now);
            let running = Running {
                state: &state,
                changed: &changed,
                cost: needed,
            };
            match work(&jobs[index]) {
                Ok(result) => *lock(&results[index]) = Some(result),
                Err(error) => {
                    lock(&state).error.get_or_insert(error);
                }
            }
            drop(running);
            now = lock(&state);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(jobs.len()) {
            scope.spawn(worker);
        }
        worker();
    });
    let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    match state.error {
        Some(error) => Err(error),
        None => Ok(results
            .into_iter()
            .filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect()),
    }
}

/// A job under way. It ends by a panic too, so that no thread waits for its memory.
struct Running<'a> {
    state: &'a Mutex<State>,
    changed: &'a Condvar,
    cost: u64,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = lock(self.state);
        state.running -= 1;
        state.used -= self.cost;
        self.changed.notify_all();
    }
}

/// The scope of the threads propagates a panic, so a poisoned lock needs no handling.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::cancel::{StopReason, Stopped};

    #[test]
    fn jobs_share_the_memory_and_one_that_exceeds_it_runs_alone() {
        let jobs: Vec<u64> = (0..100)
            .map(|index| if index % 10 == 0 { 30 } else { index % 7 })
            .collect();
        let used = AtomicU64::new(0);
        let work = |&cost: &u64| {
            let now = used.fetch_add(cost, Ordering::SeqCst) + cost;
            assert!(now <= 10 || now == 30, "{now}");
            thread::yield_now();
            used.fetch_sub(cost, Ordering::SeqCst);
            Ok(cost * 2)
        };
        let results = run(&jobs, (4, 10), |&cost| cost, work).expect("no job fails");
        assert_eq!(results, jobs.iter().map(|cost| cost * 2).collect::<Vec<_>>());
    }

    #[test]
    fn a_panic_ends_the_run() {
        let work = |&job: &u64| -> Result<(), DiffError> {
            assert!(job != 3, "for the test");
            Ok(())
        };
        let run = || run(&[1, 2, 3, 4, 5, 6], (3, 10), |_| 10, work).map(drop);
        assert!(std::panic::catch_unwind(run).is_err());
    }

    #[test]
    fn an_error_ends_the_run() {
        let stopped = Stopped(StopReason::Deadline);
        let work = |&job: &u64| if job == 3 { Err(stopped.into()) } else { Ok(()) };
        let result = run(&[1, 2, 3, 4], (2, 10), |_| 1, work);
        assert!(matches!(result, Err(DiffError::Stopped(found)) if found == stopped));
        let none = run(&[], (2, 10), |_: &u64| 1, work).expect("nothing to do");
        assert!(none.is_empty());
    }
}
