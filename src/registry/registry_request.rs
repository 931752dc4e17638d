//! Builds the requests for manifests, blobs, referrers and uploads, with the credentials for them.

use std::ops::Range;
use std::sync::Arc;

use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, RANGE};
use reqwest::{Method, Url};

use crate::oci::Reference;

use super::error::RegistryError;
use super::login::Credential;
use super::mirrors::PullSource;
use super::response_monitor::Watchdog;
use super::upload_body::RequestBody;
use super::{Credentials, Registries};

/// A request to one source's registry.
pub(super) struct RegistryRequest<'a> {
    /// The repository.
    pub(super) reference: &'a Reference,
    pub(super) method: Method,
    pub(super) address: Address,
    pub(super) access: Access,
    pub(super) headers: HeaderMap,
    pub(super) body: RequestBody,
    pub(super) credential: Option<Credential>,
    /// The content and the repository, for messages.
    pub(super) what: String,
    pub(super) watchdog: Arc<Watchdog>,
}

/// Where a request goes.
#[derive(Clone)]
pub(super) enum Address {
    /// Below `/v2/<repository>/`: `manifests/<tag or digest>`, `blobs/<digest>`.
    InRepository(String),
    /// As the registry named it: an upload, which may be on another host.
    Url(Url),
}

/// What a token must allow.
#[derive(Clone, Copy)]
pub(super) enum Access {
    Pull,
    Push,
}

impl Access {
    /// The actions of the token's scope (distribution's `spec/auth/scope.md`).
    pub(super) fn actions(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "pull,push",
        }
    }
}

impl Registries {
    /// A request for `content` at this path of the source's repository.
    pub(super) fn get<'a>(
        &self,
        content: &str,
        path: String,
        source: &'a PullSource,
        watchdog: Arc<Watchdog>,
    ) -> Result<RegistryRequest<'a>, RegistryError> {
        let credentials: &Credentials = &self.credentials;
        Ok(RegistryRequest {
            reference: &source.reference,
            method: Method::GET,
            address: Address::InRepository(path),
            access: Access::Pull,
            headers: HeaderMap::new(),
            body: RequestBody::None,
            credential: credentials.find(&source.reference)?,
            what: format!("{content} from `{}`", source.reference.repository()),
            watchdog,
        })
    }

    /// A request that uploads `content` to the source's repository, or prepares that.
    pub(super) fn push<'a>(
        &self,
        method: Method,
        content: &str,
        path: String,
        source: &'a PullSource,
        watchdog: Arc<Watchdog>,
    ) -> Result<RegistryRequest<'a>, RegistryError> {
        Ok(RegistryRequest {
            method,
            access: Access::Push,
            what: format!("{content} to `{}`", source.reference.repository()),
            ..self.get(content, path, source, watchdog)?
        })
    }
}

impl RegistryRequest<'_> {
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

    /// Sends it to the URL that the registry named.
    pub(super) fn to(mut self, url: Url) -> Self {
        self.address = Address::Url(url);
        self
    }

    /// Sends this content.
    pub(super) fn body(mut self, media_type: &str, body: RequestBody) -> Self {
        let media_type = HeaderValue::from_str(media_type).expect("media types are ASCII");
        self.headers.insert(CONTENT_TYPE, media_type);
        self.body = body;
        self
    }
}
