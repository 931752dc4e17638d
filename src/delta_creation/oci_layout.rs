//! Stores blobs and manifests in a directory, as an OCI image layout.
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
//! second one with the same subject makes it an index of referrers, as the OCI distribution spec has it.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use crate::cancel::{Cancel, Stopped};
use crate::oci::{Content, Descriptor, Digest, Hasher, MAX_MANIFEST_SIZE};
use crate::registry::{ReferrerEntry, ReferrersIndexError};

/// The content of `oci-layout`.
const VERSION: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;

/// The annotation with a tag.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// The media type of an index.
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// The ending of files that are being written.
const PARTIAL: &str = ".partial";

/// How much is copied at a time.
const CHUNK: usize = 1 << 20;

/// The largest `index.json` that is read.
const MAX_INDEX_SIZE: u64 = 16 << 20;

/// A directory with an OCI image layout. Clones share its lock.
#[derive(Clone, Debug)]
pub struct OciLayout(Arc<Directory>);

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    /// Held while `index.json` is changed.
    index: Mutex<()>,
}

/// Why an OCI layout cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OciLayoutError {
    /// A file cannot be read or written.
    #[error("`{}`: {source}", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It holds something else.
    #[error("`{}` is not an OCI image layout: {why}", path.display())]
    Invalid {
        /// The directory or the file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The content does not match its digest.
    #[error("`{}`: the content has the digest {found}", path.display())]
    WrongDigest {
        /// The blob's file.
        path: PathBuf,
        /// The digest of the content.
        found: Digest,
    },
    /// The index of a subject's referrers cannot be extended.
    #[error(transparent)]
    Referrers(#[from] ReferrersIndexError),
    /// The run stops.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// `index.json` with its entries unparsed.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index<'a> {
    schema_version: u32,
    #[serde(default = "index_media_type")]
    media_type: String,
    #[serde(borrow)]
    manifests: Vec<&'a RawValue>,
}

fn index_media_type() -> String {
    INDEX.to_owned()
}

#[derive(Deserialize)]
struct Entry {
    digest: Digest,
    annotations: Option<EntryAnnotations>,
}

#[derive(Deserialize)]
struct EntryAnnotations {
    #[serde(rename = "org.opencontainers.image.ref.name")]
    ref_name: Option<String>,
}

impl Entry {
    fn has_tag(&self, tag: &str) -> bool {
        let annotations = self.annotations.as_ref();
        annotations.and_then(|annotations| annotations.ref_name.as_deref()) == Some(tag)
    }
}

impl OciLayout {
    /// Opens the layout in `path`, or makes one. The directory must be empty or contain a layout.
    pub fn open(path: &Path) -> Result<Self, OciLayoutError> {
        let directory = Directory {
            path: path.to_owned(),
            index: Mutex::default(),
        };
        fs::create_dir_all(path).map_err(at(path))?;
        let version = path.join("oci-layout");
        let (mut is_empty, blobs) = (true, directory.blobs());
        for entry in fs::read_dir(path).map_err(at(path))? {
            let name = entry.map_err(at(path))?.file_name();
            is_empty &= name.to_string_lossy().ends_with(PARTIAL);
        }
        if is_empty {
            directory.write(&version, VERSION.as_bytes())?;
        } else if !version.is_file() {
            return Err(OciLayoutError::Invalid {
                path: path.to_owned(),
                why: "it is not empty, and has no `oci-layout`\nhint: name an empty directory".to_owned(),
            });
        }
        fs::create_dir_all(&blobs).map_err(at(&blobs))?;
        for place in [path, &blobs] {
            remove_partials(place)?;
        }
        if !path.join("index.json").exists() {
            directory.write_index(&[])?;
        }
        Ok(Self(Arc::new(directory)))
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Whether the blob is there.
    pub fn has_blob(&self, digest: Digest, size: u64) -> Result<bool, OciLayoutError> {
        let path = self.0.blob(digest);
        match path.metadata() {
            Ok(metadata) => Ok(metadata.is_file() && metadata.len() == size),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(at(&path)(error)),
        }
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
            Err(_) => self.0.tagged(name)?,
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
    fn blobs(&self) -> PathBuf {
        self.path.join("blobs/sha256")
    }

    fn blob(&self, digest: Digest) -> PathBuf {
        self.blobs().join(digest.hex())
    }

    fn copy(&self, digest: Digest, size: u64, file: &File, cancel: &Cancel) -> Result<(), OciLayoutError> {
        let path = self.blob(digest);
        let partial = Partial::create(&path)?;
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
            _ => self.write(&path, bytes),
        }
    }

    fn put_manifest(&self, tag: Option<&str>, media_type: &str, bytes: &[u8]) -> Result<(), OciLayoutError> {
        self.put(bytes)?;
        let descriptor = |bytes: &[u8], media_type: &str| Descriptor {
            media_type: media_type.to_owned(),
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
        };
        let _changing = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tag) = tag {
            self.tag(tag, &descriptor(bytes, media_type))?;
        }
        let entry = ReferrerEntry::of_manifest(bytes).map_err(|error| OciLayoutError::Invalid {
            path: self.blob(Digest::of(bytes)),
            why: error.to_string(),
        })?;
        let Some(entry) = entry.filter(|_| media_type == INDEX) else {
            return Ok(());
        };
        let referrers_tag = entry.tag();
        let current = match self.tagged(&referrers_tag)? {
            Some(digest) => self.manifest(digest)?,
            None => None,
        };
        let current = current.as_ref().map(|content| content.bytes().as_ref());
        let earlier = current.and_then(|bytes| ReferrerEntry::of_manifest(bytes).ok().flatten());
        if current.is_none() || earlier.is_some_and(|earlier| earlier.is_version_of(&entry)) {
            return self.tag(&referrers_tag, &descriptor(bytes, media_type));
        }
        if let Some(index) = entry.add_to(current)? {
            self.put(&index)?;
            self.tag(&referrers_tag, &descriptor(&index, INDEX))?;
        }
        Ok(())
    }

    /// Points the tag to this manifest.
    fn tag(&self, tag: &str, descriptor: &Descriptor) -> Result<(), OciLayoutError> {
        let text = self.read_index()?;
        let index = self.parse_index(&text)?;
        let mut entry = json!(descriptor);
        entry["annotations"] = json!({REF_NAME: tag});
        let entry = serde_json::value::to_raw_value(&entry).map_err(|error| self.invalid(&error))?;
        let others = index.manifests.into_iter().filter(|raw| {
            let known: Option<Entry> = serde_json::from_str(raw.get()).ok();
            !known.is_some_and(|known| known.has_tag(tag))
        });
        let mut entries: Vec<&RawValue> = others.collect();
        entries.push(&entry);
        self.write_index(&entries)
    }

    /// The digest of the manifest that the tag points to.
    fn tagged(&self, tag: &str) -> Result<Option<Digest>, OciLayoutError> {
        let text = self.read_index()?;
        let index = self.parse_index(&text)?;
        let mut entries = index
            .manifests
            .iter()
            .filter_map(|raw| serde_json::from_str::<Entry>(raw.get()).ok());
        Ok(entries.find(|entry| entry.has_tag(tag)).map(|entry| entry.digest))
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

    fn index_path(&self) -> PathBuf {
        self.path.join("index.json")
    }

    fn read_index(&self) -> Result<String, OciLayoutError> {
        let path = self.index_path();
        let file = File::open(&path).map_err(at(&path))?;
        let mut text = String::new();
        let read = file.take(MAX_INDEX_SIZE + 1).read_to_string(&mut text);
        match read.map_err(at(&path))? as u64 {
            0..=MAX_INDEX_SIZE => Ok(text),
            _ => Err(at(&path)(io::ErrorKind::FileTooLarge.into())),
        }
    }

    fn parse_index<'a>(&self, text: &'a str) -> Result<Index<'a>, OciLayoutError> {
        serde_json::from_str(text).map_err(|error| self.invalid(&error))
    }

    fn write_index(&self, manifests: &[&RawValue]) -> Result<(), OciLayoutError> {
        let index = Index {
            schema_version: 2,
            media_type: index_media_type(),
            manifests: manifests.to_vec(),
        };
        let json = serde_json::to_vec(&index).map_err(|error| self.invalid(&error))?;
        self.write(&self.index_path(), &json)
    }

    fn invalid(&self, error: &serde_json::Error) -> OciLayoutError {
        OciLayoutError::Invalid {
            path: self.index_path(),
            why: error.to_string(),
        }
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), OciLayoutError> {
        let partial = Partial::create(path)?;
        partial.write(bytes)?;
        partial.commit()
    }
}

