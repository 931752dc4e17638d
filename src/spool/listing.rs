//! Lists the blobs in the spool with the number of bytes present, whole or partial, without reading them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::Stat;

use super::directory::{BlobFile, blob_files};
use super::error::SpoolError;
use super::file_names::{FileNames, whole};
use super::layer_note;
use crate::oci::{Digest, LayerId};

/// A blob in the spool, whole or partial. Its bytes have not been verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolEntry {
    /// The digest that the file name claims.
    pub digest: Digest,
    /// Number of its bytes that are present.
    pub bytes: u64,
    /// Whether the file has the name of a whole blob.
    pub whole: bool,
    /// Time of the last write, by the clock of the node at that time.
    pub modified: SystemTime,
    /// The layer that it makes, if it is a whole delta ([`VerifiedBlob::note_layer`]).
    ///
    /// [`VerifiedBlob::note_layer`]: super::VerifiedBlob::note_layer
    pub layer: Option<LayerId>,
}

/// All blobs in the directory, in no order. A blob in several ranges is one entry.
pub(super) fn list(dir: &File, path: &Path) -> Result<Vec<SpoolEntry>, SpoolError> {
    let mut entries: Vec<SpoolEntry> = Vec::new();
    let mut ranges: BTreeMap<FileNames, (u64, SystemTime)> = BTreeMap::new();
    for (file, stat) in blob_files(dir, path)? {
        let (bytes, modified) = (u64::try_from(stat.st_size).unwrap_or_default(), modified(&stat));
        match file {
            BlobFile::Whole(digest) => entries.push(SpoolEntry {
                digest,
                bytes,
                whole: true,
                modified,
                layer: layer_note::read(&path.join(whole(&digest))),
            }),
            BlobFile::Range(names) => drop(ranges.insert(names, (bytes, modified))),
        }
    }
    // Sorted by blob and start. A range that was being appended when the run was killed overlaps the one before it.
    let mut end = 0;
    for (names, (bytes, modified)) in ranges {
        let until = names.start.saturating_add(bytes);
        match entries.last_mut() {
            Some(entry) if !entry.whole && entry.digest == names.blob => {
                entry.bytes += until.saturating_sub(end.max(names.start));
                entry.modified = entry.modified.max(modified);
                end = end.max(until);
            }
            _ => {
                entries.push(SpoolEntry {
                    digest: names.blob,
                    bytes,
                    whole: false,
                    modified,
                    layer: None,
                });
                end = until;
            }
        }
    }
    Ok(entries)
}

/// To the second. A time before 1970 counts as 1970.
fn modified(stat: &Stat) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or_default())
}
