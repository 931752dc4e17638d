//! Uploads blobs and manifests to a repository.
//!
//! ```text
//! HEAD  blobs/<digest>                    is it there?
//! POST  blobs/uploads/                    → Location
//! PUT   <Location>&digest=<digest>        the whole blob, streamed from a file
//! PUT   manifests/<tag or digest>         `OCI-Subject` in the answer: the registry lists the referrers itself
//! ```
//!
//! The registry itself is asked, never a mirror. A blob whose upload failed is uploaded again from its beginning: registries
//! differ in what they keep of an interrupted upload, and deltas are small.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use reqwest::{Method, StatusCode};

use crate::cancel::Cancel;
use crate::oci::{Content, Digest, MAX_MANIFEST_SIZE, OCI_IMAGE_INDEX_MEDIA_TYPE, Reference};

use super::Registries;
use super::attempts::Attempts;
use super::error::RegistryError;
use super::mirrors::PullSource;
use super::referrers_index::ReferrerEntry;
use super::registries_conf::RegistriesConfError;
use super::resolve::{Answer, Item};
use super::upload_body::{FileBody, RequestBody};

/// The header with the subject's digest, in the answer of a registry that lists referrers itself.
const OCI_SUBJECT: &str = "oci-subject";

/// How often the index of referrers is written, if other clients write it at the same time.
const MAX_WRITES: usize = 5;

/// Uploads to one repository. Clones share its locks.
#[derive(Clone, Debug)]
pub struct Upload {
    registries: Arc<Registries>,
    target: PullSource,
    /// One manifest of this process at a time changes an index of referrers.
    referrers: Arc<tokio::sync::Mutex<()>>,
}

impl Registries {
    /// Uploads to the repository of this reference. Sends nothing.
    pub fn upload(self: &Arc<Self>, repository: &Reference) -> Result<Upload, RegistryError> {
        if repository.is_short() {
            return Err(RegistryError::NoRegistry(repository.to_string()));
        }
        Ok(Upload {
            registries: Arc::clone(self),
            target: self.push_target(repository)?,
            referrers: Arc::default(),
        })
    }

    /// As in containers/image, a push goes to the registry that the reference names: `location` and mirrors are for pulls.
    fn push_target(&self, repository: &Reference) -> Result<PullSource, RegistriesConfError> {
        let table = self.conf.find(&repository.repository());
        match table {
            Some(table) if table.blocked => Err(RegistriesConfError::Blocked {
                prefix: table.prefix.clone(),
                reference: repository.to_string(),
            }),
            table => Ok(PullSource {
                reference: repository.clone(),
                insecure: table.is_some_and(|table| table.endpoint.insecure),
            }),
        }
    }
}

impl Upload {
    /// Whether the repository has the blob.
    pub async fn has_blob(&self, digest: Digest, cancel: &Cancel) -> Result<bool, RegistryError> {
        let mut attempts = self.attempts(format!("blob {digest}"));
        loop {
            attempts.next(cancel).await?;
            match self.head_blob(digest, &mut attempts, cancel).await {
                Ok(has_blob) => {
                    attempts.succeeded();
                    return Ok(has_blob);
                }
                Err(error) => attempts.failed(refused(error)),
            }
        }
    }

    /// Uploads the first `size` bytes of `file`, whose digest this is.
    pub async fn put_blob(
        &self,
        digest: Digest,
        size: u64,
        file: File,
        cancel: &Cancel,
    ) -> Result<(), RegistryError> {
        let file = FileBody::new(file, size).map_err(|source| RegistryError::File {
            what: format!("blob {digest}"),
            source,
        })?;
        self.upload_blob(digest, RequestBody::File(file), cancel).await
    }

    /// Uploads a small blob, if the repository does not have it.
    pub async fn put_bytes(&self, bytes: Bytes, cancel: &Cancel) -> Result<(), RegistryError> {
        let digest = Digest::of(&bytes);
        match self.has_blob(digest, cancel).await? {
            true => Ok(()),
            false => self.upload_blob(digest, RequestBody::Bytes(bytes), cancel).await,
        }
    }

    async fn upload_blob(
        &self,
        digest: Digest,
        body: RequestBody,
        cancel: &Cancel,
    ) -> Result<(), RegistryError> {
        let mut attempts = self.attempts(format!("blob {digest}"));
        let mut is_first = true;
        loop {
            attempts.next(cancel).await?;
            // The answer of the last attempt may have been lost.
            let is_there = !std::mem::replace(&mut is_first, false)
                && matches!(self.head_blob(digest, &mut attempts, cancel).await, Ok(true));
            let sent = match is_there {
                true => Ok(()),
                false => self.send_blob(digest, &body, &mut attempts, cancel).await,
            };
            match sent {
                Ok(()) => {
                    attempts.succeeded();
                    return Ok(());
                }
                Err(error) => attempts.failed(refused(error)),
            }
        }
    }

    /// Uploads a manifest or an index under its digest, or under `tag`, and under the digest too. Returns whether the
    /// registry lists it among the referrers of its subject; otherwise it was added to the index of referrers here.
    pub async fn put_manifest(
        &self,
        tag: Option<&str>,
        media_type: &str,
        bytes: Bytes,
        cancel: &Cancel,
    ) -> Result<bool, RegistryError> {
        let entry = ReferrerEntry::of_manifest(&bytes).map_err(|error| RegistryError::ReferrersIndex {
            what: format!("manifest {}", Digest::of(&bytes)),
            why: error.to_string(),
        })?;
        let has_api = self.send_manifest(tag, media_type, bytes, cancel).await?;
        if let Some(entry) = entry.filter(|_| !has_api) {
            self.list_referrer(&entry, cancel).await?;
        }
        Ok(has_api)
    }

