//! Finds manifests, blobs and signatures in local media, so that they are not downloaded.
//!
//! ```text
//! --blobs-from PATH ─→ opening ─→ Medium: Tree (Directory, Archive) ← paths of a Layout        [`Media::open`]
//!                                    │ find a digest: one path, opened on demand
//!                                    └─→ Content, verified · MediumBlob ─open→ MediumReader, not verified
//! ```
//!
//! A *medium* is a directory or an archive that contains images. It is recognised by its content (`layout.rs` lists the forms).
//! A directory is not searched: a blob's digest gives its path. A tar is read in place: only its headers are read when it is
//! opened. A damaged one costs what is damaged.
//!
//! The archives of oc-mirror v2 contain a registry's storage and `working-dir/`, in parts `mirror_000001.tar`, each of them a
//! whole tar (`internal/pkg/archive` of openshift/oc-mirror at 855b64a3, August 2026). A part may have any of the files.
//!
//! Nothing in a medium is trusted. A manifest is returned only if its digest matches. Whoever reads a blob hashes it. A link
//! never leads outside the medium, and only regular files are opened. What is damaged is a fault ([`Media::take_faults`]), and
//! the next medium or a registry is asked instead.

mod answers;
mod archive;
mod directory;
mod docker_archive;
mod error;
mod fault;
mod file_mirror;
mod layout;
mod medium;
mod medium_blob;
mod medium_path;
mod medium_reader;
mod oci_tags;
mod opening;
mod reading_lock;
mod signature_files;
mod tag;
mod tar_headers;
mod tar_window;
mod tree;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::cancel::Cancel;
use crate::oci::{Content, DiffId, Digest};

pub use answers::SILENCE;
pub use error::MediaError;
pub use fault::MediumFault;
pub use medium_blob::MediumBlob;
pub use medium_path::{MediumPath, found};
pub use medium_reader::MediumReader;

use medium::Medium;
use tree::Place;

/// All media of a run, in the order in which they are asked.
#[derive(Clone, Debug, Default)]
pub struct Media(Vec<Arc<Medium>>);

impl Media {
    /// No media: nothing is found.
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether there are no media.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Opens the media at these paths. Returns warnings too: what is damaged, and which paths are not used although they were
    /// found.
    ///
    /// # Errors
    /// If a path that the user named cannot be used, or the run is stopped.
    pub fn open(paths: &[MediumPath], cancel: &Cancel) -> Result<(Self, Vec<String>), MediaError> {
        let (mut media, mut warnings) = (Vec::new(), Vec::new());
        let mut seen = HashSet::new();
        for MediumPath { path, is_named } in paths {
            // The same disk may be named, and found too.
            if path.canonicalize().is_ok_and(|real| !seen.insert(real)) {
                continue;
            }
            match opening::open(path, cancel, &mut warnings) {
                Ok(opened) => media.extend(opened.into_iter().map(Arc::new)),
                Err(error @ MediaError::Stopped(_)) => return Err(error),
                Err(error) if *is_named => return Err(error),
                Err(error) => warnings.push(error.to_string()),
            }
        }
        Ok((Self(media), warnings))
    }

    /// The manifest, index or config with this digest, verified. One with more than `limit` bytes is not read.
    pub fn content(&self, digest: Digest, limit: u64) -> Option<Content> {
        self.0.iter().find_map(|medium| medium.content(&digest, limit))
    }

    /// The blob in every medium that has it.
    pub fn blobs(&self, digest: Digest) -> Vec<MediumBlob> {
        self.places(digest, |medium| medium.blob(&digest))
    }

    /// The length of the first blob with this digest.
    pub fn size_of(&self, digest: Digest) -> Option<u64> {
        let place = self.0.iter().find_map(|medium| medium.blob(&digest));
        place.map(|place| place.size)
    }

    /// The layer's uncompressed tar in every medium that has it. It is that tar only if its digest is the diffID.
    pub fn layer_tars(&self, diff_id: DiffId) -> Vec<MediumBlob> {
        self.places(diff_id.0, |medium| medium.layer_tar(diff_id))
    }

    /// The digest that a tag of the repository `host/path` has in the first medium that knows it. Only for tags that name a
    /// digest: a medium may be older than the registry's tags.
    pub fn tagged(&self, repository: &str, tag: &str) -> Option<Digest> {
        self.0.iter().find_map(|medium| medium.tagged(repository, tag))
    }

    /// The signature with this number, from 1, of an image in the repository `host/path`, as a lookaside store has it.
    pub fn lookaside_signature(&self, repository: &str, manifest: Digest, number: usize) -> Option<Bytes> {
        let mut media = self.0.iter();
        media.find_map(|medium| signature_files::of_image(medium, repository, &manifest, number))
    }

    /// The signatures of the release image or list with this digest, as the cluster-version operator's stores have them.
    pub fn release_signatures(&self, digest: Digest) -> Vec<Bytes> {
        let media = self.0.iter();
        media
            .flat_map(|medium| signature_files::of_release(medium, &digest))
            .collect()
    }

    /// Gives up the media that have not answered a read for [`SILENCE`], so that they are not asked again. Returns whether
    /// there are any.
    pub fn give_up_silent(&self) -> bool {
        let now = Instant::now();
        let given_up = self.0.iter().filter(|medium| medium.give_up_if_silent(now));
        given_up.count() > 0
    }

    /// What was wrong with the media since the last call; each fault once.
    pub fn take_faults(&self) -> Vec<MediumFault> {
        self.0.iter().flat_map(|medium| medium.take_faults()).collect()
    }

    fn places(&self, digest: Digest, find: impl Fn(&Medium) -> Option<Place>) -> Vec<MediumBlob> {
        let blob = |medium: &Arc<Medium>| {
            let place = find(medium)?;
            Some(MediumBlob::new(medium.clone(), digest, place))
        };
        self.0.iter().filter_map(blob).collect()
    }
}

#[cfg(test)]
mod tests;
