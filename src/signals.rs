//! Receives the signals that stop a run: SIGTERM, SIGINT and SIGHUP.
//!
//! # Design
//!
//! The signals are blocked in every thread from the start of `main`, and one thread waits for them. There is no handler,
//! and no thread of the runtime is needed: all of those may be blocked by a log that is not read or a disk that hangs, and
//! the process must still end within a second of a SIGTERM.
//!
//! In a container this is process 1, to which the kernel delivers no signal without a handler. A blocked signal stays
//! pending instead, also for process 1 (`sig_ignored` in the kernel's signal.c), until the thread takes it.

use std::io;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::thread;

use crate::cancel::{Cancel, StopReason};

/// Sent by the kubelet, by a person, and by a terminal that is closed.
const STOP_SIGNALS: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The signals stay pending until this is dropped or [`BlockedSignals::watch`] receives them. It is created on the main
/// thread before any other thread, because threads inherit the blocked signals.
#[derive(Debug)]
#[must_use = "the signals are unblocked at once"]
pub struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// Blocks the signals.
    pub fn block() -> Self {
        let (ending, mut before) = (set_of(STOP_SIGNALS), MaybeUninit::zeroed());
        // SAFETY: `before` has the size of a set; all zeros are a valid set.
        unsafe {
            // Fails only for invalid arguments.
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const ending, before.as_mut_ptr());
            Self(before.assume_init())
        }
    }

    /// From now on a signal stops the run, and a pending signal does so at once. A second signal changes nothing, because the
    /// first ends the process within a second. Signals that the parent process ignores stay ignored, as `nohup` expects.
    ///
    /// # Errors
    /// If the thread cannot be started. Then the signals have their default effect.
    pub fn watch(self, cancel: &Cancel) -> io::Result<()> {
        let ending = set_of(STOP_SIGNALS.into_iter().filter(|number| !is_ignored(*number)));
        let cancel = cancel.clone();
        let wait = move || {
            let mut number = 0;
            // SAFETY: the set is valid, and `number` is writable.
            if unsafe { libc::sigwait(&raw const ending, &raw mut number) } == 0 {
                cancel.stop(StopReason::Signal(number));
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
        // The signals stay blocked in this thread: otherwise the kernel would deliver them here.
        mem::forget(self);
        Ok(())
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the kernel filled the set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

fn set_of(numbers: impl IntoIterator<Item = libc::c_int>) -> libc::sigset_t {
    let mut set = MaybeUninit::zeroed();
    // SAFETY: `set` has the size of a set; all zeros are a valid set; the signal numbers are valid.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in numbers {
            libc::sigaddset(set.as_mut_ptr(), number);
        }
        set.assume_init()
    }
}

fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null pointer for the new action changes nothing; `action` has the size of the old one; all zeros are a
    // valid action.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
