//! Signals that end a run in order.
//!
//! # Design
//!
//! They are blocked in every thread, from the first instruction of `main` on, and one thread does nothing but wait for
//! them: no handler, and nothing that the runtime's threads would have to be free for. Those may all be held up, by a log
//! that nobody reads or a disk that hangs, and whoever sends SIGTERM is to see us gone within a second all the same.
//!
//! To process 1 the kernel delivers no signal for which it has no handler; it is lost. One that is blocked waits, also for
//! process 1 (`sig_ignored` in the kernel's signal.c), and comes when there is somebody to take it.

use std::io;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::thread;

use crate::cancel::{Cancel, StopReason};

/// What a run is told to stop by: the kubelet, a person, a terminal that was closed.
const ENDING: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The signals wait until this is dropped, or passed on to [`BlockedSignals::watch`]. Made on the main thread before there is
/// another: the others take over what is blocked.
#[derive(Debug)]
#[must_use = "the signals come at once"]
pub struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// Has them wait.
    pub fn block() -> Self {
        let (ending, mut before) = (set_of(ENDING), MaybeUninit::zeroed());
        // SAFETY: `before` has room for a set, of which all zeros are a valid value.
        unsafe {
            // Fails for invalid arguments only.
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const ending, before.as_mut_ptr());
            Self(before.assume_init())
        }
    }

    /// From now on they stop the run; one that came meanwhile does at once. A second one changes nothing: the first is
    /// obeyed within a second. What our parent ignores stays ignored: that is what `nohup` is for.
    ///
    /// # Errors
    /// When there can be no thread to wait for them. Then they come as if nobody had ever held them.
    pub fn watch(self, cancel: &Cancel) -> io::Result<()> {
        let ending = set_of(ENDING.into_iter().filter(|number| !is_ignored(*number)));
        let cancel = cancel.clone();
        let wait = move || {
            let mut number = 0;
            // SAFETY: the set is a valid one, and there is room for a number.
            if unsafe { libc::sigwait(&raw const ending, &raw mut number) } == 0 {
                cancel.stop(StopReason::Signal(number));
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
        // They stay blocked in this thread: the kernel would choose it, whatever it waits for.
        mem::forget(self);
        Ok(())
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is one that the kernel gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

fn set_of(numbers: impl IntoIterator<Item = libc::c_int>) -> libc::sigset_t {
    let mut set = MaybeUninit::zeroed();
    // SAFETY: there is room for a set, of which all zeros are a valid value; the signals' numbers are valid.
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
    // SAFETY: a null pointer for the new action changes nothing, and `action` has room for the old one, of which all
    // zeros are a valid value.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
