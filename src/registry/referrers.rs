//! Lists the referrers of an image: the artifacts whose subject is its manifest.
//!
//! ```text
//! GET /v2/<repository>/referrers/<digest>?artifactType=<type>    and the pages that `Link` names
//! GET /v2/<repository>/manifests/sha256-<hex>                    where the registry has no such API
//! ```
//!
//! If media have the index under that tag, no registry is asked. The sources of the image are asked in their order, until one has a referrer of the requested type. The tag is requested
//! from the source that has no such API, whatever registries.conf states about tags: its name follows from the digest, and
//! mirrors of OpenShift releases usually serve digests only.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::header::{CONTENT_TYPE, HeaderMap, LINK};
use reqwest::{Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::cancel::Cancel;
use crate::oci::{Digest, MAX_MANIFEST_SIZE, ManifestError, OCI_IMAGE_INDEX_MEDIA_TYPE, Reference};

use super::Registries;
use super::attempts::Attempts;
use super::error::RegistryError;
use super::http_client;
use super::mirrors::PullSource;
use super::referrers_index::referrers_tag;
use super::registry_client::RegistryClient;
use super::registry_request::{Address, RegistryRequest};

/// How many pages of a list are read at most.
const MAX_PAGES: usize = 64;

/// How many referrers of the requested type are kept at most.
const MAX_REFERRERS: usize = 256;

/// An artifact whose subject is the image. Untrusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referrer {
    /// Digest of its manifest or index.
    pub digest: Digest,
    /// Length of its manifest or index in bytes.
    pub size: u64,
    /// The media type of its manifest or index.
    pub media_type: String,
    /// What kind of artifact it is.
    pub artifact_type: String,
    /// The annotations of its manifest or index.
    pub annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    #[serde(borrow)]
    manifests: Vec<&'a RawValue>,
    artifact_type: Option<String>,
    subject: Option<Subject>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Subject {
    digest: Digest,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    artifact_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    digest: Digest,
    size: u64,
    media_type: String,
    artifact_type: String,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

impl Registries {
    /// The referrers of this artifact type of the manifest `subject`, which the repository of `image` has, or a mirror of
    /// it. None if no source that answers has any.
    ///
    /// The sources are those of `image` as it is, as in [`Registries::resolve`].
    pub async fn referrers(
        &self,
        image: &Reference,
        subject: Digest,
        artifact_type: &str,
        cancel: &Cancel,
    ) -> Result<Vec<Referrer>, RegistryError> {
        if let Some(index) = self.media_referrers(image, subject).await {
            let mut list = Referrers::new(subject, artifact_type);
            match list.add(&index) {
                Ok(()) if !list.found.is_empty() => return Ok(list.found),
                Ok(()) => {}
                Err(error) => tracing::warn!("cannot use the referrers of `{image}` on a medium: {error}"),
            }
        }
        let what = format!("the referrers of `{image}`");
        let mut attempts = self.attempts(what, vec![image.to_string()], self.sources(image)?);
        let mut has_answer = false;
        loop {
            let source = match attempts.next_now(cancel) {
                Ok(Some(source)) => source,
                Err(stopped @ RegistryError::Stopped(_)) => return Err(stopped),
                // A site without access to the original registry must not wait for it.
                Ok(None) | Err(_) if has_answer => {
                    attempts.succeeded();
                    return Ok(Vec::new());
                }
                Ok(None) => {
                    attempts.pause(cancel).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let list = self.referrers_at(&source, subject, artifact_type, &mut attempts, cancel);
            match list.await {
                Ok(list) if list.is_empty() => {
                    has_answer = true;
                    attempts.has_nothing();
                }
                Ok(list) => {
                    attempts.succeeded();
                    return Ok(list);
                }
                Err(error) => attempts.failed(error),
            }
        }
    }

    async fn referrers_at(
        &self,
        source: &PullSource,
        subject: Digest,
        artifact_type: &str,
        attempts: &mut Attempts,
        cancel: &Cancel,
    ) -> Result<Vec<Referrer>, RegistryError> {
        let client = self.client(source)?;
        let watchdog = attempts.watchdog();
        let mut query = Url::parse("http://localhost/").expect("a URL");
        query.query_pairs_mut().append_pair("artifactType", artifact_type);
        let path = format!("referrers/{subject}?{}", query.query().unwrap_or_default());
        let request = self.get("referrers", path, source, watchdog)?;
        let mut list = Referrers::new(subject, artifact_type);
        if list.read_pages(&client, request, cancel).await? {
            return Ok(list.found);
        }
        let path = format!("manifests/{}", referrers_tag(subject));
        let request = self.get("referrers", path, source, attempts.watchdog())?;
        list.read_tag(&client, request, cancel).await?;
        Ok(list.found)
    }
}

/// The referrers that were read so far.
struct Referrers<'a> {
    subject: Digest,
    artifact_type: &'a str,
    found: Vec<Referrer>,
    seen: BTreeSet<Digest>,
    /// How many bytes may still be received.
    rest: u64,
}

impl<'a> Referrers<'a> {
    fn new(subject: Digest, artifact_type: &'a str) -> Self {
        Self {
            subject,
            artifact_type,
            found: Vec::new(),
            seen: BTreeSet::new(),
            rest: MAX_MANIFEST_SIZE,
        }
    }

    /// Reads the pages of the API; false if the registry has no such API.
    async fn read_pages(
        &mut self,
        client: &RegistryClient,
        request: RegistryRequest<'_>,
        cancel: &Cancel,
    ) -> Result<bool, RegistryError> {
        let mut request = request.accept(OCI_IMAGE_INDEX_MEDIA_TYPE);
        for _ in 0..MAX_PAGES {
            let response = client.get(&request, cancel).await?;
            match response.status() {
                StatusCode::OK if is_index(response.headers()) => {}
                // A page of some web server.
                StatusCode::OK => return Ok(false),
                StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => return Ok(false),
                _ => return Err(client.error_response(response, &request, cancel).await),
            }
            let next = next_page(&response);
            self.read(response, &request, cancel).await?;
            match next.filter(|url| client.is_own(url) && self.found.len() < MAX_REFERRERS) {
                Some(next) => request.address = Address::Url(next),
                None => return Ok(true),
            }
        }
        Ok(true)
    }

    /// Reads the index under the referrers tag, if there is one.
    async fn read_tag(
        &mut self,
        client: &RegistryClient,
        request: RegistryRequest<'_>,
        cancel: &Cancel,
    ) -> Result<(), RegistryError> {
        let request = request.accept(OCI_IMAGE_INDEX_MEDIA_TYPE);
        let response = client.get(&request, cancel).await?;
        match response.status() {
            StatusCode::OK => self.read(response, &request, cancel).await,
            StatusCode::NOT_FOUND => Ok(()),
            _ => Err(client.error_response(response, &request, cancel).await),
        }
    }

    /// Reads one page. A registry may ignore the filter, so it is applied here.
    async fn read(
        &mut self,
        response: Response,
        request: &RegistryRequest<'_>,
        cancel: &Cancel,
    ) -> Result<(), RegistryError> {
        let (what, watchdog) = (&request.what, &request.watchdog);
        let bytes = http_client::body(response, self.rest, what, watchdog, cancel).await?;
        self.rest -= bytes.len() as u64;
        self.add(&bytes).map_err(|error| RegistryError::Manifest {
            reference: what.clone(),
            source: ManifestError::not_json(error),
        })
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), serde_json::Error> {
        let page: Page<'_> = serde_json::from_slice(bytes)?;
        let own_subject = page.subject.map(|subject| subject.digest);
        if own_subject == Some(self.subject) && page.artifact_type.as_deref() == Some(self.artifact_type) {
            // A copy of an OCI layout may have the index itself under the tag.
            self.push(Referrer {
                digest: Digest::of(bytes),
                size: bytes.len() as u64,
                media_type: OCI_IMAGE_INDEX_MEDIA_TYPE.to_owned(),
                artifact_type: self.artifact_type.to_owned(),
                annotations: page.annotations.unwrap_or_default(),
            });
            return Ok(());
        }
        for entry in page.manifests {
            let kind: Kind = serde_json::from_str(entry.get())?;
            if kind.artifact_type.as_deref() != Some(self.artifact_type) {
                continue;
            }
            let entry: Entry = serde_json::from_str(entry.get())?;
            self.push(Referrer {
                digest: entry.digest,
                size: entry.size,
                media_type: entry.media_type,
                artifact_type: entry.artifact_type,
                annotations: entry.annotations.unwrap_or_default(),
            });
        }
        Ok(())
    }

    fn push(&mut self, referrer: Referrer) {
        if self.found.len() < MAX_REFERRERS && self.seen.insert(referrer.digest) {
            self.found.push(referrer);
        }
    }
}

fn is_index(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.unwrap_or_default().split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case(OCI_IMAGE_INDEX_MEDIA_TYPE)
}

/// The URL of the next page: `Link: <url>; rel="next"` (RFC 8288).
fn next_page(response: &Response) -> Option<Url> {
    let links = response.headers().get_all(LINK).iter();
    let mut links = links.filter_map(|value| value.to_str().ok());
    links.find_map(|link| {
        let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
        let is_next = parameters.split(';').any(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or_default();
            let value = value.trim().trim_matches('"');
            name.trim().eq_ignore_ascii_case("rel") && value.eq_ignore_ascii_case("next")
        });
        is_next.then(|| response.url().join(target).ok()).flatten()
    })
}