/// A file that is removed unless it is committed.
struct Partial {
    file: File,
    path: PathBuf,
    partial: PathBuf,
}

impl Partial {
    fn create(path: &Path) -> Result<Self, OciLayoutError> {
        let mut name = path.as_os_str().to_owned();
        // Two writers of the same content must not share a file.
        name.push(format!(".{:016x}{PARTIAL}", rand::random::<u64>()));
        let partial = PathBuf::from(name);
        Ok(Self {
            file: File::create_new(&partial).map_err(at(&partial))?,
            path: path.to_owned(),
            partial,
        })
    }

    fn write(&self, bytes: &[u8]) -> Result<(), OciLayoutError> {
        (&self.file).write_all(bytes).map_err(at(&self.partial))
    }

    /// Gives it its name, durably.
    fn commit(self) -> Result<(), OciLayoutError> {
        self.file.sync_all().map_err(at(&self.partial))?;
        fs::rename(&self.partial, &self.path).map_err(at(&self.path))?;
        let directory = self.path.parent().unwrap_or(Path::new("."));
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(at(directory))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After the commit there is no such file; a leftover is removed when the layout is opened again.
        let _ = fs::remove_file(&self.partial);
    }
}

/// Removes what a killed run left.
fn remove_partials(directory: &Path) -> Result<(), OciLayoutError> {
    for entry in fs::read_dir(directory).map_err(at(directory))? {
        let entry = entry.map_err(at(directory))?;
        if entry.file_name().to_string_lossy().ends_with(PARTIAL) {
            fs::remove_file(entry.path()).map_err(at(&entry.path()))?;
        }
    }
    Ok(())
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> OciLayoutError {
    let path = path.to_owned();
    move |source| OciLayoutError::Io { path, source }
}
