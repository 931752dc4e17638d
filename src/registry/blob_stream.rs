//! Downloads a blob or a range of it as a stream: requests it, checks the head of the answer, and hands out its bytes.
//!
//! The bytes are not verified; the spool compares their digest.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::CONTENT_RANGE;
use reqwest::{Response, StatusCode};
use tokio::time::Instant;

use crate::cancel::Cancel;
use crate::http::excerpt;
use crate::oci::Digest;

use super::Registries;
use super::attempts::Attempts;
use super::blob_connection::BlobConnection;
use super::content_range::ContentRange;
use super::error::RegistryError;
use super::http_client;
use super::mirror_speed::ActiveResponse;
use super::mirrors::PullSource;
use super::response_monitor::Watchdog;

/// At least this much has to arrive in each [`INTERVAL`], or the answer is dropped and another source is tried. At this rate a
/// layer of 10 MB would take two days. The idle timeout does not end such an answer: a byte now and then keeps the
/// connection from being idle.
const MIN_PROGRESS: u64 = 16 << 10;

/// The time spent waiting for bytes after which they are counted. Time in which no bytes are asked for does not count, because
/// the disk may be slower than the link.
const INTERVAL: Duration = Duration::from_secs(240);

/// The bytes of a blob that are requested: all, or a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobRange {
    /// Digest of the blob.
    pub blob: Digest,
    /// Its length in bytes, by the manifest.
    pub size: u64,
    /// Offset of the first byte.
    pub start: u64,
    /// Offset after the last byte, more than `start`.
    pub end: u64,
}

impl BlobRange {
    /// Whether it is less than the whole blob. Only then a range is requested.
    pub fn is_range(&self) -> bool {
        self.start > 0 || self.end < self.size
    }
}

/// The body of an answer whose head was checked.
#[derive(Debug)]
pub struct BlobStream {
    response: Response,
    /// Not free for another blob before the end of this one.
    _connection: Option<BlobConnection>,
    what: String,
    start: u64,
    end: u64,
    is_range: bool,
    /// Of the next byte.
    offset: u64,
    /// Time spent waiting in this interval, and the bytes received in it.
    waited: Duration,
    received: u64,
    watchdog: Arc<Watchdog>,
    _active: ActiveResponse,
}

impl Registries {
    /// Asks `source` for a blob or a range of it. Redirects are followed anew each time, because their URLs expire.
    ///
    /// A registry that ignores ranges sends the whole blob: the stream then starts at 0 ([`BlobStream::start`]) and goes on
    /// to the end of the blob ([`BlobStream::is_range`]). It never starts after `range.start`.
    pub async fn open_blob(
        &self,
        source: &PullSource,
        range: BlobRange,
        attempts: &mut Attempts,
        cancel: &Cancel,
    ) -> Result<BlobStream, RegistryError> {
        let (watchdog, blob) = (attempts.watchdog(), range.blob);
        let client = self.client(source)?;
        let get = self.get(&format!("blob {blob}"), format!("blobs/{blob}"), source, watchdog)?;
        let get = get.stored_bytes(range.is_range().then_some(range.start..range.end));
        let (response, connection) = client.get_on_own_connection(&get, cancel).await?;
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => {
                BlobStream::check(response, connection, get.what, range, get.watchdog)
            }
            StatusCode::RANGE_NOT_SATISFIABLE if range.is_range() => {
                Err(RegistryError::RangeNotSatisfiable {
                    what: get.what,
                    requested: range.start,
                })
            }
            _ => Err(client.error_response(response, &get, cancel).await),
        }
    }
}

impl BlobStream {
    fn check(
        response: Response,
        connection: Option<BlobConnection>,
        what: String,
        requested: BlobRange,
        watchdog: Arc<Watchdog>,
    ) -> Result<Self, RegistryError> {
        let wrong_length = |found| RegistryError::WrongLength {
            what: what.clone(),
            expected: requested.size,
            found,
        };
        let mut start = 0;
        let is_range = response.status() == StatusCode::PARTIAL_CONTENT;
        if is_range {
            let header = response.headers().get(CONTENT_RANGE);
            let text = header.and_then(|value| value.to_str().ok()).unwrap_or_default();
            let wrong_range = || RegistryError::WrongRange {
                what: what.clone(),
                requested: requested.start,
                sent: excerpt(text),
            };
            let range = ContentRange::parse(text).ok_or_else(wrong_range)?;
            if let Some(total) = range.total
                && total != requested.size
            {
                return Err(wrong_length(total));
            }
            if range.first > requested.start || range.last < requested.start || range.last >= requested.size {
                return Err(wrong_range());
            }
            if response
                .content_length()
                .is_some_and(|length| length != range.last - range.first + 1)
            {
                return Err(wrong_range());
            }
            start = range.first;
        } else if let Some(length) = response.content_length()
            && length != requested.size
        {
            return Err(wrong_length(length));
        }
        Ok(Self {
            response,
            _connection: connection,
            what,
            start,
            end: if is_range { requested.end } else { requested.size },
            is_range,
            offset: start,
            waited: Duration::ZERO,
            received: 0,
            _active: watchdog.begin_response(),
            watchdog,
        })
    }

