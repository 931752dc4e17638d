//! A blob on its way: where the bytes that a registry sends really begin, and how many there should be.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};
use reqwest::{Response, StatusCode};
use tokio::time::Instant;

use crate::cancel::Cancel;
use crate::oci::Digest;

use super::Registries;
use super::blob_connection::BlobConnection;
use super::error::{RegistryError, printable};
use super::http_client;
use super::mirror_speed::Busy;
use super::mirrors::PullSource;
use super::registry_client::Get;
use super::retry::Attempts;
use super::watchdog::Watch;

/// At least this much has to come in each [`SPELL`], or the answer is dropped and another source has its turn. At this
/// rate a layer of 10 MB would take two days; a source that is slower than that means it, for a byte now and then
/// keeps a connection from being idle.
const LEAST: u64 = 16 << 10;

/// How long we wait for bytes before they are weighed. Time in which nobody asks for bytes does not count, for the disk
/// may be the slower side.
const SPELL: Duration = Duration::from_secs(240);

/// What is wanted of a blob: all of it, or a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Digest of the blob.
    pub blob: Digest,
    /// Its length in bytes, by the manifest.
    pub size: u64,
    /// Offset of the first byte.
    pub from: u64,
    /// Offset after the last one, more than `from`. No range is asked for if it is all of the blob.
    pub until: u64,
}

impl Wanted {
    /// Whether it is less than the whole blob.
    pub fn is_range(&self) -> bool {
        self.from > 0 || self.until < self.size
    }
}

/// The body of an answer, its head checked.
#[derive(Debug)]
pub struct BlobStream {
    response: Response,
    /// Not free for another blob before the end of this one.
    _lane: Option<BlobConnection>,
    what: String,
    start: u64,
    end: u64,
    is_range: bool,
    /// How far it came.
    offset: u64,
    /// Time spent waiting in this spell, and what came in it.
    waited: Duration,
    came: u64,
    watch: Arc<Watch>,
    _busy: Busy,
}

impl Registries {
    /// Asks `source` for a blob. Redirects are followed anew each time, for their URLs expire.
    ///
    /// The answer may begin before `wanted.from`, at 0 if the registry knows no ranges: see [`BlobStream::start`].
    /// It never begins after it. And then it goes on to the end of the blob: see [`BlobStream::is_range`].
    pub async fn open_blob(
        &self,
        source: &PullSource,
        wanted: Wanted,
        attempts: &mut Attempts,
        cancel: &Cancel,
    ) -> Result<BlobStream, RegistryError> {
        let watch = attempts.watch();
        let what = format!("blob {} from `{}`", wanted.blob, source.reference.repository());
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if wanted.is_range() {
            let range = format!("bytes={}-{}", wanted.from, wanted.until.saturating_sub(1));
            headers.insert(RANGE, HeaderValue::try_from(range).expect("digits are ASCII"));
        }
        let client = self.client(source)?;
        let credential = self.credentials.find(&source.reference)?;
        let get = Get {
            reference: &source.reference,
            path: format!("blobs/{}", wanted.blob),
            headers,
            credential: credential.as_ref(),
            what: &what,
            watch: &watch,
        };
        let (response, lane) = client.get_on_lane(&get, cancel).await?;
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => {
                BlobStream::check(response, lane, what, wanted, Arc::clone(&watch))
            }
            StatusCode::RANGE_NOT_SATISFIABLE if wanted.is_range() => {
                Err(RegistryError::RangeNotSatisfiable {
                    what,
                    asked: wanted.from,
                })
            }
            _ => Err(client.refusal(response, &get, cancel).await),
        }
    }
}

