//! Downloads the signatures of an image from where registries.d states they are.
//!
//! ```text
//! lookaside     <store>/<repository>@sha256=<hex>/signature-N        until one is missing     simple signing
//! attachments   <registry>/v2/<repository>/manifests/sha256-<hex>.sig, then its layers        sigstore
//! ```
//!
//! As in containers/image (`docker/docker_image_src.go`), only the source that answered with the manifest is asked, under
//! the name that the image has there; the order is lookaside, then attachments; and a missing signature is not an error,
//! but any other failure is. The API extension of OpenShift's own registry (`X-Registry-Supports-Signatures`) is not read.
//!
//! Only the digests of blobs are verified here; `signature` evaluates what was downloaded.

use std::io;

use crate::cancel::Cancel;
use crate::http::shown_url;
use crate::oci::{Digest, MAX_SIGNATURES, Reference};
use crate::signature::Signature;

use super::Registries;
use super::attachments::{MAX_SIGNATURE, MAX_TOTAL};
use super::error::RegistryError;
use super::lookaside::Lookaside;
use super::mirrors::PullSource;
use super::resolve::{Answer, Item};

impl Registries {
    /// Downloads the signatures of the image with this manifest, in the order in which containers/image stores them.
    /// `source` is the one that answered with the manifest ([`Registries::resolve`]). Without it, the first one that answers
    /// for the manifest is found first, because only its name decides where the signatures are.
    pub async fn signatures(
        &self,
        image: &Reference,
        source: Option<&PullSource>,
        manifest: Digest,
        cancel: &Cancel,
    ) -> Result<Vec<Signature>, RegistryError> {
        let sources = match source {
            Some(source) => vec![source.clone()],
            None => self.sources(image)?,
        };
        if !self.have_signature_sources(&sources) {
            return Ok(Vec::new());
        }
        let source = self.locate(image, sources, manifest, cancel).await?;
        let at = self.registries_d.signature_sources(&source.reference)?;
        let attached = async {
            match at.attachments {
                true => self.attachments(image, &source, manifest, cancel).await,
                false => Ok(Vec::new()),
            }
        };
        let lookaside = self.lookaside(image, &at.lookaside, manifest, cancel);
        let (mut signatures, attached) = futures::try_join!(lookaside, attached)?;
        signatures.extend(attached);
        Ok(signatures)
    }

    /// Whether asking for the image's signatures could find any: sigstore attachments are on, or there is a lookaside store.
    /// True also if registries.d leaves that open, so that asking reports why; false if no source may be asked.
    pub fn has_signature_sources(&self, image: &Reference) -> bool {
        let sources = self.sources(image);
        sources.is_ok_and(|sources| self.have_signature_sources(&sources))
    }

    fn have_signature_sources(&self, sources: &[PullSource]) -> bool {
        let may_have = |source: &PullSource| {
            let at = self.registries_d.signature_sources(&source.reference);
            at.map_or(true, |at| at.attachments || self.may_have_any(&at.lookaside))
        };
        sources.iter().any(may_have)
    }

    /// Whether the store may have signatures of the repository. A directory of the host has none if the repository's
    /// directory is missing or empty, as in the default store of every node without one.
    fn may_have_any(&self, lookaside: &Lookaside) -> bool {
        let Some(Ok(directory)) = lookaside.directory().map(|url| self.host_path(&url)) else {
            return true;
        };
        match directory.read_dir() {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// The first source that has the manifest.
    async fn locate(
        &self,
        image: &Reference,
        mut sources: Vec<PullSource>,
        manifest: Digest,
        cancel: &Cancel,
    ) -> Result<PullSource, RegistryError> {
        if sources.len() == 1
            && let Some(only) = sources.pop()
        {
            return Ok(only);
        }
        let item = Item::manifest(&manifest.to_string(), Some(manifest));
        let attempts = self.attempts(
            format!("the manifest of `{image}`"),
            vec![image.to_string()],
            sources,
        );
        let read = |answer: Result<Answer, _>| answer.map(drop);
        let ((), source) = self.download(&item, attempts, read, cancel).await?;
        Ok(source)
    }

    async fn lookaside(
        &self,
        image: &Reference,
        lookaside: &Lookaside,
        manifest: Digest,
        cancel: &Cancel,
    ) -> Result<Vec<Signature>, RegistryError> {
        let (mut signatures, mut rest) = (Vec::new(), MAX_TOTAL);
        loop {
            if signatures.len() == MAX_SIGNATURES {
                return Err(RegistryError::TooManySignatures {
                    what: format!("lookaside store `{lookaside}`"),
                    limit: MAX_SIGNATURES,
                });
            }
            let url = lookaside.signature(manifest, signatures.len() + 1);
            let images = vec![image.to_string()];
            let file = self.retry_signature_file(&url, MAX_SIGNATURE.min(rest), images, cancel);
            let Some(blob) = file.await? else {
                return Ok(signatures);
            };
            rest -= blob.len() as u64;
            let signature = Signature::from_blob(&blob);
            signatures.push(signature.map_err(|source| RegistryError::Signature {
                what: format!("signature `{}`", shown_url(&url)),
                source,
            })?);
        }
    }
}
