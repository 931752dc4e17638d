//! Reads the bytes to compare: ranges of a file on disk, one after the other.
//!
//! Positions in the content start at 0 and count only what is in the ranges. So the parts of a program between its
//! compressed sections are compared as one text.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::error::DiffError;
use super::match_list::{Match, MatchList};

/// Size of the chunks in which content is read.
pub(super) const CHUNK: usize = 256 << 10;

/// Ranges of a file.
#[derive(Clone, Debug)]
pub(super) struct Content<'a> {
    file: &'a File,
    /// Of the file, for messages.
    path: &'a Path,
    parts: Vec<Part>,
    length: u64,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    /// Position in the content.
    start: u64,
    /// Offset in the file.
    offset: u64,
    length: u64,
}

impl<'a> Content<'a> {
    pub(super) fn new(file: &'a File, path: &'a Path, range: Range<u64>) -> Self {
        let mut content = Self {
            file,
            path,
            parts: Vec::new(),
            length: 0,
        };
        content.push(range);
        content
    }

    /// This content without some ranges of it, which are in order.
    pub(super) fn without(&self, holes: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut rest = Self {
            parts: Vec::new(),
            length: 0,
            ..*self
        };
        let mut position = 0;
        for hole in holes {
            rest.push_part_of(self, position..hole.start);
            position = hole.end;
        }
        rest.push_part_of(self, position..self.length);
        rest
    }

    /// A range of this content.
    pub(super) fn part(&self, range: Range<u64>) -> Self {
        let holes = [0..range.start, range.end..self.length];
        self.without(holes)
    }

    /// The file, for messages.
    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Fills `buffer` with the bytes from `position`.
    pub(super) fn read(&self, mut position: u64, mut buffer: &mut [u8]) -> Result<(), DiffError> {
        while !buffer.is_empty() {
            let (part, skipped) = self.part_at(position);
            let left = part.length - skipped;
            let length = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            let (now, later) = buffer.split_at_mut(length);
            let read = self.file.read_exact_at(now, part.offset + skipped);
            read.map_err(DiffError::host("read", self.path))?;
            buffer = later;
            position += length as u64;
        }
        Ok(())
    }

    pub(super) fn read_range(&self, range: Range<u64>) -> Result<Vec<u8>, DiffError> {
        // A file in memory; the planned memory admits it.
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
        self.read(range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Passes a range of the content to `each`, in chunks.
    pub(super) fn chunks(
        &self,
        mut range: Range<u64>,
        mut each: impl FnMut(&[u8]) -> Result<(), DiffError>,
    ) -> Result<(), DiffError> {
        let left = |range: &Range<u64>| {
            usize::try_from(range.end - range.start)
                .unwrap_or(usize::MAX)
                .min(CHUNK)
        };
        let mut buffer = vec![0; left(&range)];
        while range.start < range.end {
            let chunk = &mut buffer[..left(&range)];
            self.read(range.start, chunk)?;
            each(chunk)?;
            range.start += chunk.len() as u64;
        }
        Ok(())
    }

    /// Matches between `old` and `new` as matches between the files that they are from, whose data starts at these
    /// offsets. A match is split where the files have something in between.
    pub(super) fn in_files(matches: &MatchList, old: (&Self, u64), new: (&Self, u64)) -> MatchList {
        let mut list = MatchList::default();
        for mut found in matches.iter() {
            while found.length > 0 {
                let ((old_part, old_skipped), (new_part, new_skipped)) =
                    (old.0.part_at(found.old), new.0.part_at(found.new));
                let length = found
                    .length
                    .min(old_part.length - old_skipped)
                    .min(new_part.length - new_skipped);
                list.push(Match {
                    old: old_part.offset + old_skipped - old.1,
                    new: new_part.offset + new_skipped - new.1,
                    length,
                });
                found = Match {
                    old: found.old + length,
                    new: found.new + length,
                    length: found.length - length,
                };
            }
        }
        list
    }

    /// The part with this position, and how many of its bytes are before it.
    fn part_at(&self, position: u64) -> (Part, u64) {
        let after = self.parts.partition_point(|part| part.start <= position);
        let part = self.parts[after - 1];
        (part, position - part.start)
    }

    fn push(&mut self, range: Range<u64>) {
        let length = range.end - range.start;
        // Without empty parts, every position is in exactly one.
        if length > 0 || self.parts.is_empty() {
            self.parts.push(Part {
                start: self.length,
                offset: range.start,
                length,
            });
            self.length += length;
        }
    }

    fn push_part_of(&mut self, other: &Self, mut range: Range<u64>) {
        while range.start < range.end {
            let (part, skipped) = other.part_at(range.start);
            let length = (part.length - skipped).min(range.end - range.start);
            let offset = part.offset + skipped;
            self.push(offset..offset + length);
            range.start += length;
        }
    }
}
