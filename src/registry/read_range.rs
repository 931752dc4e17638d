//! A few bytes of a blob, where that is enough to know something of it.

use std::ops::Range;

use bytes::Bytes;
use reqwest::StatusCode;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};

use crate::cancel::Cancel;
use crate::oci::Digest;

use super::Registries;
use super::blob_stream::ContentRange;
use super::error::RegistryError;
use super::http_client;
use super::mirrors::PullSource;
use super::registry_client::Get;

impl Registries {
    /// Asks `source` once for the bytes of `range`, which must not be empty, of a blob of `size` bytes. None if it does
    /// not give just these: a body that is all of the blob is not read.
    ///
    /// Nothing verifies the bytes.
    pub async fn read_range(
        &self,
        source: &PullSource,
        blob: Digest,
        size: u64,
        range: Range<u64>,
        cancel: &Cancel,
    ) -> Result<Option<Bytes>, RegistryError> {
        let what = format!("bytes of blob {blob} from `{}`", source.reference.repository());
        let asked = ContentRange {
            first: range.start,
            last: range.end.saturating_sub(1),
            total: Some(size),
        };
        let header = format!("bytes={}-{}", asked.first, asked.last);
        let headers = HeaderMap::from_iter([
            (ACCEPT_ENCODING, HeaderValue::from_static("identity")),
            (RANGE, HeaderValue::try_from(header).expect("digits are ASCII")),
        ]);
        let watch = self
            .attempts(what.clone(), Vec::new(), vec![source.clone()])
            .watch();
        let client = self.client(source)?;
        let credential = self.credentials.find(&source.reference)?;
        let get = Get {
            reference: &source.reference,
            path: format!("blobs/{blob}"),
            headers,
            credential: credential.as_ref(),
            what: &what,
            watch: &watch,
        };
        let response = client.get(&get, cancel).await?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {}
            StatusCode::OK | StatusCode::RANGE_NOT_SATISFIABLE => return Ok(None),
            _ => return Err(client.refusal(response, &get, cancel).await),
        }
        let given = response.headers().get(CONTENT_RANGE);
        let given = given.and_then(|value| ContentRange::parse(value.to_str().ok()?));
        let is_it = given.is_some_and(|given| {
            (given.first, given.last) == (asked.first, asked.last)
                && given.total.is_none_or(|total| total == size)
        });
        if !is_it {
            return Ok(None);
        }
        let length = range.end - range.start;
        let bytes = http_client::body(response, length, &what, &watch, cancel).await?;
        Ok(Some(bytes).filter(|bytes| bytes.len() as u64 == length))
    }
}
