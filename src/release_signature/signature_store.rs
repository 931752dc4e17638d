//! Downloads a release's signatures from a store: `<store>/sha256=<hex>/signature-<N>`.
//!
//! The numbers begin at 1, and the first that does not exist ends the search. This is the layout of containers/image
//! (`docs/signature-protocols.md`) as the cluster-version operator uses it (library-go `pkg/verify/store/sigstore`).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Url;

use super::examination::SIGNATURE_LIMIT;
use crate::cancel::Cancel;
use crate::http::shown_url;
use crate::oci::Digest;
use crate::registry::{Kind, Registries, RegistryError};
use crate::spec::shown;

/// The highest number (`maxSignatureSearch` - 1).
const LAST_NUMBER: u32 = 9;

/// The pauses before the retries, for all signatures of a store together.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// The URL of a signature store. It may contain a password, which is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(Url);

/// A text that is not the URL of a signature store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the URL of a signature store: {why}\nhint: begin with `https://`, `http://` or `file://`")]
pub struct StoreUrlError {
    why: String,
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        // The text may contain a password, so it is not quoted.
        let error = |why: String| StoreUrlError { why };
        let url = Url::parse(text.trim()).map_err(|why| error(why.to_string()))?;
        match url.scheme() {
            "http" | "https" | "file" => Ok(Self(url)),
            scheme => Err(error(format!("the scheme is `{}`", shown(scheme)))),
        }
    }
}

impl StoreUrl {
    /// The URL of a signature. Parameters of the store's URL are kept, as the cluster-version operator does.
    fn signature(&self, digest: Digest, number: u32) -> Url {
        let mut url = self.0.clone();
        // Only a URL without a path, such as `mailto:`, has no segments; the schemes exclude it.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments
                .pop_if_empty()
                .push(&format!("sha256={}", digest.hex()))
                .push(&format!("signature-{number}"));
        }
        url
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown_url(&self.0))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown_url(&self.0))
    }
}

/// What the search in a store found next.
#[derive(Debug)]
pub(super) enum Found {
    /// A signature and its URL.
    Signature(Bytes, String),
    /// A signature that is too large to be read.
    TooLarge(String),
    /// The store has no signature of this URL, and so no later one. `is_answer` is false if an earlier one is unknown.
    NoMore { url: String, is_answer: bool },
    /// A signature could not be downloaded.
    Failed(String),
}

/// The search for a release's signatures in one store.
#[derive(Debug)]
pub(super) struct StoreSearch<'s> {
    store: &'s StoreUrl,
    digest: Digest,
    number: u32,
    retries: usize,
    has_failed: bool,
}

impl<'s> StoreSearch<'s> {
    pub(super) fn new(store: &'s StoreUrl, digest: Digest) -> Self {
        Self {
            store,
            digest,
            number: 0,
            retries: 0,
            has_failed: false,
        }
    }

    /// Downloads the next signature. `None` after the last one.
    pub(super) async fn next(&mut self, registries: &Registries, cancel: &Cancel) -> Option<Found> {
        loop {
            if self.number >= LAST_NUMBER {
                return None;
            }
            self.number += 1;
            let url = self.store.signature(self.digest, self.number);
            let shown = || format!("`{}`", shown_url(&url));
            match self.download(&url, registries, cancel).await {
                // An empty file is no signature, and the next number may be one.
                Ok(Some(bytes)) if bytes.is_empty() => {}
                Ok(Some(bytes)) => return Some(Found::Signature(bytes, shown())),
                Ok(None) => {
                    self.number = LAST_NUMBER;
                    return Some(Found::NoMore {
                        url: shown(),
                        is_answer: !self.has_failed,
                    });
                }
                Err(RegistryError::TooLarge { .. }) => return Some(Found::TooLarge(shown())),
                Err(error) => {
                    self.has_failed = true;
                    // A server that answers an error may answer otherwise for the next number.
                    if !matches!(
                        error,
                        RegistryError::Status { .. } | RegistryError::Unauthorized { .. }
                    ) {
                        self.number = LAST_NUMBER;
                    }
                    return Some(Found::Failed(error.to_string()));
                }
            }
        }
    }

    /// Downloads one signature, with retries. `None` if it does not exist.
    async fn download(
        &mut self,
        url: &Url,
        registries: &Registries,
        cancel: &Cancel,
    ) -> Result<Option<Bytes>, RegistryError> {
        loop {
            let attempt = registries.get_signature_file(url, SIGNATURE_LIMIT as u64, cancel);
            let error = match attempt.await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            let pauses = PAUSES.get(self.retries);
            let Some(pause) = pauses.filter(|_| error.kind() == Kind::Network) else {
                return Err(error);
            };
            self.retries += 1;
            cancel.sleep(*pause).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_signature_is_below_the_store_s_path() {
        let digest = Digest::of(b"");
        let hex = digest.hex();
        for (store, url) in [
            (
                "https://mirror.openshift.com/pub/signatures/openshift/release",
                format!(
                    "https://mirror.openshift.com/pub/signatures/openshift/release/sha256={hex}/signature-1"
                ),
            ),
            (
                "https://host/a/",
                format!("https://host/a/sha256={hex}/signature-1"),
            ),
            (
                " http://host:8080\n",
                format!("http://host:8080/sha256={hex}/signature-1"),
            ),
            (
                "https://user:secret@host/a?token=b",
                format!("https://user:secret@host/a/sha256={hex}/signature-1?token=b"),
            ),
            (
                "file:///var/lib/signatures",
                format!("file:///var/lib/signatures/sha256={hex}/signature-1"),
            ),
        ] {
            let store: StoreUrl = store.parse().unwrap();
            assert_eq!(store.signature(digest, 1).as_str(), url);
        }
    }

    #[test]
    fn a_store_without_one_of_the_three_schemes_is_refused() {
        for text in [
            "",
            "mirror.openshift.com",
            "ftp://host/a",
            "https://",
            "/var/lib/signatures",
        ] {
            let error = text.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.starts_with("not the URL of a signature store: "), "{error}");
        }
    }

    #[test]
    fn secrets_of_a_url_are_not_shown() {
        let store: StoreUrl = "https://user:planted@host:8443/a?planted=1#planted"
            .parse()
            .unwrap();
        assert_eq!(store.to_string(), "https://host:8443/a");
        assert_eq!(format!("{store:?}"), "https://host:8443/a");
        assert!(
            !"planted://x:planted@"
                .parse::<StoreUrl>()
                .unwrap_err()
                .to_string()
                .contains("x:planted")
        );
    }
}
