//! Stores blobs, manifests and other files in a directory, as an OCI image layout.
//!
//! ```text
//! oci-layout            {"imageLayoutVersion":"1.0.0"}
//! index.json            one descriptor for each tag: `org.opencontainers.image.ref.name`
//! blobs/sha256/<hex>    blobs, manifests and indexes
//! ```
//!
//! Every file is written under another name, synced, and renamed, so that a kill leaves no incomplete file under its name,
//! and a later run continues.
//!
//! An index with a subject also has the tag `sha256-<hex of the subject>`, where spokes find it in a registry without the
//! referrers API. skopeo (1.18) copies an index of images but no index of indexes, so the index itself is under the tag. Only a
//! second one with the same subject makes it an index of referrers, as the OCI distribution spec defines it.

mod error;
mod files;
mod index_json;
mod partial_file;

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::cancel::Cancel;
use crate::oci::{Content, Descriptor, Digest, Hasher, MAX_MANIFEST_SIZE, OCI_IMAGE_INDEX_MEDIA_TYPE};
use crate::registry::ReferrerEntry;
pub use error::OciLayoutError;
use error::at;
use index_json::IndexJson;
pub use index_json::index_json;
use partial_file::PartialFile;

/// The content of `oci-layout`.
pub const VERSION: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;

/// How much is copied at a time.
const CHUNK: usize = 1 << 20;

/// A directory with an OCI image layout. Clones share its lock.
#[derive(Clone, Debug)]
pub struct OciLayout(Arc<Directory>);

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    index: IndexJson,
    /// Held while `index.json` is changed.
    changing: Mutex<()>,
}

impl OciLayout {
    /// Opens the layout in `path`, or makes one. The directory must be empty or contain a layout.
    pub fn open(path: &Path) -> Result<Self, OciLayoutError> {
        fs::create_dir_all(path).map_err(at(path))?;
        let (version, blobs) = (path.join("oci-layout"), blobs(path));
        if partial_file::is_empty(path)? {
            partial_file::write(&version, VERSION.as_bytes())?;
        } else if !version.is_file() {
            return Err(OciLayoutError::Invalid {
                path: path.to_owned(),
                why: "it is not empty, and has no `oci-layout`\nhint: name an empty directory".to_owned(),
            });
        }
        fs::create_dir_all(&blobs).map_err(at(&blobs))?;
        for place in [path, &blobs] {
            partial_file::remove_all(place)?;
        }
        Ok(Self(Arc::new(Directory {
            path: path.to_owned(),
            index: IndexJson::open(path)?,
            changing: Mutex::default(),
        })))
    }

    /// Copies the first `size` bytes of `file`, whose digest this is.
    pub async fn put_blob(
        &self,
        digest: Digest,
        size: u64,
        file: File,
        cancel: &Cancel,
    ) -> Result<(), OciLayoutError> {
        let cancel = cancel.clone();
        self.blocking(move |directory| directory.copy(digest, size, &file, &cancel))
            .await
    }

    /// Stores a small blob, if it is not there.
    pub async fn put_bytes(&self, bytes: Bytes, cancel: &Cancel) -> Result<(), OciLayoutError> {
        cancel.check()?;
        self.blocking(move |directory| directory.put(&bytes)).await
    }

    /// Stores a manifest or an index, also under `tag`. An index with a subject is found under the referrers tag of that
    /// subject, too.
    pub async fn put_manifest(
        &self,
        tag: Option<&str>,
        media_type: &str,
        bytes: Bytes,
        cancel: &Cancel,
    ) -> Result<(), OciLayoutError> {
        cancel.check()?;
        let (tag, media_type) = (tag.map(str::to_owned), media_type.to_owned());
        self.blocking(move |directory| directory.put_manifest(tag.as_deref(), &media_type, &bytes))
            .await
    }

    /// The manifest or index with this tag or digest; nothing if there is none.
    pub fn manifest(&self, name: &str) -> Result<Option<Content>, OciLayoutError> {
        let digest = match name.parse() {
            Ok(digest) => Some(digest),
            Err(_) => self.0.index.tagged(name)?,
        };
        match digest {
            Some(digest) => self.0.manifest(digest),
            None => Ok(None),
        }
    }

