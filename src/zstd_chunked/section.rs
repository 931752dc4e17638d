//! Reads a range of a blob, and decompresses it.

use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::rc::Rc;

use crate::delta::SourceFile;
use crate::spool::BlobParts;

/// Compressed bytes that are read at once.
const BUFFER: usize = 64 << 10;

/// Base-2 logarithm of the largest zstd window, 32 MiB: the largest that podman's encoder has used.
const WINDOW_LOG_MAX: u32 = 25;

/// The decompressed bytes of a range.
pub(super) type Decompressed = io::Take<zstd::Decoder<'static, BufReader<Section>>>;

/// A range of a blob.
pub(super) struct Section {
    blob: Rc<dyn SourceFile>,
    rest: Range<u64>,
}

impl Section {
    pub(super) fn new(blob: &Rc<dyn SourceFile>, range: Range<u64>) -> Self {
        Self {
            blob: Rc::clone(blob),
            rest: range,
        }
    }

    /// At most `max` decompressed bytes.
    pub(super) fn decompress(self, max: u64) -> io::Result<Decompressed> {
        let mut decoder = zstd::Decoder::with_buffer(BufReader::with_capacity(BUFFER, self))?;
        decoder.window_log_max(WINDOW_LOG_MAX)?;
        Ok(decoder.take(max))
    }
}

impl Read for Section {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.rest.end - self.rest.start).unwrap_or(usize::MAX);
        let length = left.min(out.len());
        if length == 0 {
            return Ok(0);
        }
        let read = self.blob.read_at(&mut out[..length], self.rest.start)?;
        self.rest.start += read as u64;
        Ok(read)
    }
}

impl SourceFile for BlobParts {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        Self::read_at(self, buffer, offset)
    }
}