impl BlobStream {
    fn check(
        response: Response,
        lane: Option<BlobConnection>,
        what: String,
        wanted: Wanted,
        watch: Arc<Watch>,
    ) -> Result<Self, RegistryError> {
        let wrong_length = |found| RegistryError::WrongLength {
            what: what.clone(),
            expected: wanted.size,
            found,
        };
        let mut start = 0;
        let is_range = response.status() == StatusCode::PARTIAL_CONTENT;
        if is_range {
            let header = response.headers().get(CONTENT_RANGE);
            let text = header.and_then(|value| value.to_str().ok()).unwrap_or_default();
            let wrong_range = || RegistryError::WrongRange {
                what: what.clone(),
                asked: wanted.from,
                given: printable(text),
            };
            let range = ContentRange::parse(text).ok_or_else(wrong_range)?;
            if let Some(total) = range.total
                && total != wanted.size
            {
                return Err(wrong_length(total));
            }
            if range.first > wanted.from || range.last < wanted.from || range.last >= wanted.size {
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
            && length != wanted.size
        {
            return Err(wrong_length(length));
        }
        Ok(Self {
            response,
            _lane: lane,
            what,
            start,
            end: if is_range { wanted.until } else { wanted.size },
            is_range,
            offset: start,
            waited: Duration::ZERO,
            came: 0,
            _busy: watch.rates().busy(),
            watch,
        })
    }

    /// The offset in the blob of the first byte that comes.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Whether it is the range that was wanted, and not the whole blob.
    pub fn is_range(&self) -> bool {
        self.is_range
    }

    /// Ends it before this offset, if it would go on.
    pub fn end_at(&mut self, offset: u64) {
        self.end = self.end.min(offset);
    }

    /// The next bytes, never beyond the end of what is wanted. Nothing at that end; an end before it is an error.
    pub async fn next(&mut self, cancel: &Cancel) -> Result<Option<Bytes>, RegistryError> {
        let left = self.end.saturating_sub(self.offset);
        if left == 0 {
            // Reading the end lets the connection be used again. Whatever comes is not wanted; the digest of
            // what we have decides.
            if self.response.content_length() == Some(0) {
                http_client::chunk(&mut self.response, &self.what, cancel).await?;
            }
            return Ok(None);
        }
        self.weigh()?;
        let asked = Instant::now();
        let chunk = http_client::chunk(&mut self.response, &self.what, cancel);
        let chunk = self.watch.piece(&self.what, chunk).await?;
        self.waited += asked.elapsed();
        match chunk {
            Some(mut bytes) => {
                bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                self.offset += bytes.len() as u64;
                self.came += bytes.len() as u64;
                Ok(Some(bytes))
            }
            None => Err(RegistryError::Short {
                what: self.what.clone(),
                missing: left,
            }),
        }
    }

    /// Ends a spell, if it is over.
    fn weigh(&mut self) -> Result<(), RegistryError> {
        if self.waited < SPELL {
            return Ok(());
        }
        let came = std::mem::take(&mut self.came);
        let waited = std::mem::take(&mut self.waited);
        if came >= LEAST {
            return Ok(());
        }
        Err(RegistryError::Transport {
            what: self.what.clone(),
            why: format!("no more than {came} bytes came in {} seconds", waited.as_secs()),
            lasting: false,
        })
    }
}

/// `bytes 0-9/20`, `bytes 0-9/*`
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContentRange {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) total: Option<u64>,
}

impl ContentRange {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (unit, rest) = text.trim().split_once(' ')?;
        let (range, total) = rest.trim().split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        let total = match total {
            "*" => None,
            digits => Some(digits.parse().ok()?),
        };
        (unit.eq_ignore_ascii_case("bytes") && first <= last).then_some(Self { first, last, total })
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream};

    use super::*;

    /// What came until the stream ended, when a piece of so many bytes comes in every interval and `pause` is made
    /// after each.
    async fn drip(piece: usize, interval: Duration, pause: Duration) -> (usize, Option<String>) {
        let size = 100 * piece as u64;
        let pieces = stream::repeat(Bytes::from(vec![0; piece])).take(100);
        let pieces = pieces.then(move |piece| async move {
            tokio::time::sleep(interval).await;
            Ok::<_, std::io::Error>(piece)
        });
        let response = Response::from(axum::http::Response::new(reqwest::Body::wrap_stream(pieces)));
        let wanted = Wanted {
            blob: Digest::of(b""),
            size,
            from: 0,
            until: size,
        };
        let mut stream =
            BlobStream::check(response, None, "it".into(), wanted, Watch::idle()).expect("a body");
        let mut came = 0;
        loop {
            match stream.next(&Cancel::default()).await {
                Ok(Some(bytes)) => came += bytes.len(),
                Ok(None) => return (came, None),
                Err(error) => return (came, Some(error.to_string())),
            }
            tokio::time::sleep(pause).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_sends_a_byte_now_and_then_is_dropped_and_a_slow_one_is_not() {
        let seconds = Duration::from_secs;
        assert_eq!(
            drip(1, seconds(25), seconds(0)).await,
            (10, Some("it: no more than 10 bytes came in 250 seconds".into()))
        );
        assert_eq!(
            drip(2000, seconds(25), seconds(0)).await,
            (200_000, None),
            "80 bytes a second"
        );
        assert_eq!(
            drip(1, seconds(0), seconds(600)).await,
            (100, None),
            "it is our disk that is slow"
        );
    }

    #[test]
    fn content_range_is_read_strictly() {
        let range = |first, last, total| Some(ContentRange { first, last, total });
        for (text, expected) in [
            ("bytes 5-9/10", range(5, 9, Some(10))),
            ("Bytes 0-0/*", range(0, 0, None)),
            ("bytes 9-5/10", None),
            ("bytes */10", None),
            ("bytes 5-9", None),
            ("items 5-9/10", None),
            ("bytes 5-99999999999999999999/10", None),
            ("", None),
        ] {
            assert_eq!(ContentRange::parse(text), expected, "{text}");
        }
    }
}