    /// The offset in the blob of the first byte of the stream.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Whether it is the range that was requested, and not the whole blob.
    pub fn is_range(&self) -> bool {
        self.is_range
    }

    /// Ends the stream before this offset, if it would go on.
    pub fn end_at(&mut self, offset: u64) {
        self.end = self.end.min(offset);
    }

    /// The next bytes, never beyond the end of what was requested. Nothing at that end; an end before it is an error.
    pub async fn next(&mut self, cancel: &Cancel) -> Result<Option<Bytes>, RegistryError> {
        let left = self.end.saturating_sub(self.offset);
        if left == 0 {
            // Reading the end lets the connection be used again. More bytes are ignored; the digest of those before
            // decides.
            if self.response.content_length() == Some(0) {
                http_client::chunk(&mut self.response, &self.what, cancel).await?;
            }
            return Ok(None);
        }
        self.check_progress()?;
        let began = Instant::now();
        let chunk = http_client::chunk(&mut self.response, &self.what, cancel);
        let chunk = self.watchdog.chunk(&self.what, chunk).await?;
        self.waited += began.elapsed();
        match chunk {
            Some(mut bytes) => {
                bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                self.offset += bytes.len() as u64;
                self.received += bytes.len() as u64;
                Ok(Some(bytes))
            }
            None => Err(RegistryError::Short {
                what: self.what.clone(),
                missing: left,
            }),
        }
    }

    /// An error if too little arrived in the interval that is over.
    fn check_progress(&mut self) -> Result<(), RegistryError> {
        if self.waited < INTERVAL {
            return Ok(());
        }
        let received = std::mem::take(&mut self.received);
        let waited = std::mem::take(&mut self.waited);
        if received >= MIN_PROGRESS {
            return Ok(());
        }
        Err(RegistryError::Transport {
            what: self.what.clone(),
            why: format!("received only {received} bytes in {} seconds", waited.as_secs()),
            lasting: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream};

    use super::*;

    /// The bytes received until the stream ended, when a chunk of so many bytes arrives in every interval and the reader
    /// pauses after each.
    async fn drip(chunk: usize, interval: Duration, pause: Duration) -> (usize, Option<String>) {
        let size = 100 * chunk as u64;
        let chunks = stream::repeat(Bytes::from(vec![0; chunk])).take(100);
        let chunks = chunks.then(move |chunk| async move {
            tokio::time::sleep(interval).await;
            Ok::<_, std::io::Error>(chunk)
        });
        let response = Response::from(axum::http::Response::new(reqwest::Body::wrap_stream(chunks)));
        let whole = BlobRange {
            blob: Digest::of(b""),
            size,
            start: 0,
            end: size,
        };
        let mut stream =
            BlobStream::check(response, None, "it".into(), whole, Watchdog::idle()).expect("a body");
        let mut received = 0;
        loop {
            match stream.next(&Cancel::default()).await {
                Ok(Some(bytes)) => received += bytes.len(),
                Ok(None) => return (received, None),
                Err(error) => return (received, Some(error.to_string())),
            }
            tokio::time::sleep(pause).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_sends_a_byte_now_and_then_is_dropped_and_a_slow_one_is_not() {
        let seconds = Duration::from_secs;
        assert_eq!(
            drip(1, seconds(25), seconds(0)).await,
            (10, Some("it: received only 10 bytes in 250 seconds".into()))
        );
        assert_eq!(
            drip(2000, seconds(25), seconds(0)).await,
            (200_000, None),
            "80 bytes a second"
        );
        assert_eq!(
            drip(1, seconds(0), seconds(600)).await,
            (100, None),
            "the disk is slow, not the source"
        );
    }
}
