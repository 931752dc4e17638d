//! Hashes the first bytes of a spooled file and compares the prefixes that its journal records.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::journal::JournalRecord;
use crate::oci::Hasher;

/// Bytes that are read at once while a file is hashed; a larger buffer is not faster (measured).
pub(super) const HASH_BUFFER: usize = 256 << 10;

/// The hash of a file's first bytes.
pub(super) struct PrefixHash {
    /// Of the first `offset` bytes.
    pub(super) hasher: Hasher,
    pub(super) offset: u64,
    /// The hash and the length of the longest prefix that a record confirms.
    pub(super) confirmed: (Hasher, u64),
    /// A record beyond that prefix does not match the bytes.
    pub(super) is_contradicted: bool,
}

impl PrefixHash {
    /// Hashes up to the first `limit` bytes of a file, and compares them with `records`, which are sorted by offset.
    pub(super) fn of(file: &File, limit: u64, records: &[JournalRecord]) -> io::Result<Self> {
        let mut hasher = Hasher::default();
        let mut confirmed = (Hasher::default(), 0);
        let mut offset = 0;
        for record in records {
            if record.offset > limit {
                break;
            }
            offset = hash_range(&mut hasher, file, offset..record.offset)?;
            if offset == record.offset && hasher.clone().finish() == record.prefix {
                confirmed = (hasher.clone(), offset);
            }
        }
        let offset = hash_range(&mut hasher, file, offset..limit)?;
        let newest = records.last().map_or(0, |record| record.offset);
        Ok(Self {
            is_contradicted: newest > confirmed.1,
            hasher,
            offset,
            confirmed,
        })
    }
}

/// Adds a range of a file to a hash. Returns the offset at which reading ended.
fn hash_range(hasher: &mut Hasher, file: &File, range: Range<u64>) -> io::Result<u64> {
    if range.is_empty() {
        return Ok(range.start);
    }
    let mut offset = range.start;
    let mut buffer = vec![0; HASH_BUFFER];
    while offset < range.end {
        let want = usize::try_from(range.end - offset).map_or(HASH_BUFFER, |left| left.min(HASH_BUFFER));
        match file.read_at(&mut buffer[..want], offset) {
            Ok(0) => break,
            Ok(n) => {
                hasher.update(&buffer[..n]);
                offset += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(offset)
}
