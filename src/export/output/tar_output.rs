//! Stores an export in a tar, which only grows at its end.
//!
//! ```text
//! oci-layout │ blobs/sha256/<hex> … lookaside/… │ index.json │ version-spec.yaml │ spoke-precache.json │ zeros
//!            └ in the order of their arrival    └ only of a finished export; removed when it is continued
//! ```
//!
//! A member is complete, or it is the last one and is removed when the tar is opened again. A blob is on the disk before the
//! spool forgets it. A damaged blob is renamed to `damaged/<hex>`, and stored again at the end.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::{OutputError, at};
use super::tar_header::{BLOCK, MAX_PAX, TarHeader, headers, parse, pax_name};
use super::{BlobReader, CHUNK, Documents, EXPORT, INDEX, SPEC};
use crate::cancel::Cancel;
use crate::oci::{Digest, Hasher};
use crate::oci_layout::{VERSION, index_json};
use crate::spool::VerifiedBlob;

/// The first member.
const LAYOUT: &str = "oci-layout";

/// The directory of the blobs.
const BLOBS: &str = "blobs/sha256/";

/// Far more than any export has: the members are kept in memory.
const MAX_MEMBERS: usize = 1 << 20;

/// A tar with an OCI layout.
pub(in crate::export) struct TarOutput {
    path: PathBuf,
    file: Arc<File>,
    members: Mutex<Members>,
}

/// The complete members.
#[derive(Default)]
struct Members {
    /// Where the data of a member begins, and its length, by its name.
    by_name: HashMap<String, (u64, u64)>,
    /// Where the next member begins.
    end: u64,
}

