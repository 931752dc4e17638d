//! Logs the requests to the fake registry and what it sent.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::lock;

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) path: String,
    /// The `Range` header as sent.
    pub(crate) range: Option<String>,
    /// The `Authorization` header as sent.
    pub(crate) authorization: Option<String>,
    pub(crate) status: u16,
    /// When it arrived.
    pub(crate) at: Instant,
    /// Bytes of the body that left so far.
    sent: Arc<AtomicU64>,
}

impl Access {
    /// Bytes of the body that left so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.method, self.path)?;
        if let Some(range) = &self.range {
            write!(f, "[{range}] ")?;
        }
        write!(f, "{} {}", self.status, self.sent())
    }
}

#[derive(Default)]
pub(super) struct Log(Mutex<Vec<Access>>);

impl Log {
    /// Notes a request; the counter returned is for its body.
    pub(super) fn note(&self, parts: &axum::http::request::Parts, status: u16) -> Arc<AtomicU64> {
        let header = |name| {
            let value = parts.headers.get(name)?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let sent = Arc::new(AtomicU64::new(0));
        lock(&self.0).push(Access {
            method: parts.method.to_string(),
            path: parts
                .uri
                .path_and_query()
                .map_or_else(String::new, ToString::to_string),
            range: header("range"),
            authorization: header("authorization"),
            status,
            at: Instant::now(),
            sent: sent.clone(),
        });
        sent
    }

    pub(super) fn entries(&self) -> Vec<Access> {
        lock(&self.0).clone()
    }

    pub(super) fn clear(&self) {
        lock(&self.0).clear();
    }
}
