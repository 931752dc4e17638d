//! Builds the GET requests for manifests, configs, blobs and ranges of blobs, with the credentials for them.

use std::ops::Range;
use std::sync::Arc;

use reqwest::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderValue, RANGE};

use crate::oci::Reference;

use super::error::RegistryError;
use super::login::Credential;
use super::mirrors::PullSource;
use super::response_monitor::Watchdog;
use super::{Credentials, Registries};

/// A request for something below `/v2/<repository>/` of one source.
pub(super) struct GetRequest<'a> {
    /// The repository.
    pub(super) reference: &'a Reference,
    /// `manifests/<tag or digest>`, `blobs/<digest>`
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) credential: Option<Credential>,
    /// The content and the repository, for messages.
    pub(super) what: String,
    pub(super) watchdog: Arc<Watchdog>,
}

impl Registries {
    /// A request for `content` at this path of the source's repository.
    pub(super) fn get<'a>(
        &self,
        content: &str,
        path: String,
        source: &'a PullSource,
        watchdog: Arc<Watchdog>,
    ) -> Result<GetRequest<'a>, RegistryError> {
        let credentials: &Credentials = &self.credentials;
        Ok(GetRequest {
            reference: &source.reference,
            path,
            headers: HeaderMap::new(),
            credential: credentials.find(&source.reference)?,
            what: format!("{content} from `{}`", source.reference.repository()),
            watchdog,
        })
    }
}

impl GetRequest<'_> {
    /// Asks for one of these media types.
    pub(super) fn accept(mut self, media_types: &str) -> Self {
        let media_types = HeaderValue::from_str(media_types).expect("media types are ASCII");
        self.headers.insert(ACCEPT, media_types);
        self
    }

    /// Asks for the bytes as the registry stores them, without another compression around them: all, or a range that is not
    /// empty (RFC 9110, 14.2).
    pub(super) fn stored_bytes(mut self, range: Option<Range<u64>>) -> Self {
        let identity = HeaderValue::from_static("identity");
        self.headers.insert(ACCEPT_ENCODING, identity);
        if let Some(range) = range {
            let range = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
            let range = HeaderValue::try_from(range).expect("digits are ASCII");
            self.headers.insert(RANGE, range);
        }
        self
    }
}
