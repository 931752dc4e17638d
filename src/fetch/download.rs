//! Downloads one blob into the spool, from several mirrors and in ranges; resumes earlier partial downloads.
//!
//! # Design
//!
//! The bytes that are received from offset 0 on are the contiguous bytes. One connection downloads what follows them, and
//! chooses among sources and retries ([`State`]). Other connections download ranges behind them ([`Ranges`]), which are
//! appended when the contiguous bytes reach them. Before each step it is decided anew what follows the contiguous bytes, so no
//! received range can be forgotten:
//!
//! ```text
//! what follows                 step
//! ───────────────────────────  ────────────────────────────────────────────────────────────────────────────
//! a received range             append it
//! a running range              release the slot, wait for the range
//! free bytes, ChooseSource     choose a source, or wait until one may be asked ─→ Request, ChooseSource
//! free bytes, Request(source)  request them ─→ Request(source) on success, ChooseSource on failure
//! the end                      verify the digest ─→ done, or start again with ChooseSource
//! ```
//!
//! After a wrong digest each source has to send all of the blob (`provenance`). Once as many bytes were discarded as all
//! sources together could have sent wrongly, the download fails: otherwise a link that breaks all the time would make it
//! download the blob for ever.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use crate::oci::Digest;
use crate::registry::{Attempts, BlobRange, PullSource, RegistryError};
use crate::report::Event;
use crate::spool::{Partial, SpoolError, VerifiedBlob};

use super::ROUNDS_FOR_OPTIONAL;
use super::download_slot::DownloadSlot;
use super::medium_copy::{self, Copied};
use super::provenance::{Continuation, Provenance};
use super::range_allocator::{Allocation, Next};
use super::ranges::{MIN_BLOB_SIZE, Ranges};
use super::transfer::{Transfer, on_disk};
use super::{FetchError, size_mismatch};

/// Downloads the requested blob, or copies it from a medium, or finds it in the spool.
///
/// The futures of its steps are boxed: nested in each other they would overflow the stack of a thread in debug builds.
pub(super) async fn download(transfer: &Transfer<'_>) -> Result<VerifiedBlob, FetchError> {
    let (spool, blob) = (transfer.spool.clone(), transfer.request.digest);
    if let Some(found) = on_disk(move || spool.verified(&blob)).await? {
        if found.size() != transfer.request.size {
            return Err(FetchError::from(RegistryError::WrongSize {
                blob,
                expected: transfer.request.size,
                found: found.size(),
            }));
        }
        transfer.observer.observe(Event::BlobStarted {
            blob,
            size: found.size(),
            resumed: found.size(),
        });
        transfer.observer.observe(Event::BlobVerified { blob });
        return Ok(found);
    }
    // First the file, which another download of the same digest may have locked, then the slots. In the other order a download
    // with the file could wait for a slot, and one with the slot for the file.
    let partial = match medium_copy::copy(transfer, open_partial(transfer).await?).await? {
        Copied::Whole(found) => return Ok(found),
        Copied::Rest(partial) => partial,
    };
    let connections = match transfer.request.size < MIN_BLOB_SIZE {
        true => 1,
        false => transfer.request.connections,
    };
    let slots = transfer.slots.acquire(connections, transfer.cancel).await?;
    let result = match Download::begin(transfer, &partial, slots).await {
        Ok(download) => Box::pin(download.run(partial)).await,
        Err(error) => Err(error),
    };
    let result = match result {
        Err(FetchError::Registry(error)) => Err(Box::pin(explain(transfer, error)).await),
        result => result,
    };
    transfer.observer.observe(match &result {
        Ok(_) => Event::BlobVerified { blob },
        Err(_) => Event::BlobAbandoned { blob },
    });
    result
}

/// The sources of all images that have the blob, each repository once.
pub(super) fn sources(transfer: &Transfer<'_>) -> Result<Vec<PullSource>, FetchError> {
    let mut sources = Vec::new();
    let mut seen = HashSet::new();
    let mut refused = None;
    for reference in &transfer.request.images {
        match transfer.registries.sources(reference) {
            Ok(more) => sources.extend(
                more.into_iter()
                    .filter(|source| seen.insert((source.reference.repository(), source.insecure))),
            ),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) if sources.is_empty() => Err(error.into()),
        _ => Ok(sources),
    }
}

async fn open_partial(transfer: &Transfer<'_>) -> Result<Partial, SpoolError> {
    let request = &transfer.request;
    let (spool, digest, size) = (transfer.spool.clone(), request.digest, request.size);
    on_disk(move || spool.partial(&digest, size)).await
}

