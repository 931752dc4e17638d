//! Reads a few bytes of a blob into memory, without verifying them, for estimates and diagnoses.

use std::ops::Range;

use bytes::Bytes;
use reqwest::StatusCode;
use reqwest::header::CONTENT_RANGE;

use crate::cancel::Cancel;
use crate::oci::Digest;

use super::Registries;
use super::content_range::ContentRange;
use super::error::RegistryError;
use super::http_client;
use super::mirrors::PullSource;

impl Registries {
    /// Asks `source` once for a range, which must not be empty, of a blob of `size` bytes. None if it does not send just this
    /// range; a body with the whole blob is not read.
    ///
    /// The bytes are not verified.
    pub async fn read_range(
        &self,
        source: &PullSource,
        blob: Digest,
        size: u64,
        range: Range<u64>,
        cancel: &Cancel,
    ) -> Result<Option<Bytes>, RegistryError> {
        let content = format!("bytes of blob {blob}");
        let mut attempts = self.attempts(content.clone(), Vec::new(), vec![source.clone()]);
        let watchdog = attempts.watchdog();
        let client = self.client(source)?;
        let get = self.get(&content, format!("blobs/{blob}"), source, watchdog)?;
        let get = get.stored_bytes(Some(range.clone()));
        let response = client.get(&get, cancel).await?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {}
            StatusCode::OK | StatusCode::RANGE_NOT_SATISFIABLE => return Ok(None),
            _ => return Err(client.error_response(response, &get, cancel).await),
        }
        let sent = response.headers().get(CONTENT_RANGE);
        let sent = sent.and_then(|value| ContentRange::parse(value.to_str().ok()?));
        let is_range = sent.is_some_and(|sent| {
            (sent.first, sent.last) == (range.start, range.end.saturating_sub(1))
                && sent.total.is_none_or(|total| total == size)
        });
        if !is_range {
            return Ok(None);
        }
        let length = range.end - range.start;
        let bytes = http_client::body(response, length, &get.what, &get.watchdog, cancel).await?;
        Ok(Some(bytes).filter(|bytes| bytes.len() as u64 == length))
    }
}
