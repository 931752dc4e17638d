//! Reads pieces of a large file at increasing offsets, in long reads only where the pieces are close to each other.
//!
//! The headers of a tar with large files are far apart, and a long read for each would read a good part of the disk. Small
//! files are next to each other.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// The length of a read after a jump.
const MIN_READ: usize = 4 << 10;

/// The length of a read after many reads without a jump.
const MAX_READ: usize = 256 << 10;

/// A part of the file, in memory.
pub(super) struct TarWindow<'a> {
    file: &'a File,
    size: u64,
    buffer: Vec<u8>,
    /// Where `buffer` begins in the file.
    start: u64,
    length: usize,
}

impl<'a> TarWindow<'a> {
    /// A window on the first `size` bytes of `file`.
    pub(super) fn new(file: &'a File, size: u64) -> Self {
        Self {
            file,
            size,
            buffer: Vec::new(),
            start: 0,
            length: MIN_READ,
        }
    }

    /// The length of the file.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The bytes from `at` on: at least `min`, or fewer at the end of the file.
    pub(super) fn bytes(&mut self, at: u64, min: usize) -> io::Result<&[u8]> {
        let left = usize::try_from(self.size.saturating_sub(at)).unwrap_or(usize::MAX);
        let min = min.min(left);
        let skipped = at
            .checked_sub(self.start)
            .and_then(|skipped| usize::try_from(skipped).ok());
        let follows = skipped.is_some_and(|skipped| skipped <= self.buffer.len());
        if let Some(skipped) = skipped.filter(|skipped| skipped.saturating_add(min) <= self.buffer.len()) {
            return Ok(&self.buffer[skipped..]);
        }
        self.length = match follows {
            true => (2 * self.length).min(MAX_READ),
            false => MIN_READ,
        };
        // A bad block should cost only the bytes in it.
        if self.read(at, self.length.max(min).min(left)).is_err() {
            self.read(at, min)?;
        }
        Ok(&self.buffer)
    }

    fn read(&mut self, at: u64, length: usize) -> io::Result<()> {
        self.start = at;
        self.buffer.resize(length, 0);
        let read = self.file.read_exact_at(&mut self.buffer, at);
        if read.is_err() {
            self.buffer.clear();
        }
        read
    }
}
