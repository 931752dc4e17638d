//! Reads a blob of which the spool may have only some ranges. Nothing is verified here.
//!
//! A blob may have hundreds of ranges. They are read one after the other, so only one file is open at a time.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::OFlags;

use super::error::SpoolError;
use super::file_names::{FileNames, whole};
use super::state::SpoolState;
use crate::oci::Digest;

/// The bytes of one blob that the spool had when this was opened.
#[derive(Debug)]
pub struct BlobParts {
    spool: Arc<SpoolState>,
    /// In the order of their starts; they may overlap.
    parts: Vec<Part>,
    /// The file that was read last, and the number of its part.
    open: Mutex<Option<(usize, File)>>,
}

#[derive(Debug)]
struct Part {
    /// Its bytes in the blob.
    range: Range<u64>,
    /// The name of its file.
    name: String,
}

impl BlobParts {
    pub(super) fn of(spool: Arc<SpoolState>, blob: &Digest) -> Result<Self, SpoolError> {
        let first = FileNames::first(blob);
        let ranges = spool.ranges_of(blob);
        let ranges = ranges.iter().map(|names| (names.partial(), names.start));
        let mut parts = Vec::new();
        for (name, start) in [(whole(blob), 0), (first.partial(), 0)].into_iter().chain(ranges) {
            if let Some(file) = spool.dir.open(&name, OFlags::RDONLY)? {
                let length = spool.dir.regular_size(&file, &name)?;
                let range = start..start.saturating_add(length);
                parts.push(Part { range, name });
            }
        }
        Ok(Self {
            spool,
            parts,
            open: Mutex::default(),
        })
    }

    /// The parts of `wanted` that are not here, in order.
    pub fn missing(&self, wanted: &Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut next = wanted.start;
        for Part { range, .. } in &self.parts {
            if range.end <= next || range.is_empty() {
                continue;
            }
            if range.start >= wanted.end {
                break;
            }
            if range.start > next {
                missing.push(next..range.start);
            }
            next = range.end;
        }
        if next < wanted.end {
            missing.push(next..wanted.end);
        }
        missing
    }

    /// Where the range starts that ends before byte `offset` of the blob, so that it can be continued; else `offset`.
    pub fn continued_at(&self, offset: u64) -> u64 {
        let mut parts = self.parts.iter().map(|part| &part.range);
        let before = parts.find(|range| range.end == offset && !range.is_empty());
        before.map_or(offset, |range| range.start)
    }

    /// Reads up to `buffer.len()` bytes at `offset` of the blob; 0 bytes if the next one is not here.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some(number) = self.parts.iter().position(|part| part.range.contains(&offset)) else {
            return Ok(0);
        };
        let part = &self.parts[number];
        let left = usize::try_from(part.range.end - offset).unwrap_or(usize::MAX);
        let length = left.min(buffer.len());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, file) = match open.take() {
            Some(known) if known.0 == number => open.insert(known),
            _ => open.insert((number, self.spool.dir.open_raw(&part.name, OFlags::RDONLY)?)),
        };
        file.read_at(&mut buffer[..length], offset - part.range.start)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

    use super::*;
    use crate::spool::Spool;

    #[test]
    fn ranges_of_a_blob_are_read_and_the_missing_ones_are_known() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::open(directory.path()).unwrap();
        let blob = Digest::of(b"blob");
        assert_eq!(spool.parts(&blob).unwrap().missing(&(3..9)), [3..9]);
        for (start, bytes) in [(2, "cde"), (7, "hi"), (0, "a"), (8, "ij")] {
            spool
                .range(&blob, 20, start)
                .unwrap()
                .write(bytes.as_bytes())
                .unwrap();
        }
        let parts = spool.parts(&blob).unwrap();
        assert_eq!(parts.missing(&(0..20)), [1..2, 5..7, 10..20]);
        assert_eq!(parts.missing(&(3..5)), []);
        assert_eq!(parts.missing(&(4..8)), [5..7]);
        assert_eq!(parts.missing(&(5..7)), [5..7]);
        assert_eq!(
            [1, 5, 9, 10, 11].map(|offset| parts.continued_at(offset)),
            [0, 2, 7, 8, 11]
        );
        let mut buffer = [0; 8];
        for (offset, expected) in [(0, "a"), (1, ""), (3, "de"), (7, "hi"), (9, "j"), (10, "")] {
            let read = parts.read_at(&mut buffer, offset).unwrap();
            assert_eq!(&buffer[..read], expected.as_bytes(), "at {offset}");
        }
    }
}
