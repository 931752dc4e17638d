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
//! A large blob is asked for in ranges, each claimed before (`claims`), and where places on the link are idle they take some
//! (`pieces`): a connection may not fill a link that is long and loses packets, and the last blob of all would travel alone.
//! What they bring lies in files of its own until the first bytes reach it, for the hash of a blob goes from its first byte
//! to its last.
//!
//! A thread and not `block_in_place`, for the next piece is received while the last one is hashed, and a disk that
//! stalls stops only its own download. A piece is what one read of the socket brought, at most some hundred KiB; so
//! memory is bounded by blobs × pieces and does not depend on their sizes.

mod download;
mod download_slot;
mod error;
mod once;
mod range_allocator;
mod ranges;
mod size_mismatch;
mod transfer_stats;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use crate::cancel::Cancel;
use crate::oci::{Digest, Reference};
use crate::registry::Registries;
use crate::report::Observer;
use crate::spool::{Spool, VerifiedBlob};

pub use error::FetchError;

use download::Download;
use download_slot::DownloadSlots;
use once::Once;
use transfer_stats::TransferStats;

/// A blob to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobRequest {
    /// Digest of the bytes as they travel.
    pub digest: Digest,
    /// Their number, by the manifest.
    pub size: u64,
    /// Images whose manifests name it, as they were asked for: their sources have it. Best first.
    pub images: Vec<Reference>,
    /// How many connections are to be its own, if it is large. Others take what nobody else wants.
    pub connections: usize,
}

/// Fetches blobs.
pub struct Fetcher {
    registries: Arc<Registries>,
    spool: Spool,
    observer: Arc<dyn Observer>,
    places: DownloadSlots,
    once: Once,
    traffic: TransferStats,
    since: Instant,
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
            places: DownloadSlots::new(max_downloads.get(), registries.limit()),
            registries,
            spool,
            observer,
            once: Once::default(),
            traffic: TransferStats::default(),
            since: Instant::now(),
        }
    }

    /// When it was made.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Bytes of blobs that came since then.
    pub fn received(&self) -> u64 {
        self.traffic.received()
    }

    /// How many blobs wait for registries that have to be left alone, and so take nothing from the link.
    pub fn throttled(&self) -> watch::Receiver<usize> {
        self.places.throttled()
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
