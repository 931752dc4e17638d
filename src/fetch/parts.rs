//! Downloads some ranges of a blob into the spool, over one connection and over idle ones.
//!
//! The ranges are short, and each costs a round trip, in which other connections use the link. What was received stays in the
//! spool, also after a kill; a range that was interrupted is continued in its file.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::vec::IntoIter;

use futures::future::try_join_all;

use super::FetchError;
use super::download::sources;
use super::download_slot::DownloadSlot;
use super::transfer::{Transfer, on_disk};
use crate::registry::{Attempts, BlobRange, PullSource, RegistryError};
use crate::report::Event;
use crate::spool::{BlobParts, Partial, SpoolError};

/// The most connections for one blob.
const MAX_CONNECTIONS: usize = 4;

/// Downloads those bytes of `ranges` that are missing.
pub(super) async fn download(
    transfer: &Transfer<'_>,
    ranges: &[Range<u64>],
) -> Result<BlobParts, FetchError> {
    let parts = open(transfer).await?;
    let missing: Vec<Range<u64>> = ranges.iter().flat_map(|range| parts.missing(range)).collect();
    let (blob, size) = (transfer.request.digest, length(ranges));
    let resumed = size.saturating_sub(length(&missing));
    transfer
        .observer
        .observe(Event::BlobStarted { blob, size, resumed });
    let result = match missing.is_empty() {
        true => Ok(parts),
        false => download_missing(transfer, parts, missing).await,
    };
    transfer.observer.observe(match &result {
        Ok(_) => Event::BlobVerified { blob },
        Err(_) => Event::BlobAbandoned { blob },
    });
    result
}

fn length(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

async fn open(transfer: &Transfer<'_>) -> Result<BlobParts, SpoolError> {
    let (spool, blob) = (transfer.spool.clone(), transfer.request.digest);
    on_disk(move || spool.parts(&blob)).await
}

async fn download_missing(
    transfer: &Transfer<'_>,
    parts: BlobParts,
    missing: Vec<Range<u64>>,
) -> Result<BlobParts, FetchError> {
    let mut slots = transfer.slots.acquire(1, transfer.cancel).await?;
    let idle = std::iter::from_fn(|| transfer.slots.acquire_idle());
    slots.extend(idle.take(MAX_CONNECTIONS.min(missing.len()) - 1));
    let queue = Mutex::new(missing.into_iter());
    let connections = slots
        .into_iter()
        .map(|slot| download_queue(transfer, &parts, &queue, slot));
    try_join_all(connections).await?;
    Ok(open(transfer).await?)
}

/// Downloads ranges of the queue over one connection until it is empty.
async fn download_queue(
    transfer: &Transfer<'_>,
    parts: &BlobParts,
    queue: &Mutex<IntoIter<Range<u64>>>,
    mut slot: DownloadSlot<'_>,
) -> Result<(), FetchError> {
    let request = &transfer.request;
    let what = format!("ranges of blob {}", request.digest);
    let images = request.images.iter().map(ToString::to_string).collect();
    let mut attempts = transfer.registries.attempts(what, images, sources(transfer)?);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let mut source = None;
    while let Some(range) = next() {
        let start = parts.continued_at(range.start);
        loop {
            let chosen = match source.take() {
                Some(source) => source,
                None => choose_source(transfer, &mut attempts, &mut slot).await?,
            };
            // Not while it waits for a slot: another download may have the slot and wait for the file.
            let (spool, blob, size) = (transfer.spool.clone(), request.digest, request.size);
            let partial = on_disk(move || spool.range(&blob, size, start)).await?;
            if partial.offset() >= range.end {
                source = Some(chosen);
                break;
            }
            match request_rest(transfer, &chosen, partial, range.end, &mut attempts).await? {
                Ok(()) => source = Some(chosen),
                Err(error @ RegistryError::WrongRange { .. }) => return Err(error.into()),
                Err(error) => attempts.failed(error),
            }
        }
    }
    attempts.succeeded();
    Ok(())
}

/// Chooses a source, and releases the slot while none may be asked.
async fn choose_source(
    transfer: &Transfer<'_>,
    attempts: &mut Attempts,
    slot: &mut DownloadSlot<'_>,
) -> Result<PullSource, FetchError> {
    loop {
        if let Some(source) = attempts.next_now(transfer.cancel)? {
            return Ok(source);
        }
        slot.release_while(attempts.pause(transfer.cancel), transfer.cancel)
            .await?;
    }
}

/// Asks the source once for the bytes up to `end`. The outer error is the spool's, the inner one is the source's.
async fn request_rest(
    transfer: &Transfer<'_>,
    source: &PullSource,
    partial: Partial,
    end: u64,
    attempts: &mut Attempts,
) -> Result<Result<(), RegistryError>, SpoolError> {
    let (start, began) = (partial.offset(), Instant::now());
    let range = BlobRange {
        blob: transfer.request.digest,
        size: transfer.request.size,
        start,
        end,
    };
    let opened = transfer
        .registries
        .open_blob(source, range, attempts, transfer.cancel);
    let stream = match opened.await {
        Ok(stream) => stream,
        Err(error) => return Ok(Err(error)),
    };
    if range.is_range() && !stream.is_range() {
        attempts.ignores_ranges();
        return Ok(Err(RegistryError::WrongRange {
            what: format!("blob {} from `{}`", range.blob, source.reference.repository()),
            requested: start,
            sent: "the whole blob".to_owned(),
        }));
    }
    let (partial, received) = transfer.write(stream, partial, attempts).await?;
    let assessed = attempts.assess(partial.offset().saturating_sub(start), began.elapsed());
    Ok(match assessed {
        Err(slow) if partial.offset() < end => received.and(Err(slow)),
        _ => received,
    })
}
