//! Blobs from registries into the spool: many at once, each once.
//!
//! # Design
//!
//! [`Fetcher::fetch`] may be called from any number of tasks. Of those that want the same blob the first fetches it and
//! the others wait for what comes of it (`once`). At most `max_downloads` blobs travel at a time (`place`); one whose
//! registries all have to be left alone for a while lends its place, and a limit on the rate may leave fewer. One blob
//! (`blob`) is a task that reads the socket and a blocking thread that hashes and writes, with a bounded channel between:
//!
//! ```text
//! socket ─→ BlobStream ─→ [channel, CHUNKS pieces] ─→ Partial::write ─→ page cache
//!   task        task                                   thread
//! ```
//!
//! A thread and not `block_in_place`, for the next piece is received while the last one is hashed, and a disk that
//! stalls stops only its own download. A piece is what one read of the socket brought, at most some hundred KiB; so
//! memory is bounded by blobs × pieces and does not depend on their sizes.

mod blob;
mod error;
mod once;
mod place;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::watch;

use crate::cancel::Cancel;
use crate::oci::{Digest, Reference};
use crate::registry::Registries;
use crate::report::Observer;
use crate::spool::{Spool, VerifiedBlob};

pub use error::FetchError;

use blob::Download;
use once::Once;
use place::Places;

/// A blob to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobRequest {
    /// Digest of the bytes as they travel.
    pub digest: Digest,
    /// Their number, by the manifest.
    pub size: u64,
    /// Images whose manifests name it, as they were asked for: their sources have it. Best first.
    pub from: Vec<Reference>,
}

/// Fetches blobs.
pub struct Fetcher {
    registries: Arc<Registries>,
    spool: Spool,
    observer: Arc<dyn Observer>,
    places: Places,
    once: Once,
    traffic: Traffic,
}

/// What is and was on the link.
#[derive(Debug, Default)]
struct Traffic {
    /// Bytes since the beginning.
    received: AtomicU64,
    /// Blobs now, those among them that wait for a place or a registry.
    travelling: AtomicUsize,
}

impl Fetcher {
    /// A fetcher that has at most `max_downloads` blobs on the link at a time.
    pub fn new(
        registries: Arc<Registries>,
        spool: Spool,
        observer: Arc<dyn Observer>,
        max_downloads: NonZeroUsize,
    ) -> Self {
        Self {
            places: Places::new(max_downloads.get(), registries.limit()),
            registries,
            spool,
            observer,
            once: Once::default(),
            traffic: Traffic::default(),
        }
    }

    /// Bytes of blobs that came so far.
    pub fn received(&self) -> u64 {
        self.traffic.received.load(Ordering::Relaxed)
    }

    /// Blobs that travel, or wait for a place. Those whose registries have to be left alone take nothing from the link.
    pub fn travelling(&self) -> usize {
        let travelling = self.traffic.travelling.load(Ordering::Relaxed);
        travelling.saturating_sub(*self.places.resting().borrow())
    }

    /// How many blobs wait for registries that have to be left alone, and so take nothing from the link.
    pub fn resting(&self) -> watch::Receiver<usize> {
        self.places.resting()
    }

    /// Brings the blob into the spool, or finds it there. When the run is to end, what came of it stays in the spool.
    pub async fn fetch(&self, request: BlobRequest, cancel: &Cancel) -> Result<VerifiedBlob, FetchError> {
        let key = (request.digest, request.size);
        let download = Download {
            registries: &self.registries,
            spool: &self.spool,
            observer: &*self.observer,
            places: &self.places,
            traffic: &self.traffic,
            request,
            cancel,
        };
        self.once.run(key, download.run()).await
    }
}
