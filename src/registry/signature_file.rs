//! Gets one signature by its URL: from a lookaside store, or from a store of release signatures.
//!
//! The request passes through the host's proxies, authorities, name servers and rate limit like those to registries, but
//! without the credentials of any registry; a user and a password in the URL itself are sent to its host. A `file:` URL is a
//! path of the host.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use reqwest::{StatusCode, Url};

use crate::cancel::Cancel;
use crate::http::shown_url;
use crate::oci::Reference;

use super::Registries;
use super::attempts::Attempts;
use super::error::RegistryError;
use super::error_response::error_response;
use super::http_client::{self, HttpClient};
use super::mirrors::PullSource;
use super::response_monitor::Watchdog;

/// How long one file may take as a whole, redirects included. A signature of 1 kB arrives in time at 10 bytes a second.
const FILE_TIMEOUT: Duration = Duration::from_secs(120);

impl Registries {
    /// Gets a file of at most `limit` bytes by `https:`, `http:` or `file:`, in one attempt of a bounded time. `None` if it
    /// does not exist.
    pub async fn get_signature_file(
        &self,
        url: &Url,
        limit: u64,
        cancel: &Cancel,
    ) -> Result<Option<Bytes>, RegistryError> {
        let mut attempts = self.file_attempts(url, Vec::new());
        let file = self
            .signature_file(url, limit, &attempts.watchdog(), cancel)
            .await;
        if file.is_ok() {
            attempts.succeeded();
        }
        file
    }

    /// The same with as many attempts as for a manifest, on behalf of these images.
    pub(super) async fn retry_signature_file(
        &self,
        url: &Url,
        limit: u64,
        images: Vec<String>,
        cancel: &Cancel,
    ) -> Result<Option<Bytes>, RegistryError> {
        let mut attempts = self.file_attempts(url, images);
        loop {
            attempts.next(cancel).await?;
            match self
                .signature_file(url, limit, &attempts.watchdog(), cancel)
                .await
            {
                Ok(file) => {
                    attempts.succeeded();
                    return Ok(file);
                }
                Err(error) => attempts.failed(error),
            }
        }
    }

    /// The attempts at a single source, the URL's host: a `Retry-After` concerns all files of that host.
    fn file_attempts(&self, url: &Url, images: Vec<String>) -> Attempts {
        let name = format!("{}/signatures", host_of(url));
        // A host name that is not valid for a registry, such as one with `_`.
        let name = name
            .parse::<Reference>()
            .or_else(|_| "localhost/signatures".parse());
        let source = name.map(|reference| PullSource {
            reference,
            insecure: false,
        });
        self.attempts(describe(url), images, source.into_iter().collect())
    }

    /// One attempt.
    async fn signature_file(
        &self,
        url: &Url,
        limit: u64,
        watchdog: &Watchdog,
        cancel: &Cancel,
    ) -> Result<Option<Bytes>, RegistryError> {
        let timeout = FILE_TIMEOUT + self.limit.slack();
        let file = async {
            match url.scheme() {
                "file" => self.read_signature_file(url, limit).await,
                "http" | "https" => self.download_signature_file(url, limit, watchdog, cancel).await,
                other => Err(RegistryError::SignatureUrl {
                    what: describe(url),
                    why: format!("the scheme `{other}` is not supported"),
                }),
            }
        };
        tokio::time::timeout(timeout, file).await.unwrap_or_else(|_| {
            Err(RegistryError::Transport {
                what: describe(url),
                why: format!("the answer was not complete after {} seconds", timeout.as_secs()),
                lasting: false,
            })
        })
    }

    async fn download_signature_file(
        &self,
        url: &Url,
        limit: u64,
        watchdog: &Watchdog,
        cancel: &Cancel,
    ) -> Result<Option<Bytes>, RegistryError> {
        let what = describe(url);
        let http = self.file_client(url)?;
        // reqwest moves user and password from the URL into a header, which it drops when a redirect leaves the host.
        let request = http.following.get(url.clone());
        let response = http.send(request, &what, watchdog, cancel).await;
        let response = response.map_err(|failed| failed.error)?;
        match response.status() {
            StatusCode::OK => http_client::body(response, limit, &what, watchdog, cancel)
                .await
                .map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(error_response(response, &what, watchdog, cancel).await),
        }
    }

    /// The client for the URL's host. `certs.d` applies as for a registry of that name.
    fn file_client(&self, url: &Url) -> Result<Arc<HttpClient>, RegistryError> {
        let host = host_of(url);
        let mut clients = self.file_clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&host) {
            return Ok(Arc::clone(client));
        }
        let client = Arc::new(self.http_client(&host, false)?);
        clients.insert(host, Arc::clone(&client));
        Ok(client)
    }

    async fn read_signature_file(&self, url: &Url, limit: u64) -> Result<Option<Bytes>, RegistryError> {
        let path = self.host_path(url)?;
        let failed = |source| RegistryError::SignatureFile {
            path: path.clone(),
            source,
        };
        let reading = path.clone();
        let read = tokio::task::spawn_blocking(move || read(&reading, limit)).await;
        let read = read.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
        match read.map_err(failed)? {
            Some(bytes) if bytes.len() as u64 > limit => Err(RegistryError::TooLarge {
                what: describe(url),
                limit,
            }),
            bytes => Ok(bytes.map(Bytes::from)),
        }
    }

    /// The path at which this program finds the file of a `file:` URL.
    pub(super) fn host_path(&self, url: &Url) -> Result<PathBuf, RegistryError> {
        // Another host than this one in a `file:` URL is a mistake: `file://var/lib` for `file:///var/lib`.
        let path = url.to_file_path().map_err(|()| RegistryError::SignatureUrl {
            what: describe(url),
            why: "it is not a path of this host\nhint: let it begin with `file:///`".to_owned(),
        })?;
        Ok(self.host_root.join(path.strip_prefix("/").unwrap_or(&path)))
    }
}

/// `host[:port]`, as a registry is named.
fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

fn describe(url: &Url) -> String {
    format!("signature `{}`", shown_url(url))
}

/// Reads at most one byte more than `limit`; `None` if there is no file.
fn read(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let metadata = match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        metadata => metadata?,
    };
    // Opening a pipe would wait for its writer.
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}
