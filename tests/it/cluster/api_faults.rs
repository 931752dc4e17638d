//! Scripts the faults of the fake API server, by method, path and count.

use std::net::SocketAddr;
use std::time::Duration;

/// What is done to requests.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// Part of the method and the path: `PATCH /apis/batch`.
    on: &'static str,
    left: u32,
    action: Action,
}

/// What is done to one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Status(u16, Option<u32>),
    /// Accepts the request and never answers.
    Hang,
    /// Answers 200 and the token, as a text of JSON.
    Echo,
    /// Answers 200 and something else than was asked for.
    Nonsense,
    /// Answers 200 and half a document.
    Half,
    /// Answers 200 and this many bytes.
    Long(usize),
    /// Answers 200 and ends the connection in the middle of the body.
    Reset,
    /// Sends the client there.
    Redirect(SocketAddr),
    /// Executes the request after this time without an answer, whether or not the client still waits.
    Late(Duration),
}

impl Fault {
    pub(super) fn status(on: &'static str, status: u16) -> Self {
        Self::of(on, Action::Status(status, None))
    }

    pub(super) fn busy(on: &'static str, retry_after: u32) -> Self {
        Self::of(on, Action::Status(429, Some(retry_after)))
    }

    pub(super) fn hang(on: &'static str) -> Self {
        Self::of(on, Action::Hang)
    }

    pub(super) fn echo(on: &'static str) -> Self {
        Self::of(on, Action::Echo)
    }

    pub(super) fn nonsense(on: &'static str) -> Self {
        Self::of(on, Action::Nonsense)
    }

    pub(super) fn half(on: &'static str) -> Self {
        Self::of(on, Action::Half)
    }

    pub(super) fn long(on: &'static str, bytes: usize) -> Self {
        Self::of(on, Action::Long(bytes))
    }

    pub(super) fn reset(on: &'static str) -> Self {
        Self::of(on, Action::Reset)
    }

    pub(super) fn redirect(on: &'static str, to: SocketAddr) -> Self {
        Self::of(on, Action::Redirect(to))
    }

    pub(super) fn late(on: &'static str, by: Duration) -> Self {
        Self::of(on, Action::Late(by))
    }

    pub(super) fn times(self, left: u32) -> Self {
        Self { left, ..self }
    }

    fn of(on: &'static str, action: Action) -> Self {
        Self {
            on,
            left: u32::MAX,
            action,
        }
    }
}

/// The action for a request, if any fault is for it.
pub(super) fn choose(faults: &mut [Fault], request: &str) -> Option<Action> {
    let fault = faults
        .iter_mut()
        .find(|fault| fault.left > 0 && request.contains(fault.on))?;
    fault.left -= 1;
    Some(fault.action)
}