    /// The manifest or index with this tag or digest; nothing if there is none.
    pub async fn manifest(&self, name: &str, cancel: &Cancel) -> Result<Option<Content>, RegistryError> {
        let item = Item::manifest(name, name.parse().ok());
        let read = |answer: Result<Answer, RegistryError>| match answer {
            Ok(answer) => Ok(Some(answer.content)),
            Err(RegistryError::Status { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        };
        let attempts = self.attempts(item.name.clone());
        let (found, _) = self.registries.download(&item, attempts, read, cancel).await?;
        Ok(found)
    }

    /// Adds the entry to the index of its subject's referrers. The index is read again after each write, because another
    /// client may have written it in between; a registry has no way to prevent that.
    async fn list_referrer(&self, entry: &ReferrerEntry, cancel: &Cancel) -> Result<(), RegistryError> {
        let tag = entry.tag();
        let _one_at_a_time = self.referrers.lock().await;
        for _ in 0..MAX_WRITES {
            let current = self.manifest(&tag, cancel).await?;
            let current = current.as_ref().map(|content| content.bytes().as_ref());
            let extended = entry
                .add_to(current)
                .map_err(|error| RegistryError::ReferrersIndex {
                    what: format!("`{}`", self.target.reference.repository()),
                    why: error.to_string(),
                })?;
            let Some(index) = extended else {
                return Ok(());
            };
            self.send_manifest(Some(&tag), OCI_IMAGE_INDEX_MEDIA_TYPE, index, cancel)
                .await?;
        }
        Err(RegistryError::ReferrersIndex {
            what: format!("`{}`", self.target.reference.repository()),
            why: format!("other clients keep overwriting the index of referrers under the tag `{tag}`"),
        })
    }

    fn attempts(&self, what: String) -> Attempts {
        let images = vec![self.target.reference.repository()];
        self.registries.attempts(what, images, vec![self.target.clone()])
    }

    async fn head_blob(
        &self,
        digest: Digest,
        attempts: &mut Attempts,
        cancel: &Cancel,
    ) -> Result<bool, RegistryError> {
        let (path, content) = (format!("blobs/{digest}"), format!("blob {digest}"));
        let watchdog = attempts.watchdog();
        let request = self
            .registries
            .push(Method::HEAD, &content, path, &self.target, watchdog)?;
        let client = self.registries.client(&self.target)?;
        let response = client.get(&request, cancel).await?;
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(client.error_response(response, &request, cancel).await),
        }
    }

    async fn send_blob(
        &self,
        digest: Digest,
        body: &RequestBody,
        attempts: &mut Attempts,
        cancel: &Cancel,
    ) -> Result<(), RegistryError> {
        let content = format!("blob {digest}");
        let client = self.registries.client(&self.target)?;
        let begin = self.registries.push(
            Method::POST,
            &content,
            "blobs/uploads/".to_owned(),
            &self.target,
            attempts.watchdog(),
        )?;
        let what = begin.what.clone();
        let begun = client.push(begin, cancel).await?;
        let mut url = client.location(&begun, &what)?;
        url.query_pairs_mut().append_pair("digest", &digest.to_string());
        let send = self.registries.push(
            Method::PUT,
            &content,
            String::new(),
            &self.target,
            attempts.watchdog(),
        )?;
        let send = send.to(url).body("application/octet-stream", body.clone());
        client.push(send, cancel).await?;
        Ok(())
    }

    /// Returns whether the registry processed the subject.
    async fn send_manifest(
        &self,
        tag: Option<&str>,
        media_type: &str,
        bytes: Bytes,
        cancel: &Cancel,
    ) -> Result<bool, RegistryError> {
        let digest = Digest::of(&bytes);
        if bytes.len() as u64 > MAX_MANIFEST_SIZE {
            return Err(RegistryError::TooLarge {
                what: format!("manifest {digest}"),
                limit: MAX_MANIFEST_SIZE,
            });
        }
        let name = tag.map_or_else(|| digest.to_string(), str::to_owned);
        let content = format!("manifest `{name}`");
        let client = self.registries.client(&self.target)?;
        let mut attempts = self.attempts(content.clone());
        loop {
            attempts.next(cancel).await?;
            let path = format!("manifests/{name}");
            let request =
                self.registries
                    .push(Method::PUT, &content, path, &self.target, attempts.watchdog())?;
            let request = request.body(media_type, RequestBody::Bytes(bytes.clone()));
            match client.push(request, cancel).await {
                Ok(response) => {
                    attempts.succeeded();
                    return Ok(response.headers().contains_key(OCI_SUBJECT));
                }
                Err(error) => attempts.failed(refused(error)),
            }
        }
    }
}

/// Adds that the credentials may allow only pulls, if the registry refuses them.
fn refused(error: RegistryError) -> RegistryError {
    match error {
        RegistryError::Unauthorized {
            credential: Some(_), ..
        } => RegistryError::PushRefused(Box::new(error)),
        other => other,
    }
}