/// The error of a download: the manifest's if that states a wrong length.
async fn explain(transfer: &Transfer<'_>, error: Arc<RegistryError>) -> FetchError {
    let (sources, blob) = (sources(transfer).unwrap_or_default(), transfer.request.digest);
    let explained = size_mismatch::explain(&error, blob, &sources, transfer.registries, transfer.cancel);
    let explained = explained.await;
    explained.map_or(FetchError::Registry(error), FetchError::from)
}

/// What the connection after the contiguous bytes does next.
enum State {
    /// No source is chosen.
    ChooseSource,
    /// This source is asked for what follows.
    Request(PullSource),
}

/// The result of a verification.
enum Verification {
    Matched(VerifiedBlob),
    /// The digest is wrong; the download starts with this empty file.
    Restarted(Partial),
}

/// A download under way.
struct Download<'a> {
    transfer: &'a Transfer<'a>,
    /// Of the connection after the contiguous bytes.
    slot: DownloadSlot<'a>,
    ranges: Ranges<'a>,
    provenance: Provenance,
    attempts: Attempts,
    /// The source of the last request.
    last_source: Option<PullSource>,
    /// The download fails when more bytes than this were discarded.
    max_discarded: u64,
}

impl<'a> Download<'a> {
    async fn begin(
        transfer: &'a Transfer<'a>,
        partial: &Partial,
        mut slots: Vec<DownloadSlot<'a>>,
    ) -> Result<Self, FetchError> {
        let slot = slots.pop().expect("at least one slot is acquired");
        let sources = sources(transfer)?;
        let max_discarded = transfer.request.size.saturating_mul(sources.len() as u64);
        let ranges = Ranges::open(transfer, partial, slots).await?;
        let resumed = partial.offset() + ranges.received_bytes();
        let images = transfer.request.images.iter().map(ToString::to_string);
        let what = format!("blob {}", transfer.request.digest);
        let mut attempts = transfer.registries.attempts(what, images.collect(), sources);
        if transfer.request.is_optional {
            attempts.give_up_after_rounds(ROUNDS_FOR_OPTIONAL);
        }
        let download = Self {
            transfer,
            slot,
            ranges,
            provenance: Provenance::new(resumed > 0),
            attempts,
            last_source: None,
            max_discarded,
        };
        download.report_started(resumed);
        Ok(download)
    }

    async fn run(mut self, mut partial: Partial) -> Result<VerifiedBlob, FetchError> {
        let mut state = State::ChooseSource;
        loop {
            partial = self.ranges.append_received(partial).await?;
            (partial, state) = match (self.ranges.next(), state) {
                (Next::End, _) => match self.verify(partial).await? {
                    Verification::Matched(blob) => return Ok(blob),
                    Verification::Restarted(partial) => (partial, State::ChooseSource),
                },
                (Next::Running, state) => {
                    self.slot.release();
                    self.ranges.wait_for_one().await?;
                    (partial, state)
                }
                (Next::Received | Next::Free, State::ChooseSource) => (partial, self.choose_source().await?),
                (Next::Received | Next::Free, State::Request(source)) => {
                    self.request(source, partial).await?
                }
            };
        }
    }

    /// Chooses a source, or releases the slot and waits until one may be asked.
    async fn choose_source(&mut self) -> Result<State, FetchError> {
        let cancel = self.transfer.cancel;
        self.ranges.run_during(self.slot.reacquire(cancel)).await??;
        if let Some(source) = self.attempts.next_now(cancel)? {
            return Ok(State::Request(source));
        }
        let pause = self.slot.release_while(self.attempts.pause(cancel), cancel);
        self.ranges.run_during(pause).await??;
        Ok(State::ChooseSource)
    }

    /// Asks the source for what follows the contiguous bytes, and appends what it sends.
    async fn request(
        &mut self,
        source: PullSource,
        mut partial: Partial,
    ) -> Result<(Partial, State), FetchError> {
        self.ranges
            .run_during(self.slot.reacquire(self.transfer.cancel))
            .await??;
        if self.ranges.next() != Next::Free {
            // While it waited for a slot, a parallel range was started here.
            return Ok((partial, State::Request(source)));
        }
        match self.provenance.continuation(&source) {
            Continuation::Allowed => {}
            Continuation::OtherSourceIsSending => return Ok((partial, State::ChooseSource)),
            Continuation::Restart(wrong) => partial = self.restart(partial, wrong).await?,
        }
        let (size, before) = (self.transfer.request.size, partial.offset());
        let allocated = self.ranges.allocate_next(&source);
        let whole = self.provenance.take_failed_range(&source);
        let range = BlobRange {
            blob: self.transfer.request.digest,
            size,
            start: if whole { 0 } else { before },
            end: if whole { size } else { allocated.end },
        };
        let began = Instant::now();
        let answer = answer(
            self.transfer,
            &source,
            range,
            allocated,
            partial,
            &mut self.attempts,
        );
        let (partial, received) = self.ranges.run_during(Box::pin(answer)).await??;
        let after = partial.offset();
        self.provenance.received(&source, before, after);
        let assessed = self.attempts.assess(after - before, began.elapsed());
        let received = match received {
            // An error after all requested bytes does not matter.
            Err(_) if after >= allocated.end => Ok(Answer::Whole),
            received => received,
        };
        let received = match assessed {
            Err(slow) if after < size => received.and(Err(slow)),
            _ => received,
        };
        self.last_source = Some(source.clone());
        Ok((partial, self.after_answer(source, received)))
    }

