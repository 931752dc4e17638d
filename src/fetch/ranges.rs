//! Ranges of one blob that other connections bring than the one of its first bytes.
//!
//! Each is a range, claimed before it is asked for, written to a file of its own, and appended when the first bytes reach it.
//! A piece is asked for once, of the source that gave the first bytes last. Whatever goes wrong ends it: what came stays, the
//! rest is free again, and there are no more until that source has given something once more. So faults, pauses and the
//! choice of sources are the business of the first bytes alone.

use std::collections::HashMap;
use std::ops::Range;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::Interval;

use super::download::{Download, on_disk};
use super::download_slot::DownloadSlot;
use super::range_allocator::{Next, RangeAllocator};
use super::transfer_stats::rate;
use crate::registry::{BlobRange, PullSource};
use crate::spool::{Partial, SpoolError};

/// A smaller blob is asked for as a whole.
pub(super) const LARGE: u64 = 4 << 20;

/// How often it is looked if there is an idle place.
const GLANCE: Duration = Duration::from_millis(100);

/// For so long a blob travels before it is judged how fast all comes.
const YOUNG: Duration = Duration::from_secs(1);

/// What comes sooner than in this part of a second, as fast as all comes, is not worth another connection.
const SOON: u64 = 4;

/// Of one blob.
pub(super) struct Ranges<'a> {
    download: &'a Download<'a>,
    claims: RangeAllocator,
    here: HashMap<u64, Partial>,
    running: FuturesUnordered<BoxFuture<'a, Result<Piece<'a>, SpoolError>>>,
    /// DownloadSlots that are the blob's beside that of its first bytes, and how many of them there may be with those in use.
    places: Vec<DownloadSlot<'a>>,
    own: usize,
    /// Who gives ranges, and who else may have the blob, both in the order of preference.
    source: Option<(PullSource, Vec<PullSource>)>,
    /// If it is to come whole from one source.
    is_whole: bool,
    since: Instant,
    received: u64,
}

/// What came of one.
struct Piece<'a> {
    place: DownloadSlot<'a>,
    from: u64,
    /// None if nothing came.
    partial: Option<Partial>,
    is_whole: bool,
}

impl<'a> Ranges<'a> {
    /// Of a blob that comes whole, if it is small or its sources are not trusted to give parts of the same.
    pub(super) fn none(download: &'a Download<'a>) -> Self {
        Self {
            claims: RangeAllocator::new(download.request.size, 0),
            here: HashMap::new(),
            running: FuturesUnordered::new(),
            places: Vec::new(),
            own: 0,
            source: None,
            is_whole: true,
            since: Instant::now(),
            received: download.traffic.received(),
            download,
        }
    }

    /// With what an earlier run has left, and places for some.
    pub(super) async fn open(
        download: &'a Download<'a>,
        first: &Partial,
        places: Vec<DownloadSlot<'a>>,
    ) -> Result<Self, SpoolError> {
        let mut pieces = Self::none(download);
        pieces.is_whole = download.request.size < LARGE;
        (pieces.own, pieces.places) = (places.len(), places);
        pieces.claims.first_is_at(first.offset());
        let (spool, blob, size) = (
            download.spool.clone(),
            download.request.digest,
            download.request.size,
        );
        let found = on_disk(move || {
            let found = spool.range_starts(&blob).into_iter();
            found
                .map(|from| spool.range(&blob, size, from))
                .collect::<Result<Vec<_>, _>>()
        });
        let mut useless = Vec::new();
        for piece in found.await? {
            // What was being appended when the run ended begins before the end of the first bytes.
            let from = piece.start().max(first.offset());
            match pieces.claims.found(from..piece.offset()) {
                true => drop(pieces.here.insert(from, piece)),
                false => useless.push(piece),
            }
        }
        on_disk(move || useless.into_iter().try_for_each(Partial::discard)).await?;
        Ok(pieces)
    }

    /// Bytes that are here.
    pub(super) fn bytes(&self) -> u64 {
        self.here.iter().map(|(from, piece)| piece.offset() - from).sum()
    }

    /// Appends what lies here to the first bytes, as far as it reaches.
    pub(super) async fn append_to(&mut self, mut first: Partial) -> Result<Partial, SpoolError> {
        self.claims.first_is_at(first.offset());
        while let Some(piece) = self.claims.take_next().and_then(|from| self.here.remove(&from)) {
            let appended = on_disk(move || first.append_range(piece).map(|()| first));
            first = self.beside(appended).await??;
        }
        Ok(first)
    }

    /// What comes after the first bytes.
    pub(super) fn next(&self) -> Next {
        self.claims.next()
    }

    /// RangeAllocator what comes next for the first bytes: a range to be asked for, and where it ends if the answer is the whole.
    pub(super) fn claim(&mut self, source: &PullSource) -> (u64, u64) {
        let pace = (!self.is_whole).then(|| self.download.registries.bytes_per_second(source));
        let (until, free) = self.claims.claim_next(pace);
        // Others may claim what is free while this comes.
        (until, if self.source.is_some() { until } else { free })
    }

