//! Gives each blob a connection of its own where a registry speaks HTTP/2.
//!
//! By HTTP/1.1 parallel requests have connections of their own. By HTTP/2 all requests of a client share one connection, and
//! each lost packet halves the rate of that connection (RFC 5681): one does not fill a long link, several do. So once a
//! registry, or the host it redirects to, has answered by HTTP/2, each blob under way has a client for itself. There are as
//! many clients as there ever were blobs at a time. All other requests use the first client.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reqwest::{Client, Version};

/// The connections for blobs to one registry, and to the hosts it redirects to.
#[derive(Debug)]
pub(super) struct BlobConnections {
    /// Those that no blob uses. The one that was used last is used next, because its congestion window is the largest.
    free: Mutex<Vec<Client>>,
    /// Whether an answer was by HTTP/2. Without that, a blob that finds no free client uses the first one, which opens as many
    /// connections as it needs.
    is_http2: AtomicBool,
}

/// One of them, as long as it lives.
#[derive(Debug)]
pub(super) struct BlobConnection {
    client: Client,
    pool: Arc<BlobConnections>,
}

impl BlobConnections {
    pub(super) fn new(first: Client) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::new(vec![first]),
            is_http2: AtomicBool::new(false),
        })
    }

    /// Records the version of HTTP of an answer.
    pub(super) fn learn_version(&self, version: Version) {
        if version == Version::HTTP_2 {
            self.is_http2.store(true, Ordering::Relaxed);
        }
    }

    /// A free connection, or `another` by HTTP/2. Nothing by HTTP/1.1 if none is free.
    pub(super) fn take<E>(
        self: &Arc<Self>,
        another: impl FnOnce() -> Result<Client, E>,
    ) -> Result<Option<BlobConnection>, E> {
        let free = self.free().pop();
        let client = match free {
            Some(client) => client,
            None if self.is_http2.load(Ordering::Relaxed) => another()?,
            None => return Ok(None),
        };
        Ok(Some(BlobConnection {
            client,
            pool: Arc::clone(self),
        }))
    }

    fn free(&self) -> MutexGuard<'_, Vec<Client>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlobConnection {
    pub(super) fn client(&self) -> &Client {
        &self.client
    }
}

impl Drop for BlobConnection {
    fn drop(&mut self) {
        self.pool.free().push(self.client.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn by_http_2_each_blob_has_its_own_connection_and_by_http_1_none_is_made() {
        let pool = BlobConnections::new(Client::new());
        let made = std::cell::Cell::new(0);
        let take = || {
            let another = || {
                made.set(made.get() + 1);
                Ok::<_, Infallible>(Client::new())
            };
            pool.take(another).unwrap_or_else(|never| match never {})
        };
        pool.learn_version(Version::HTTP_11);
        let first = take();
        assert!(first.is_some(), "it has the first client");
        assert!(take().is_none(), "the others use the first client, too");

        pool.learn_version(Version::HTTP_2);
        for _ in 0..2 {
            let others = (take(), take());
            assert!(others.0.is_some() && others.1.is_some());
            assert_eq!(made.get(), 2);
        }
        drop(first);
        let all = (take(), take(), take());
        assert!(all.0.is_some() && all.1.is_some() && all.2.is_some());
        assert_eq!(made.get(), 2);
    }
}