impl TarOutput {
    pub(super) fn open(path: &Path) -> Result<Self, OutputError> {
        let mut options = OpenOptions::new();
        // Opening a pipe would wait for its reader.
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = options
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(at(path))?;
        let metadata = file.metadata().map_err(at(path))?;
        if !metadata.is_file() {
            return Err(OutputError::NotATar {
                path: path.to_owned(),
            });
        }
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => OutputError::Busy {
                path: path.to_owned(),
            },
            TryLockError::Error(error) => at(path)(error),
        })?;
        let members = Members::read(&file, metadata.len()).map_err(at(path))?;
        let output = Self {
            path: path.to_owned(),
            file: Arc::new(file),
            members: Mutex::new(members),
        };
        let is_new = output.lock().by_name.is_empty();
        if is_new && !output.is_beginning(metadata.len()).map_err(at(path))? {
            return Err(OutputError::NotATar {
                path: path.to_owned(),
            });
        }
        output.file.set_len(output.lock().end).map_err(at(path))?;
        if is_new {
            output.put_file(LAYOUT, VERSION.as_bytes())?;
        }
        Ok(output)
    }

    /// Whether the file, of this length, is the beginning of the first member: empty, or left by a kill.
    fn is_beginning(&self, length: u64) -> io::Result<bool> {
        let mut first = headers(LAYOUT, VERSION.len() as u64);
        first.extend(VERSION.as_bytes());
        first.resize(first.len().next_multiple_of(BLOCK), 0);
        let mut found =
            vec![0; usize::try_from(length).map_or(first.len(), |length| length.min(first.len()))];
        self.file.read_exact_at(&mut found, 0)?;
        Ok(length < first.len() as u64 && first.starts_with(&found))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its length so far.
    pub(super) fn size(&self) -> u64 {
        self.lock().end
    }

    pub(super) fn blob(&self, digest: Digest) -> Option<BlobReader> {
        let (start, size) = *self.lock().by_name.get(&blob_name(digest))?;
        Some(BlobReader::new(Arc::clone(&self.file), start, size))
    }

    pub(super) fn discard(&self, digest: Digest) -> Result<(), OutputError> {
        let mut members = self.lock();
        if let Some((start, size)) = members.by_name.remove(&blob_name(digest)) {
            let header = headers(&format!("damaged/{}", digest.hex()), size);
            let written = self.file.write_all_at(&header, start - BLOCK as u64);
            written.map_err(at(&self.path))?;
        }
        Ok(())
    }

    pub(super) fn put_blob(&self, blob: VerifiedBlob, cancel: &Cancel) -> Result<(), OutputError> {
        let (digest, file) = (blob.digest(), blob.open()?);
        let mut hasher = Hasher::default();
        self.append(&blob_name(digest), blob.size(), |chunk, offset| {
            cancel.check()?;
            file.read_exact_at(chunk, offset).map_err(at(&self.path))?;
            hasher.update(chunk);
            if offset + chunk.len() as u64 == blob.size() {
                let found = std::mem::take(&mut hasher).finish();
                if found != digest {
                    let (path, blob) = (self.path.clone(), digest);
                    return Err(OutputError::WrongDigest { path, blob, found });
                }
            }
            Ok(())
        })?;
        self.file.sync_data().map_err(at(&self.path))?;
        Ok(blob.remove()?)
    }

    pub(super) fn put(&self, digest: Digest, bytes: &[u8]) -> Result<(), OutputError> {
        self.append_bytes(&blob_name(digest), bytes)
    }

    pub(super) fn put_file(&self, name: &str, bytes: &[u8]) -> Result<(), OutputError> {
        let known = self.lock().by_name.get(name).copied();
        if let Some((start, size)) = known
            && size == bytes.len() as u64
        {
            let mut found = Vec::new();
            let mut reader = BlobReader::new(Arc::clone(&self.file), start, size);
            reader.read_to_end(&mut found).map_err(at(&self.path))?;
            if found == bytes {
                return Ok(());
            }
        }
        self.append_bytes(name, bytes)
    }

    pub(super) fn finish(&self, documents: &Documents) -> Result<(), OutputError> {
        let tags = documents.tags.iter();
        let tags: Vec<_> = tags.map(|(tag, descriptor)| (tag.as_str(), descriptor)).collect();
        let index = index_json(&tags).map_err(|error| at(&self.path)(error.into()))?;
        self.append_bytes(INDEX, &index)?;
        self.append_bytes(SPEC, documents.spec.as_bytes())?;
        self.file.sync_all().map_err(at(&self.path))?;
        self.append_bytes(EXPORT, documents.export.as_bytes())?;
        let end = self.lock().end;
        let written = self.file.write_all_at(&[0; 2 * BLOCK], end);
        written.map_err(at(&self.path))?;
        self.file.sync_all().map_err(at(&self.path))?;
        let directory = match self.path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            parent => parent.unwrap_or(Path::new("/")),
        };
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(at(directory))
    }

    fn append_bytes(&self, name: &str, bytes: &[u8]) -> Result<(), OutputError> {
        self.append(name, bytes.len() as u64, |chunk, offset| {
            let start = usize::try_from(offset).unwrap_or(bytes.len());
            chunk.copy_from_slice(&bytes[start..start + chunk.len()]);
            Ok(())
        })
    }

    /// Appends a member. `fill` fills each chunk, whose offset in the member it gets. After an error the tar ends where it
    /// ended before.
    fn append(
        &self,
        name: &str,
        size: u64,
        mut fill: impl FnMut(&mut [u8], u64) -> Result<(), OutputError>,
    ) -> Result<(), OutputError> {
        let mut members = self.lock();
        let header = headers(name, size);
        let start = members.end + header.len() as u64;
        let written = (|| {
            let write = |bytes: &[u8], to| self.file.write_all_at(bytes, to).map_err(at(&self.path));
            write(&header, members.end)?;
            let (mut chunk, mut offset) = (vec![0; CHUNK], 0);
            while offset < size {
                let length = usize::try_from(size - offset).map_or(CHUNK, |left| left.min(CHUNK));
                fill(&mut chunk[..length], offset)?;
                write(&chunk[..length], start + offset)?;
                offset += length as u64;
            }
            let padding = size.next_multiple_of(BLOCK as u64) - size;
            write(&[0; BLOCK][..usize::try_from(padding).unwrap_or(0)], start + size)
        })();
        if let Err(error) = written {
            if let Err(kept) = self.file.set_len(members.end) {
                // The next export removes it.
                tracing::warn!("an incomplete member stays in `{}`: {kept}", self.path.display());
            }
            return Err(error);
        }
        members.end = start + size.next_multiple_of(BLOCK as u64);
        members.by_name.insert(name.to_owned(), (start, size));
        Ok(())
    }

    /// Consistent at every moment, even after a panic of its holder.
    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    /// Reads the headers of a tar with this length, up to the documents of a finished export, or to its incomplete end.
    fn read(file: &File, length: u64) -> io::Result<Self> {
        let mut members = Self::default();
        let (mut offset, mut long_name) = (0, None);
        let mut block = [0; BLOCK];
        while offset + (BLOCK as u64) <= length {
            file.read_exact_at(&mut block, offset)?;
            offset += BLOCK as u64;
            let (name, size) = match parse(&block) {
                None => break,
                Some(TarHeader::File(name, size)) => (Some(long_name.take().unwrap_or(name)), size),
                Some(TarHeader::Pax(size)) if size <= MAX_PAX => (None, size),
                Some(TarHeader::Pax(_)) => break,
            };
            let padded = size.checked_next_multiple_of(BLOCK as u64);
            let end = padded.and_then(|padded| offset.checked_add(padded));
            let Some(end) = end.filter(|end| *end <= length) else {
                break;
            };
            let is_first = members.by_name.is_empty();
            if members.by_name.len() == MAX_MEMBERS {
                return Err(io::Error::other(format!(
                    "it has more than {MAX_MEMBERS} members"
                )));
            }
            match name {
                Some(name) if name == INDEX || is_first && name != LAYOUT => break,
                Some(name) => {
                    members.by_name.insert(name, (offset, size));
                    members.end = end;
                }
                None => {
                    let mut record = vec![0; usize::try_from(size).unwrap_or(0)];
                    file.read_exact_at(&mut record, offset)?;
                    long_name = pax_name(&record);
                }
            }
            offset = end;
        }
        Ok(members)
    }
}

fn blob_name(digest: Digest) -> String {
    format!("{BLOBS}{}", digest.hex())
}
