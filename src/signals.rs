//! Signals that end a run in order.
//!
//! To process 1 the kernel delivers no signal for which it has no handler; it is lost. Between the start and the handlers
//! lie the arguments, the log and the runtime, so the signals are blocked first of all: one that is blocked waits, also
//! for process 1 (`sig_ignored` in the kernel's signal.c), and comes when there is somebody to take it.

use std::mem::MaybeUninit;
use std::ptr;

use tokio::signal::unix::{SignalKind, signal};

use crate::cancel::{Cancel, StopReason};

/// What a run is told to stop by: the kubelet, a person, a terminal that was closed.
const ENDING: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The signals wait until this is dropped, or passed on to [`Held::watch`]. Made on the main thread before there is
/// another: the others take over what is blocked, and it is the main thread that lets them in again.
#[derive(Debug)]
#[must_use = "the signals come at once"]
pub struct Held(libc::sigset_t);

impl Held {
    /// Has them wait.
    pub fn hold() -> Self {
        let (mut ending, mut before) = (MaybeUninit::zeroed(), MaybeUninit::zeroed());
        // SAFETY: both have room for a set, of which all zeros are a valid value; the signals' numbers are valid.
        unsafe {
            libc::sigemptyset(ending.as_mut_ptr());
            for signal in ENDING {
                libc::sigaddset(ending.as_mut_ptr(), signal);
            }
            // Fails for invalid arguments only.
            libc::pthread_sigmask(libc::SIG_BLOCK, ending.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }

    /// From now on they stop the run; one that came meanwhile does at once. A second one changes nothing: the first is
    /// obeyed within a second. What our parent ignores stays ignored: that is what `nohup` is for. To be called within a
    /// runtime.
    pub fn watch(self, cancel: &Cancel) {
        for number in ENDING.into_iter().filter(|number| !is_ignored(*number)) {
            let cancel = cancel.clone();
            match signal(SignalKind::from_raw(number)) {
                Ok(mut signals) => {
                    tokio::spawn(async move {
                        if signals.recv().await.is_some() {
                            cancel.stop(StopReason::Signal(number));
                        }
                    });
                }
                Err(error) => tracing::warn!("signal {number} will not end the run in order: {error}"),
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the set is one that the kernel gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
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
