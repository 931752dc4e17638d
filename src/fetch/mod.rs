//! Fetches blobs from media and registries into the spool: many at a time, each of them once.
//!
//! # Design
//!
//! [`Fetcher::fetch`] may be called from any number of tasks. Callers that request the same blob share one download (`once`).
//! At most `max_downloads` connections receive blobs at a time (`download_slot`). A blob whose registries are all throttled
//! releases its slot, and a limit on the rate may allow fewer.
//!
//! A blob that media have is copied from there first (`medium_copy`), without a slot. Only what they do not have
//! is downloaded.
//!
//! One blob (`download`) is a task that reads the socket and a blocking thread that hashes and writes (`transfer`). A large
//! blob is requested in ranges, which are allocated before (`range_allocator`). Idle slots download ranges of it in parallel
//! (`ranges`): one connection may not fill a long link that loses packets, and the last blob of a run would use one connection
//! alone. Parallel ranges are stored in files of their own until the contiguous bytes reach them, because the hash of a blob
//! needs its bytes in order. If only some ranges of a blob are needed (`parts`), they are stored in the same files, so that a
//! later download of the whole blob continues with them.

mod download;
mod download_slot;
mod error;
mod medium_copy;
mod parts;
mod provenance;
mod range_allocator;
mod ranges;
mod received_bytes;
mod shared_download;
mod size_mismatch;
mod transfer;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::cancel::Cancel;
use crate::oci::{Digest, Reference};
use crate::registry::Registries;
use crate::report::Observer;
use crate::spool::{BlobParts, Spool, VerifiedBlob};

pub use error::FetchError;

use download_slot::DownloadSlots;
use received_bytes::TransferStats;
use shared_download::Once;
use transfer::Transfer;

/// A blob to download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobRequest {
    /// Digest of the bytes as the registry has them.
    pub digest: Digest,
    /// The number of bytes, by the manifest.
    pub size: u64,
    /// Images whose manifests name it: their sources have it. In the order of preference.
    pub images: Vec<Reference>,
    /// How many connections are reserved for it, if it is large. Idle ones are used in addition.
    pub connections: usize,
    /// Whether the caller has an alternative: then the download gives up soon if all sources fail.
    pub is_optional: bool,
    /// Whether the caller expects it from a medium, and does not count its bytes as downloaded.
    pub is_on_medium: bool,
}

/// Registries limit manifests to 4 MiB.
const MAX_MANIFEST: u64 = 4 << 20;

/// How often all sources of an optional blob are tried in vain. The pauses in between take a minute on average.
const ROUNDS_FOR_OPTIONAL: u32 = 8;

/// Downloads blobs.
pub struct Fetcher {
    registries: Arc<Registries>,
    spool: Spool,
    observer: Arc<dyn Observer>,
    slots: DownloadSlots,
    once: Once,
    stats: TransferStats,
    since: Instant,
}

impl Fetcher {
    /// A fetcher with at most `max_downloads` connections that receive blobs at a time.
    pub fn new(
        registries: Arc<Registries>,
        spool: Spool,
        observer: Arc<dyn Observer>,
        max_downloads: NonZeroUsize,
    ) -> Self {
        Self {
            slots: DownloadSlots::new(max_downloads.get(), registries.limit()),
            registries,
            spool,
            observer,
            once: Once::default(),
            stats: TransferStats::default(),
            since: Instant::now(),
        }
    }

    /// Where it downloads from.
    pub fn registries(&self) -> &Registries {
        &self.registries
    }

    /// When it was created.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Bytes of blobs that were received since then.
    pub fn received(&self) -> u64 {
        self.stats.received()
    }

    /// Bytes that will be received since the last call although their blobs were expected from media.
    pub fn take_not_on_media(&self) -> u64 {
        self.stats.take_not_on_media()
    }

    /// How many blobs wait for registries that are throttled, and so do not use the link.
    pub fn throttled(&self) -> watch::Receiver<usize> {
        self.slots.throttled()
    }

    /// Whether a registry answers about this image within `patience`. An error that ends the request is an answer too.
    pub async fn is_reachable(&self, image: &Reference, patience: Duration, cancel: &Cancel) -> bool {
        let manifest = self
            .registries
            .manifest_content(image, None, MAX_MANIFEST, cancel);
        tokio::time::timeout(patience, manifest).await.is_ok()
    }

    /// Downloads the blob into the spool, or finds it there. When the run stops, the received bytes stay in the spool.
    pub async fn fetch(&self, request: BlobRequest, cancel: &Cancel) -> Result<VerifiedBlob, FetchError> {
        let key = (request.digest, request.size);
        let transfer = self.transfer(request, cancel);
        self.once.run(key, Box::pin(download::download(&transfer))).await
    }

    /// Downloads these ranges of the blob into the spool, as far as they are not there, and returns what the spool has of
    /// the blob. Its bytes are not verified. `ranges` are in order.
    ///
    /// # Errors
    /// Also if a registry does not send just the range that was requested.
    pub async fn fetch_ranges(
        &self,
        request: BlobRequest,
        ranges: &[Range<u64>],
        cancel: &Cancel,
    ) -> Result<BlobParts, FetchError> {
        let transfer = self.transfer(request, cancel);
        Box::pin(parts::download(&transfer, ranges)).await
    }

    fn transfer<'a>(&'a self, request: BlobRequest, cancel: &'a Cancel) -> Transfer<'a> {
        Transfer {
            registries: &self.registries,
            spool: &self.spool,
            observer: &*self.observer,
            slots: &self.slots,
            stats: &self.stats,
            request,
            cancel,
        }
    }
}
