//! BlobConnections: connections beside each other for blobs.
//!
//! By HTTP/1.1 each request at a time has a connection of its own. By HTTP/2 all requests of a client share one, and of
//! one connection each lost packet halves the rate: it does not fill a long link, where several do. So once a registry,
//! or whoever it redirects to, has answered by HTTP/2, each blob on its way has a client for itself, of which there are
//! as many as there ever were blobs at a time. All else goes by the first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reqwest::{Client, Version};

/// All lanes to a registry, and to where it redirects.
#[derive(Debug)]
pub(super) struct BlobConnections {
    /// Those that no blob has. The one that was used last is used next, for its connection is the warmest.
    free: Mutex<Vec<Client>>,
    /// Whether somebody answered by HTTP/2. Without that, whoever finds no lane free does with the first one's client,
    /// whose idle connections are there for all.
    are_made: AtomicBool,
}

/// One of them, as long as it lives.
#[derive(Debug)]
pub(super) struct BlobConnection {
    client: Client,
    lanes: Arc<BlobConnections>,
}

impl BlobConnections {
    pub(super) fn new(first: Client) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::new(vec![first]),
            are_made: AtomicBool::new(false),
        })
    }

    /// Takes note of how a request was answered.
    pub(super) fn learn(&self, version: Version) {
        if version == Version::HTTP_2 {
            self.are_made.store(true, Ordering::Relaxed);
        }
    }

    /// A free lane, or `another`, if lanes are made.
    pub(super) fn take<E>(
        self: &Arc<Self>,
        another: impl FnOnce() -> Result<Client, E>,
    ) -> Result<Option<BlobConnection>, E> {
        let free = self.free().pop();
        let client = match free {
            Some(client) => client,
            None if self.are_made.load(Ordering::Relaxed) => another()?,
            None => return Ok(None),
        };
        Ok(Some(BlobConnection {
            client,
            lanes: Arc::clone(self),
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
        self.lanes.free().push(self.client.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn there_are_as_many_as_blobs_at_a_time_and_by_http_1_none() {
        let lanes = BlobConnections::new(Client::new());
        let made = std::cell::Cell::new(0);
        let take = || {
            let another = || {
                made.set(made.get() + 1);
                Ok::<_, Infallible>(Client::new())
            };
            lanes.take(another).unwrap_or_else(|never| match never {})
        };
        lanes.learn(Version::HTTP_11);
        let first = take();
        assert!(first.is_some(), "it has what connections there are");
        assert!(take().is_none(), "and all others have them too");

        lanes.learn(Version::HTTP_2);
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
