//! Downloads later ranges of a blob over additional connections, while one connection downloads it from the start.
//!
//! Each range is allocated before it is requested, written to a file of its own, and appended when the contiguous bytes reach
//! it. It is requested once, from the source that sent the contiguous bytes last. Any error ends it: the received bytes are
//! kept, the rest is free again, and no range is started until that source has sent something again. So errors, pauses and the
//! choice of sources concern only the connection after the contiguous bytes (`download`).

use std::collections::HashMap;
use std::ops::Range;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::Interval;

use super::download_slot::DownloadSlot;
use super::range_allocator::{Allocation, Next, RangeAllocator};
use super::received_bytes::bytes_per_second;
use super::transfer::{Transfer, on_disk};
use crate::registry::{BlobRange, PullSource};
use crate::spool::{Partial, SpoolError};

/// A smaller blob is requested as a whole.
pub(super) const MIN_BLOB_SIZE: u64 = 4 << 20;

/// How often it is checked whether there is an idle slot.
const SLOT_CHECK: Duration = Duration::from_millis(100);

/// For so long a blob is downloaded before the rate of the link is known.
const MEASURE_FOR: Duration = Duration::from_secs(1);

/// Bytes that arrive within this part of a second at the rate of the link are not worth another connection.
const SHORT_REST: u64 = 4;

/// The parallel ranges of one blob.
pub(super) struct Ranges<'a> {
    transfer: &'a Transfer<'a>,
    allocator: RangeAllocator,
    /// Received ranges by their first byte.
    received: HashMap<u64, Partial>,
    running: FuturesUnordered<BoxFuture<'a, Result<EndedRange<'a>, SpoolError>>>,
    /// Unused slots that belong to the blob, and how many of them there may be with those in use.
    slots: Vec<DownloadSlot<'a>>,
    own_slots: usize,
    /// A source that sends ranges, and all that may have the blob in the order of preference.
    source: Option<(PullSource, Vec<PullSource>)>,
    /// The blob is downloaded whole, by one connection.
    is_disabled: bool,
    since: Instant,
    /// Bytes of all blobs that were received before.
    received_before: u64,
}

/// A range whose download has ended.
struct EndedRange<'a> {
    slot: DownloadSlot<'a>,
    start: u64,
    /// None if no byte was received.
    partial: Option<Partial>,
    is_complete: bool,
}

impl<'a> Ranges<'a> {
    /// None: for a blob that is small, or whose sources are not trusted to have the same content.
    pub(super) fn none(transfer: &'a Transfer<'a>) -> Self {
        Self {
            allocator: RangeAllocator::new(transfer.request.size, 0),
            received: HashMap::new(),
            running: FuturesUnordered::new(),
            slots: Vec::new(),
            own_slots: 0,
            source: None,
            is_disabled: true,
            since: Instant::now(),
            received_before: transfer.stats.received(),
            transfer,
        }
    }

    /// With the ranges that an earlier run has received, and with slots for further ones.
    pub(super) async fn open(
        transfer: &'a Transfer<'a>,
        contiguous: &Partial,
        slots: Vec<DownloadSlot<'a>>,
    ) -> Result<Self, SpoolError> {
        let mut ranges = Self::none(transfer);
        ranges.is_disabled = transfer.request.size < MIN_BLOB_SIZE;
        (ranges.own_slots, ranges.slots) = (slots.len(), slots);
        ranges.allocator.set_contiguous(contiguous.offset());
        let request = &transfer.request;
        let (spool, blob, size) = (transfer.spool.clone(), request.digest, request.size);
        let found = on_disk(move || {
            let starts = spool.range_starts(&blob).into_iter();
            starts
                .map(|start| spool.range(&blob, size, start))
                .collect::<Result<Vec<_>, _>>()
        });
        let mut useless = Vec::new();
        for range in found.await? {
            // A range that was being appended when the run ended begins before the end of the contiguous bytes.
            let start = range.start().max(contiguous.offset());
            match ranges.allocator.add_received(start..range.offset()) {
                true => drop(ranges.received.insert(start, range)),
                false => useless.push(range),
            }
        }
        on_disk(move || useless.into_iter().try_for_each(Partial::discard)).await?;
        Ok(ranges)
    }

    /// How many bytes are received.
    pub(super) fn received_bytes(&self) -> u64 {
        let received = self.received.iter();
        received.map(|(start, range)| range.offset() - start).sum()
    }

    /// Appends the received ranges that follow the contiguous bytes.
    pub(super) async fn append_received(&mut self, mut contiguous: Partial) -> Result<Partial, SpoolError> {
        self.allocator.set_contiguous(contiguous.offset());
        while let Some(start) = self.allocator.take_received() {
            let Some(range) = self.received.remove(&start) else {
                break;
            };
            let appended = on_disk(move || contiguous.append_range(range).map(|()| contiguous));
            contiguous = self.run_during(appended).await??;
        }
        Ok(contiguous)
    }

    /// What follows the contiguous bytes.
    pub(super) fn next(&self) -> Next {
        self.allocator.next()
    }

    /// Allocates what follows the contiguous bytes to a request to this source.
    pub(super) fn allocate_next(&mut self, source: &PullSource) -> Allocation {
        let rate = (!self.is_disabled).then(|| self.transfer.registries.bytes_per_second(source));
        let mut allocated = self.allocator.allocate_next(rate);
        // The free bytes after it may be allocated to parallel ranges meanwhile.
        if self.source.is_some() {
            allocated.end_of_whole = allocated.end;
        }
        allocated
    }

