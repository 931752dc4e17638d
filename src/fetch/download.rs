//! One blob, from as many sources and in as many pieces as it takes.
//!
//! What one source gave is kept when the next one takes over, for the digest names the content. Should the whole turn out
//! to be wrong, and more than one source or an earlier run had a part in it, nobody can say whose fault it was: then it
//! is begun anew, and from then on every source has to give all of it, so that the next mistake has a name. A source that
//! has begun then keeps its turn as long as it brings something, for the next one would begin at 0; and when as much was
//! thrown away as all of them could have given wrongly, the blob is given up: not even a link that breaks all the time
//! makes us fetch it for ever.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::cancel::Cancel;
use crate::oci::Digest;
use crate::registry::{Attempts, BlobRange, BlobStream, PullSource, Registries, RegistryError};
use crate::report::{Event, Observer};
use crate::spool::{Partial, Spool, SpoolError, VerifiedBlob};

use super::download_slot::{DownloadSlot, DownloadSlots};
use super::range_allocator::Next;
use super::ranges::{LARGE, Ranges};
use super::transfer_stats::TransferStats;
use super::{BlobRequest, FetchError, size_mismatch};

/// Ranges that wait between socket and disk. Enough to hide a short stall of the disk.
const CHUNKS: usize = 16;

pub(super) struct Download<'a> {
    pub(super) registries: &'a Registries,
    pub(super) spool: &'a Spool,
    pub(super) observer: &'a dyn Observer,
    pub(super) places: &'a DownloadSlots,
    pub(super) traffic: &'a TransferStats,
    pub(super) request: BlobRequest,
    pub(super) cancel: &'a Cancel,
}

/// Who gave what there is of the blob, and how far they are to be trusted.
#[derive(Default)]
struct Provenance {
    /// An earlier run.
    spool: bool,
    /// By repository.
    sources: HashSet<String>,
    /// The digest of what they gave together, if they were wrong once. Then there is at most one of them at a time.
    distrusted: Option<Digest>,
    /// The last one of them brought something when it was asked last.
    brings: bool,
    /// Bytes that were thrown away since they were wrong.
    wasted: u64,
    /// Repositories whose registry did not answer a range as it should. They are asked for the whole once, of which
    /// what is there already is passed over. Should that break off too, a range is tried again: one more small request
    /// instead of all that is there.
    rangeless: HashSet<String>,
}

impl Provenance {
    fn others_than(&self, source: &PullSource) -> bool {
        let name = source.reference.repository();
        self.spool || self.sources.iter().any(|giver| *giver != name)
    }

    fn forget(&mut self) {
        self.spool = false;
        self.sources.clear();
    }
}