    /// The source of the first bytes gives ranges, or has failed.
    pub(super) fn ask(&mut self, source: Option<(&PullSource, Vec<PullSource>)>) {
        let source = source.filter(|_| !self.is_whole);
        self.source = source.map(|(source, open)| (source.clone(), open));
        if self.source.is_none() {
            self.give_up_places();
        }
    }

    /// Others have a use for them.
    fn give_up_places(&mut self) {
        self.own = 0;
        self.places.clear();
    }

    /// Does `work`, while pieces come.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> Result<T, SpoolError> {
        let mut work = pin!(work);
        if self.is_whole {
            return Ok(work.await);
        }
        let mut glances = tokio::time::interval(GLANCE);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                came = self.tend(&mut glances) => drop(came?),
            }
        }
    }

    /// Waits until one of those that are on their way has come, or will not come.
    pub(super) async fn one(&mut self) -> Result<(), SpoolError> {
        let mut glances = tokio::time::interval(GLANCE);
        while !self.running.is_empty() {
            if self.tend(&mut glances).await? {
                break;
            }
        }
        Ok(())
    }

    /// Waits until something happens. True if a piece has ended. May be dropped at any moment.
    async fn tend(&mut self, glances: &mut Interval) -> Result<bool, SpoolError> {
        let mut has_come = false;
        tokio::select! {
            Some(piece) = self.running.next() => {
                self.came(piece?);
                has_come = true;
            }
            _ = glances.tick() => {}
        }
        self.begin_all();
        Ok(has_come)
    }

    fn came(&mut self, piece: Piece<'a>) {
        if self.places.len() + self.running.len() < self.own {
            self.places.push(piece.place);
        }
        if !piece.is_whole {
            self.ask(None);
        }
        let reached = piece.partial.as_ref().map_or(piece.from, Partial::offset);
        self.claims.piece_is_at(piece.from, reached);
        if let Some(partial) = piece.partial {
            self.here.insert(piece.from, partial);
        }
    }

    /// Where it pays, begins with as many as the blob has places for, and as there are idle ones for.
    fn begin_all(&mut self) {
        if self.source.is_none() || self.since.elapsed() < YOUNG {
            return;
        }
        while self.is_worth_while()
            && let Some(place) = self.places.pop().or_else(|| self.download.places.take_idle())
        {
            if !self.begin(place) {
                return;
            }
        }
        if !self.is_worth_while() {
            self.give_up_places();
        }
    }

    /// Whether what is free would take long, as fast as all comes.
    fn is_worth_while(&self) -> bool {
        let came = self.download.traffic.received().saturating_sub(self.received);
        self.claims.free() > rate(came, self.since.elapsed()) / SOON
    }

    fn begin(&mut self, place: DownloadSlot<'a>) -> bool {
        let Some((source, open)) = self.source.clone() else {
            return false;
        };
        // Nothing is claimed of a source before it is known how fast it is.
        let pace = self.download.registries.bytes_per_second(&source);
        let Some(range) = (pace > 0).then(|| self.claims.claim_piece(pace)).flatten() else {
            return false;
        };
        let (blob, Range { start, end }) = (self.download.request.digest, &range);
        tracing::debug!("blob {blob}: bytes {start} to {end} come by another connection");
        self.running
            .push(Box::pin(fetch(self.download, (source, open), range, place)));
        true
    }
}

async fn fetch<'a>(
    download: &'a Download<'a>,
    (source, open): (PullSource, Vec<PullSource>),
    range: Range<u64>,
    place: DownloadSlot<'a>,
) -> Result<Piece<'a>, SpoolError> {
    let wanted = BlobRange {
        blob: download.request.digest,
        size: download.request.size,
        start: range.start,
        end: range.end,
    };
    let spool = download.spool.clone();
    let opened = on_disk(move || spool.range(&wanted.blob, wanted.size, wanted.start));
    let (partial, began) = (opened.await?, Instant::now());
    let mut attempts =
        download
            .registries
            .attempts(format!("a piece of blob {}", wanted.blob), Vec::new(), open);
    attempts.begin_with(&source);
    let opened = download
        .registries
        .open_blob(&source, wanted, &mut attempts, download.cancel)
        .await;
    let (partial, result) = match opened {
        Ok(stream) if stream.is_range() => download.pour(stream, partial, &mut attempts).await?,
        Ok(_) => (partial, Ok(())),
        Err(error) => (partial, Err(error)),
    };
    let judged = attempts.assess(partial.offset() - wanted.start, began.elapsed());
    if let Err(error) = result.and(judged) {
        tracing::debug!(
            "blob {}: a piece ends at {}: {error}",
            wanted.blob,
            partial.offset()
        );
    }
    Ok(Piece {
        place,
        from: wanted.start,
        is_whole: partial.offset() == wanted.end,
        partial: match partial.offset() > wanted.start {
            true => Some(partial),
            false => {
                on_disk(move || partial.discard()).await?;
                None
            }
        },
    })
}