    /// Sets the source of parallel ranges, with all that are usable: one that sends ranges, or none after an error.
    pub(super) fn set_source(&mut self, source: Option<(PullSource, Vec<PullSource>)>) {
        self.source = source.filter(|_| !self.is_disabled);
        if self.source.is_none() {
            self.release_slots();
        }
    }

    /// Releases the unused slots for other blobs.
    fn release_slots(&mut self) {
        self.own_slots = 0;
        self.slots.clear();
    }

    /// Runs the parallel ranges until `work` is done.
    pub(super) async fn run_during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, SpoolError> {
        let mut work = pin!(work);
        if self.is_disabled {
            return Ok(work.await);
        }
        let mut checks = tokio::time::interval(SLOT_CHECK);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                ended = self.run_once(&mut checks) => drop(ended?),
            }
        }
    }

    /// Waits until one of the running ranges has ended.
    pub(super) async fn wait_for_one(&mut self) -> Result<(), SpoolError> {
        let mut checks = tokio::time::interval(SLOT_CHECK);
        while !self.running.is_empty() {
            if self.run_once(&mut checks).await? {
                break;
            }
        }
        Ok(())
    }

    /// Waits until a range has ended or slots are due to be checked, and starts further ranges. Returns whether a range has
    /// ended. May be dropped at any moment.
    async fn run_once(&mut self, checks: &mut Interval) -> Result<bool, SpoolError> {
        let mut has_ended = false;
        tokio::select! {
            Some(ended) = self.running.next() => {
                self.range_ended(ended?);
                has_ended = true;
            }
            _ = checks.tick() => {}
        }
        self.start_ranges();
        Ok(has_ended)
    }

    fn range_ended(&mut self, range: EndedRange<'a>) {
        if self.slots.len() + self.running.len() < self.own_slots {
            self.slots.push(range.slot);
        }
        if !range.is_complete {
            self.set_source(None);
        }
        let end = range.partial.as_ref().map_or(range.start, Partial::offset);
        self.allocator.range_ended(range.start, end);
        if let Some(partial) = range.partial {
            self.received.insert(range.start, partial);
        }
    }

    /// Starts a range for each slot of the blob and each idle slot, as long as that is worthwhile.
    fn start_ranges(&mut self) {
        if self.source.is_none() || self.since.elapsed() < MEASURE_FOR {
            return;
        }
        while self.is_worthwhile()
            && let Some(slot) = self.slots.pop().or_else(|| self.transfer.slots.acquire_idle())
        {
            if !self.start_range(slot) {
                return;
            }
        }
        if !self.is_worthwhile() {
            self.release_slots();
        }
    }

    /// Whether the free bytes take long at the rate of the link.
    fn is_worthwhile(&self) -> bool {
        let received = self.transfer.stats.received();
        let received = received.saturating_sub(self.received_before);
        self.allocator.free() > bytes_per_second(received, self.since.elapsed()) / SHORT_REST
    }

    fn start_range(&mut self, slot: DownloadSlot<'a>) -> bool {
        let Some((source, usable)) = self.source.clone() else {
            return false;
        };
        // The length of a range depends on the speed of the source, so that must be known.
        let rate = self.transfer.registries.bytes_per_second(&source);
        let range = (rate > 0).then(|| self.allocator.allocate_range(rate)).flatten();
        let Some(range) = range else {
            return false;
        };
        let (blob, Range { start, end }) = (self.transfer.request.digest, &range);
        tracing::debug!("blob {blob}: bytes {start} to {end} by another connection");
        self.running
            .push(Box::pin(download(self.transfer, (source, usable), range, slot)));
        true
    }
}

/// Downloads one range from one source.
async fn download<'a>(
    transfer: &'a Transfer<'a>,
    (source, usable): (PullSource, Vec<PullSource>),
    range: Range<u64>,
    slot: DownloadSlot<'a>,
) -> Result<EndedRange<'a>, SpoolError> {
    let range = BlobRange {
        blob: transfer.request.digest,
        size: transfer.request.size,
        start: range.start,
        end: range.end,
    };
    let (registries, spool) = (transfer.registries, transfer.spool.clone());
    let opened = on_disk(move || spool.range(&range.blob, range.size, range.start));
    let (partial, began) = (opened.await?, Instant::now());
    let what = format!("a range of blob {}", range.blob);
    let mut attempts = registries.attempts(what, Vec::new(), usable);
    attempts.begin_with(&source);
    let opened = registries.open_blob(&source, range, &mut attempts, transfer.cancel);
    let (partial, received) = match opened.await {
        Ok(stream) if stream.is_range() => transfer.write(stream, partial, &mut attempts).await?,
        Ok(_) => (partial, Ok(())),
        Err(error) => (partial, Err(error)),
    };
    let end = partial.offset();
    let assessed = attempts.assess(end - range.start, began.elapsed());
    if let Err(error) = received.and(assessed) {
        tracing::debug!("blob {}: a range ended at {end}: {error}", range.blob);
    }
    Ok(EndedRange {
        slot,
        start: range.start,
        is_complete: end == range.end,
        partial: match end > range.start {
            true => Some(partial),
            false => {
                on_disk(move || partial.discard()).await?;
                None
            }
        },
    })
}