impl Download<'_> {
    pub(super) async fn run(self) -> Result<VerifiedBlob, FetchError> {
        let (spool, blob) = (self.spool.clone(), self.request.digest);
        if let Some(found) = on_disk(move || spool.verified(&blob)).await? {
            if found.size() != self.request.size {
                return Err(FetchError::from(RegistryError::WrongSize {
                    blob,
                    expected: self.request.size,
                    found: found.size(),
                }));
            }
            self.observer.observe(Event::BlobStarted {
                blob,
                size: found.size(),
                resumed: found.size(),
            });
            self.observer.observe(Event::BlobVerified { blob });
            return Ok(found);
        }
        // First the file, which another download of the same digest may hold, then the place: who holds a file may have
        // to wait for a place, so nobody may have a place and wait for a file.
        let partial = self.partial().await?;
        let own = match self.request.size < LARGE {
            true => 1,
            false => self.request.connections,
        };
        let places = self.places.take(own, self.cancel).await?;
        let result = match self.download(partial, places).await {
            Err(FetchError::Registry(error)) => Err(self.blame(error).await),
            result => result,
        };
        self.observer.observe(match &result {
            Ok(_) => Event::BlobVerified { blob },
            Err(_) => Event::BlobAbandoned { blob },
        });
        result
    }

    async fn download<'a>(
        &'a self,
        mut partial: Partial,
        mut places: Vec<DownloadSlot<'a>>,
    ) -> Result<VerifiedBlob, FetchError> {
        let mut place = places.pop().expect("there is at least one");
        let sources = self.sources()?;
        let bearable = self.request.size.saturating_mul(sources.len() as u64);
        let mut pieces = Ranges::open(self, &partial, places).await?;
        let here = partial.offset() + pieces.bytes();
        let mut givers = Provenance {
            spool: here > 0,
            ..Provenance::default()
        };
        self.begin(here);
        let mut attempts =
            self.registries
                .attempts(format!("blob {}", self.request.digest), self.images(), sources);
        // Who gave something last, and whether to ask it again.
        let (mut last, mut goes_on) = (None::<PullSource>, false);
        loop {
            partial = pieces.append_to(partial).await?;
            match pieces.next() {
                Next::End => match on_disk(move || partial.finish()).await {
                    Err(SpoolError::Mismatch { found, .. }) if last.is_some() || givers.spool => {
                        if let Some(source) = &last {
                            attempts.failed(RegistryError::WrongDigest {
                                what: format!(
                                    "blob {} from `{}`",
                                    self.request.digest,
                                    source.reference.repository()
                                ),
                                found,
                                mixed: givers.others_than(source),
                            });
                            givers.distrusted = Some(found);
                        }
                        givers.forget();
                        goes_on = false;
                        partial = self.anew(&mut place).await?;
                        pieces = Ranges::none(self);
                        continue;
                    }
                    done => {
                        attempts.succeeded();
                        return Ok(done?);
                    }
                },
                Next::OnItsWay => {
                    place.give_up();
                    pieces.one().await?;
                    continue;
                }
                Next::Here | Next::Free => pieces.beside(place.take_again(self.cancel)).await??,
            }
            let source = match last.take().filter(|_| goes_on) {
                Some(source) => source,
                None => match attempts.next_now(self.cancel)? {
                    Some(source) => source,
                    None => {
                        let rest = place.lend(attempts.pause(self.cancel), self.cancel);
                        pieces.beside(rest).await??;
                        continue;
                    }
                },
            };
            if let Some(found) = givers.distrusted
                && givers.others_than(&source)
            {
                if givers.brings {
                    continue;
                }
                givers.wasted = givers.wasted.saturating_add(partial.offset());
                if givers.wasted > bearable {
                    return Err(FetchError::from(RegistryError::WrongDigest {
                        what: format!(
                            "blob {} from several sources, none of which gives all of it",
                            self.request.digest
                        ),
                        found,
                        mixed: true,
                    }));
                }
                givers.forget();
                partial = on_disk(move || partial.restart().map(|()| partial)).await?;
                pieces = Ranges::none(self);
                self.begin(0);
            }
            let before = partial.offset();
            let (until, free) = pieces.claim(&source);
            let mut wanted = BlobRange {
                blob: self.request.digest,
                size: self.request.size,
                start: before,
                end: until,
            };
            if givers.rangeless.remove(&source.reference.repository()) {
                (wanted.start, wanted.end) = (0, wanted.size);
            }
            let began = Instant::now();
            let received = self.receive(&source, wanted, until, free, partial, &mut attempts);
            let (back, received) = pieces.beside(received).await??;
            partial = back;
            let judged = attempts.assess(partial.offset() - before, began.elapsed());
            givers.brings = partial.offset() > before;
            if partial.offset() > 0 {
                givers.sources.insert(source.reference.repository());
            }
            let received = match received {
                // What comes after all that was wanted is no fault.
                Err(_) if partial.offset() >= until => Ok(false),
                received => received,
            };
            let received = match judged {
                Err(slow) if partial.offset() < self.request.size => received.and(Err(slow)),
                _ => received,
            };
            pieces.ask(match received {
                Ok(true) => Some((&source, attempts.usable_sources())),
                Ok(false) | Err(_) => None,
            });
            goes_on = received.is_ok();
            if let Err(error) = received {
                if let RegistryError::RangeNotSatisfiable { .. } | RegistryError::WrongRange { .. } = error {
                    givers.rangeless.insert(source.reference.repository());
                }
                attempts.failed(error);
            }
            last = Some(source);
        }
    }

    async fn blame(&self, error: Arc<RegistryError>) -> FetchError {
        let sources = self.sources().unwrap_or_default();
        let blob = self.request.digest;
        let found = size_mismatch::blame(&error, blob, &sources, self.registries, self.cancel).await;
        found.map_or(FetchError::Registry(error), FetchError::from)
    }

    /// The sources of all images that have the blob, each repository once.
    fn sources(&self) -> Result<Vec<PullSource>, FetchError> {
        let mut sources = Vec::new();
        let mut seen = HashSet::new();
        let mut refused = None;
        for reference in &self.request.images {
            match self.registries.sources(reference) {
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

    /// Who needs it, for messages.
    fn images(&self) -> Vec<String> {
        self.request.images.iter().map(ToString::to_string).collect()
    }

    async fn partial(&self) -> Result<Partial, SpoolError> {
        let (spool, digest, size) = (self.spool.clone(), self.request.digest, self.request.size);
        on_disk(move || spool.partial(&digest, size)).await
    }

    /// Begins anew after what was there turned out to be wrong, and was removed.
    async fn anew(&self, place: &mut DownloadSlot<'_>) -> Result<Partial, FetchError> {
        let open = async { Ok::<_, FetchError>(self.partial().await?) };
        let partial = place.lend(open, self.cancel).await?;
        self.begin(partial.offset());
        Ok(partial)
    }

    fn begin(&self, resumed: u64) {
        self.observer.observe(Event::BlobStarted {
            blob: self.request.digest,
            size: self.request.size,
            resumed,
        });
    }

    /// Asks one source once for what is wanted, and appends what it gives until an offset: `until` if it gives a range,
    /// which it says, and `free` if it gives the whole. The outer error is one of the spool, which ends all; the inner one is
    /// the source's.
    async fn receive(
        &self,
        source: &PullSource,
        wanted: BlobRange,
        until: u64,
        free: u64,
        partial: Partial,
        attempts: &mut Attempts,
    ) -> Result<(Partial, Result<bool, RegistryError>), SpoolError> {
        let opened = self.registries.open_blob(source, wanted, attempts, self.cancel);
        let mut stream = match opened.await {
            Ok(stream) => stream,
            Err(error) => return Ok((partial, Err(error))),
        };
        let is_range = stream.is_range();
        if wanted.is_range() && !is_range {
            attempts.ignores_ranges();
        }
        stream.end_at(if is_range { until } else { free });
        let (partial, received) = self.pour(stream, partial, attempts).await?;
        Ok((partial, received.map(|()| is_range)))
    }

    /// Appends what comes of an answer.
    pub(super) async fn pour(
        &self,
        mut stream: BlobStream,
        mut partial: Partial,
        attempts: &mut Attempts,
    ) -> Result<(Partial, Result<(), RegistryError>), SpoolError> {
        let offset = partial.offset();
        let (pieces, mut queue) = mpsc::channel::<Bytes>(CHUNKS);
        let writer = tokio::task::spawn_blocking(move || {
            while let Some(piece) = queue.blocking_recv() {
                partial.write(&piece)?;
            }
            Ok(partial)
        });
        let received = self.forward(&mut stream, offset, pieces, attempts).await;
        Ok((finished(writer).await?, received))
    }

    /// Passes on what comes after `offset`, until the end, a fault, or the writer's going away.
    async fn forward(
        &self,
        stream: &mut BlobStream,
        offset: u64,
        pieces: mpsc::Sender<Bytes>,
        attempts: &mut Attempts,
    ) -> Result<(), RegistryError> {
        // A registry without ranges begins at 0.
        let mut known = offset.saturating_sub(stream.start());
        while let Some(mut piece) = stream.next(self.cancel).await? {
            let skipped = usize::try_from(known).unwrap_or(usize::MAX).min(piece.len());
            known -= skipped as u64;
            let piece = piece.split_off(skipped);
            if skipped > 0 {
                self.observer.observe(Event::BlobRepeated {
                    blob: self.request.digest,
                    bytes: skipped as u64,
                });
            }
            if piece.is_empty() {
                continue;
            }
            let bytes = piece.len() as u64;
            attempts.received(bytes);
            self.observer.observe(Event::BlobReceived {
                blob: self.request.digest,
                bytes,
            });
            self.traffic.add(bytes);
            if pieces.send(piece).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Does what waits for the disk on a thread of its own.
pub(super) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SpoolError> + Send + 'static,
) -> Result<T, SpoolError> {
    finished(tokio::task::spawn_blocking(work)).await
}

async fn finished<T>(task: tokio::task::JoinHandle<Result<T, SpoolError>>) -> Result<T, SpoolError> {
    match task.await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // Nobody aborts these but the runtime when it goes, and it takes us along.
        Err(_) => std::future::pending().await,
    }
}
