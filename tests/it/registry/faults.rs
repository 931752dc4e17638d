//! Scripts the faults of the fake registry, by path, count and offset.
//!
//! ```ignore
//! registry.fault(Fault::on("/blobs/sha256:ab").after(1).times(2).cut(1000));
//! registry.fault(Fault::on("/manifests/").status(429).header("Retry-After", "1"));
//! ```

use bytes::Bytes;

/// One fault and the requests that it is for.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    path: String,
    skip: u64,
    left: u64,
    /// How often it acted.
    pub(super) acts: u64,
    pub(super) action: Action,
    pub(super) headers: Vec<(String, String)>,
}

/// What is done to a request.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Answers as ever; for the headers.
    None,
    /// This status and an error document.
    Status(u16),
    /// Drops the TCP connection after that many bytes of the body.
    Cut(u64),
    /// Sends that many bytes of the body, then nothing more while the connection stays.
    Stall(u64),
    /// Answers 200 with the whole body, whatever range was asked.
    IgnoreRange,
    /// Answers 206 with a range that begins that many bytes later, and its bytes.
    ShiftRange(u64),
    /// Answers 416.
    RefuseRange,
    /// Sends other bytes with status 200.
    Replace(Bytes),
    /// Inverts the byte at that offset of the blob.
    Flip(u64),
    /// 307 to the same path at another `http://host:port`.
    Redirect(String),
    /// At most so many bytes a second.
    Slow(u64),
}

impl Fault {
    /// A fault for requests whose path contains `path`; every one of them, unless limited.
    pub(crate) fn on(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            skip: 0,
            left: u64::MAX,
            acts: 0,
            action: Action::None,
            headers: Vec::new(),
        }
    }

    /// Lets the first `count` matching requests pass.
    pub(crate) fn after(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Acts `count` times, then never again.
    pub(crate) fn times(mut self, count: u64) -> Self {
        self.left = count;
        self
    }

    /// Adds a header to the answer, or replaces it: `Retry-After`, `Docker-Content-Digest`, `Content-Range`.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Answers with this status and an error document.
    pub(crate) fn status(self, status: u16) -> Self {
        self.doing(Action::Status(status))
    }

    /// Drops the TCP connection after `bytes` of the body.
    pub(crate) fn cut(self, bytes: u64) -> Self {
        self.doing(Action::Cut(bytes))
    }

    /// Sends `bytes` of the body, then nothing.
    pub(crate) fn stall(self, bytes: u64) -> Self {
        self.doing(Action::Stall(bytes))
    }

    /// Answers a request for a range with 200 and everything.
    pub(crate) fn ignore_range(self) -> Self {
        self.doing(Action::IgnoreRange)
    }

    /// Answers a request for a range with the range `bytes` further on.
    pub(crate) fn shift_range(self, bytes: u64) -> Self {
        self.doing(Action::ShiftRange(bytes))
    }

    /// Answers a request for a range with 416.
    pub(crate) fn refuse_range(self) -> Self {
        self.doing(Action::RefuseRange)
    }

    /// Sends `bytes` whatever was asked.
    pub(crate) fn replace(self, bytes: impl Into<Bytes>) -> Self {
        self.doing(Action::Replace(bytes.into()))
    }

    /// Inverts one byte of the blob.
    pub(crate) fn flip(self, offset: u64) -> Self {
        self.doing(Action::Flip(offset))
    }

    /// Sends the client to the same path at `http://host`.
    pub(crate) fn redirect(self, host: &str) -> Self {
        self.doing(Action::Redirect(format!("http://{host}")))
    }

    /// Sends at most `bytes_per_second` on each connection.
    pub(crate) fn slow(self, bytes_per_second: u64) -> Self {
        self.doing(Action::Slow(bytes_per_second))
    }

    fn doing(mut self, action: Action) -> Self {
        self.action = action;
        self
    }

    /// Counts a request and returns whether the fault applies to it.
    fn takes(&mut self, path: &str) -> bool {
        if self.left == 0 || !path.contains(&self.path) {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.left -= 1;
        self.acts += 1;
        true
    }
}

/// The fault that acts on a request for `path`, if any.
pub(super) fn choose(faults: &mut [Fault], path: &str) -> Option<Fault> {
    faults
        .iter_mut()
        .find_map(|fault| fault.takes(path).then(|| fault.clone()))
}