    /// The state after an answer or an error of the source. Only a source that sends ranges is asked for parallel ones.
    fn after_answer(&mut self, source: PullSource, received: Result<Answer, RegistryError>) -> State {
        match received {
            Ok(answer) => {
                let usable = self.attempts.usable_sources();
                self.ranges.set_source(match answer {
                    Answer::Range => Some((source.clone(), usable)),
                    Answer::Whole => None,
                });
                State::Request(source)
            }
            Err(error) => {
                self.ranges.set_source(None);
                if let RegistryError::RangeNotSatisfiable { .. } | RegistryError::WrongRange { .. } = error {
                    self.provenance.failed_range(&source);
                }
                self.attempts.failed(error);
                State::ChooseSource
            }
        }
    }

    /// Compares the digest of the complete blob. If it is wrong and bytes were received, the download starts again.
    async fn verify(&mut self, partial: Partial) -> Result<Verification, FetchError> {
        let found = match on_disk(move || partial.finish()).await {
            Err(SpoolError::Mismatch { found, .. }) if !self.provenance.is_empty() => found,
            finished => {
                let blob = finished?;
                self.attempts.succeeded();
                return Ok(Verification::Matched(blob));
            }
        };
        if let Some(source) = &self.last_source {
            let (blob, repository) = (self.transfer.request.digest, source.reference.repository());
            self.attempts.failed(RegistryError::WrongDigest {
                what: format!("blob {blob} from `{repository}`"),
                found,
                mixed: self.provenance.is_mixed(source),
            });
            self.provenance.sent_wrong_digest(found);
        }
        self.provenance.clear();
        // The spool has removed the file.
        let open = async { Ok::<_, FetchError>(open_partial(self.transfer).await?) };
        let partial = self.slot.release_while(open, self.transfer.cancel).await?;
        self.ranges = Ranges::none(self.transfer);
        self.report_started(partial.offset());
        Ok(Verification::Restarted(partial))
    }

    /// Discards the bytes of other sources. `wrong` is the digest of what several sources sent together before.
    async fn restart(&mut self, mut partial: Partial, wrong: Digest) -> Result<Partial, FetchError> {
        if self.provenance.discard(partial.offset()) > self.max_discarded {
            return Err(FetchError::from(RegistryError::WrongDigest {
                what: format!(
                    "blob {} from several sources, none of which sends all of it",
                    self.transfer.request.digest
                ),
                found: wrong,
                mixed: true,
            }));
        }
        self.provenance.clear();
        let partial = on_disk(move || partial.restart().map(|()| partial)).await?;
        self.ranges = Ranges::none(self.transfer);
        self.report_started(0);
        Ok(partial)
    }

    fn report_started(&self, resumed: u64) {
        self.transfer.observer.observe(Event::BlobStarted {
            blob: self.transfer.request.digest,
            size: self.transfer.request.size,
            resumed,
        });
    }
}

/// What a source sent.
enum Answer {
    /// The requested range.
    Range,
    /// The whole blob, or all that was left of it.
    Whole,
}

/// Asks the source once, and appends what it sends up to the end of the allocation. The outer error is the spool's, which ends
/// the download; the inner one is the source's.
async fn answer(
    transfer: &Transfer<'_>,
    source: &PullSource,
    range: BlobRange,
    allocated: Allocation,
    partial: Partial,
    attempts: &mut Attempts,
) -> Result<(Partial, Result<Answer, RegistryError>), SpoolError> {
    let opened = transfer
        .registries
        .open_blob(source, range, attempts, transfer.cancel);
    let mut stream = match opened.await {
        Ok(stream) => stream,
        Err(error) => return Ok((partial, Err(error))),
    };
    let (answer, end) = match stream.is_range() {
        true => (Answer::Range, allocated.end),
        false => (Answer::Whole, allocated.end_of_whole),
    };
    if range.is_range() && !stream.is_range() {
        attempts.ignores_ranges();
    }
    stream.end_at(end);
    let (partial, received) = transfer.write(stream, partial, attempts).await?;
    Ok((partial, received.map(|()| answer)))
}
