//! Stores an export: an OCI layout in a directory, or in a tar.
//!
//! Both contain the same files. A blob is stored under its name only when it is complete. What a later export finds is
//! verified by its digest before it counts.

mod blob_reader;
mod directory;
mod error;
mod tar_header;
mod tar_output;

use std::io::Read as _;
use std::path::Path;

use bytes::Bytes;

use crate::cancel::Cancel;
use crate::oci::{Content, Descriptor, Digest, Hasher};
use crate::spool::VerifiedBlob;

pub(super) use blob_reader::BlobReader;
use directory::DirectoryOutput;
pub use error::OutputError;
use error::at;
pub(super) use error::of_system;
use tar_output::TarOutput;

/// The ending of a name that makes the output a tar.
const TAR: &str = "tar";

/// The index of the images.
const INDEX: &str = "index.json";

/// The file that describes the export, written last.
const EXPORT: &str = "spoke-precache.json";

/// The same version spec with every image by digest.
const SPEC: &str = "version-spec.yaml";

/// How much is copied or hashed at a time.
const CHUNK: usize = 1 << 20;

/// The magic number of FAT's file systems, FAT32 included (`statfs(2)`).
const FAT: i64 = 0x4d44;

/// The largest file on FAT.
const FAT_LIMIT: u64 = (4 << 30) - 1;

/// The documents that complete an export.
pub(super) struct Documents {
    /// The images with their references.
    pub(super) tags: Vec<(String, Descriptor)>,
    /// `version-spec.yaml`.
    pub(super) spec: String,
    /// `spoke-precache.json`.
    pub(super) export: String,
}

/// Where an export goes.
pub(super) enum Output {
    Directory(DirectoryOutput),
    Tar(TarOutput),
}

impl Output {
    /// Opens the output of an earlier export, or makes one: a tar if the name ends with `.tar` or is that of a file, else a
    /// directory. What describes the earlier export as complete is removed.
    pub(super) fn open(path: &Path) -> Result<Self, OutputError> {
        let is_tar = path.is_file() || path.extension().is_some_and(|end| end == TAR) && !path.is_dir();
        Ok(match is_tar {
            true => Self::Tar(TarOutput::open(path)?),
            false => Self::Directory(DirectoryOutput::open(path)?),
        })
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Directory(directory) => directory.path(),
            Self::Tar(tar) => tar.path(),
        }
    }

    /// The blob with this digest, which is not verified.
    pub(super) fn blob(&self, digest: Digest) -> Result<Option<BlobReader>, OutputError> {
        match self {
            Self::Directory(directory) => directory.blob(digest),
            Self::Tar(tar) => Ok(tar.blob(digest)),
        }
    }

    /// Whether it has this blob undamaged. A damaged one is removed.
    pub(super) fn verify(&self, digest: Digest, size: u64, cancel: &Cancel) -> Result<bool, OutputError> {
        let Some(mut blob) = self.blob(digest)? else {
            return Ok(false);
        };
        if blob.size() == size {
            let (mut hasher, mut chunk) = (Hasher::default(), vec![0; CHUNK]);
            loop {
                cancel.check()?;
                match blob.read(&mut chunk).map_err(at(self.path()))? {
                    0 => break,
                    read => hasher.update(&chunk[..read]),
                }
            }
            if hasher.finish() == digest {
                return Ok(true);
            }
        }
        tracing::warn!(
            "blob {digest} in `{}` is damaged, and is downloaded again",
            self.path().display()
        );
        self.discard(digest)?;
        Ok(false)
    }

    /// A manifest or config of at most `limit` bytes, if it has it undamaged.
    pub(super) fn content(&self, digest: Digest, limit: u64) -> Option<Content> {
        let blob = self.blob(digest).ok()??;
        let mut bytes = Vec::new();
        blob.take(limit + 1).read_to_end(&mut bytes).ok()?;
        let content = Content::new(Bytes::from(bytes));
        (content.digest() == digest).then_some(content)
    }

    fn discard(&self, digest: Digest) -> Result<(), OutputError> {
        match self {
            Self::Directory(directory) => directory.discard(digest),
            Self::Tar(tar) => tar.discard(digest),
        }
    }

    /// Moves a blob from the spool into the output.
    pub(super) fn put_blob(&self, blob: VerifiedBlob, cancel: &Cancel) -> Result<(), OutputError> {
        self.check_file_size(blob.size(), || format!("blob {}", blob.digest()))?;
        match self {
            Self::Directory(directory) => directory.put_blob(blob, cancel),
            Self::Tar(tar) => tar.put_blob(blob, cancel),
        }
    }

    /// Stores a small blob, unless it is there undamaged.
    pub(super) fn put_content(&self, content: &Content) -> Result<(), OutputError> {
        let (digest, bytes) = (content.digest(), content.bytes());
        if self.content(digest, bytes.len() as u64).is_some() {
            return Ok(());
        }
        if self.blob(digest)?.is_some() {
            self.discard(digest)?;
        }
        match self {
            Self::Directory(directory) => directory.put(bytes),
            Self::Tar(tar) => tar.put(digest, bytes),
        }
    }

    /// Stores a file that is no blob.
    pub(super) fn put_file(&self, name: &str, bytes: &[u8]) -> Result<(), OutputError> {
        match self {
            Self::Directory(directory) => directory.put_file(name, bytes),
            Self::Tar(tar) => tar.put_file(name, bytes),
        }
    }

    /// Stores the documents, the one that describes the export last, after everything else is on the disk.
    pub(super) fn finish(&self, documents: &Documents) -> Result<(), OutputError> {
        match self {
            Self::Directory(directory) => directory.finish(documents),
            Self::Tar(tar) => tar.finish(documents),
        }
    }

    /// Fails if `needed` more bytes do not fit, in the file system or in the file.
    pub(super) fn check_space(&self, needed: u64) -> Result<(), OutputError> {
        let path = self.path();
        let space = rustix::fs::statvfs(path).map_err(|error| at(path)(error.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if needed > free {
            let path = path.to_owned();
            return Err(OutputError::NoSpace { path, needed, free });
        }
        match self {
            Self::Directory(_) => Ok(()),
            Self::Tar(tar) => {
                self.check_file_size(tar.size().saturating_add(needed), || "the tar".to_owned())
            }
        }
    }

    /// Fails if the file system holds no file of this size.
    pub(super) fn check_file_size(
        &self,
        size: u64,
        what: impl FnOnce() -> String,
    ) -> Result<(), OutputError> {
        let path = self.path();
        let system = rustix::fs::statfs(path).map_err(|error| at(path)(error.into()))?;
        match size > FAT_LIMIT && system.f_type == FAT {
            true => Err(OutputError::FileTooLarge {
                path: path.to_owned(),
                what: what(),
                size,
            }),
            false => Ok(()),
        }
    }
}
