//! Reads one blob of an output: a whole file, or a part of a tar.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

/// The bytes of a blob. Several readers of one file do not disturb each other.
#[derive(Clone, Debug)]
pub(in crate::export) struct BlobReader {
    file: Arc<File>,
    /// Where the blob begins in the file.
    start: u64,
    size: u64,
    /// The offset of the next byte in the blob.
    offset: u64,
}

impl BlobReader {
    /// The `size` bytes from `start` on.
    pub(in crate::export) fn new(file: Arc<File>, start: u64, size: u64) -> Self {
        Self {
            file,
            start,
            size,
            offset: 0,
        }
    }

    /// The length of the blob in bytes.
    pub(in crate::export) fn size(&self) -> u64 {
        self.size
    }
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.size.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        let read = self
            .file
            .read_at(&mut buffer[..wanted], self.start + self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Seek for BlobReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let offset = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
            SeekFrom::Current(by) => self.offset.checked_add_signed(by),
        };
        self.offset = offset.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.offset)
    }
}