    async fn blocking(
        &self,
        work: impl FnOnce(&Directory) -> Result<(), OciLayoutError> + Send + 'static,
    ) -> Result<(), OciLayoutError> {
        let directory = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&directory)).await;
        done.unwrap_or_else(|panicked| Err(at(&self.0.path)(io::Error::other(panicked))))
    }
}

impl Directory {
    fn blob(&self, digest: Digest) -> PathBuf {
        blobs(&self.path).join(digest.hex())
    }

    fn copy(&self, digest: Digest, size: u64, file: &File, cancel: &Cancel) -> Result<(), OciLayoutError> {
        let path = self.blob(digest);
        let partial = PartialFile::create(&path)?;
        let (mut hasher, mut offset) = (Hasher::default(), 0);
        let mut chunk = vec![0; CHUNK];
        while offset < size {
            cancel.check()?;
            let length = usize::try_from(size - offset).map_or(CHUNK, |rest| rest.min(CHUNK));
            let part = &mut chunk[..length];
            file.read_exact_at(part, offset).map_err(at(&path))?;
            hasher.update(part);
            partial.write(part)?;
            offset += length as u64;
        }
        let found = hasher.finish();
        if found != digest {
            return Err(OciLayoutError::WrongDigest { path, found });
        }
        partial.commit()
    }

    fn put(&self, bytes: &[u8]) -> Result<(), OciLayoutError> {
        let path = self.blob(Digest::of(bytes));
        match path.metadata() {
            Ok(metadata) if metadata.len() == bytes.len() as u64 => Ok(()),
            _ => partial_file::write(&path, bytes),
        }
    }

    fn put_manifest(&self, tag: Option<&str>, media_type: &str, bytes: &[u8]) -> Result<(), OciLayoutError> {
        self.put(bytes)?;
        let descriptor = |bytes: &[u8], media_type: &str| Descriptor {
            media_type: media_type.to_owned(),
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
        };
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tag) = tag {
            self.index.tag(tag, &descriptor(bytes, media_type))?;
        }
        let entry = ReferrerEntry::of_manifest(bytes).map_err(|error| OciLayoutError::Invalid {
            path: self.blob(Digest::of(bytes)),
            why: error.to_string(),
        })?;
        let Some(entry) = entry.filter(|_| media_type == OCI_IMAGE_INDEX_MEDIA_TYPE) else {
            return Ok(());
        };
        let referrers_tag = entry.tag();
        let current = match self.index.tagged(&referrers_tag)? {
            Some(digest) => self.manifest(digest)?,
            None => None,
        };
        let current = current.as_ref().map(|content| content.bytes().as_ref());
        let earlier = current.and_then(|bytes| ReferrerEntry::of_manifest(bytes).ok().flatten());
        if current.is_none() || earlier.is_some_and(|earlier| earlier.is_version_of(&entry)) {
            return self.index.tag(&referrers_tag, &descriptor(bytes, media_type));
        }
        if let Some(index) = entry.add_to(current)? {
            self.put(&index)?;
            self.index
                .tag(&referrers_tag, &descriptor(&index, OCI_IMAGE_INDEX_MEDIA_TYPE))?;
        }
        Ok(())
    }

    fn manifest(&self, digest: Digest) -> Result<Option<Content>, OciLayoutError> {
        let path = self.blob(digest);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(at(&path))?,
        };
        let mut bytes = Vec::new();
        file.take(MAX_MANIFEST_SIZE + 1)
            .read_to_end(&mut bytes)
            .map_err(at(&path))?;
        let content = Content::new(bytes.into());
        match content.digest() == digest {
            true => Ok(Some(content)),
            false => Err(OciLayoutError::WrongDigest {
                path,
                found: content.digest(),
            }),
        }
    }
}

/// The directory with the blobs of a layout.
fn blobs(layout: &Path) -> PathBuf {
    layout.join("blobs/sha256")
}
