//! Decompresses, hashes and counts the bytes of a blob's tar as they are read, and enforces limits and stops.
//!
//! Bytes are hashed as soon as they leave the decompressor, so the diffID covers everything up to the end of the
//! blob, whatever the tar reader uses. The buffer is small enough to stay in the CPU's second-level cache while it is
//! inflated, hashed, checksummed and written.

use std::io::{self, Read};

use super::decompressor::{Decompressor, OpenError};
use super::error::{EntryPosition, Fault, UnpackError};
use super::limits::UnpackLimits;
use super::space_budget::SpaceReservation;
use crate::cancel::Cancel;
use crate::oci::{DiffId, Hasher};
use crate::store::Compression;

/// Size of the buffer for uncompressed bytes.
const BUFFER: usize = 256 << 10;

/// Reads the blob until the run is stopped: a blob may consist of empty gzip members only, which keep the
/// decompressor busy without any output.
struct CancellableReader<'a, R> {
    blob: R,
    cancel: &'a Cancel,
}

impl<R: Read> Read for CancellableReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.cancel.check().map_err(io::Error::other)?;
        self.blob.read(buffer)
    }
}

/// A blob being read.
pub(in crate::store) struct TarStream<'a, R: Read> {
    decompressor: Decompressor<CancellableReader<'a, R>>,
    buffer: Box<[u8]>,
    /// The unread range of `buffer`.
    unread: std::ops::Range<usize>,
    hasher: Hasher,
    /// Bytes that left the decompressor.
    produced: u64,
    /// Bytes of holes that were written to files.
    holes: u64,
    limits: UnpackLimits<'a>,
    /// Space for bytes beyond the limit.
    reservation: SpaceReservation<'a>,
    cancel: &'a Cancel,
}

impl<'a, R: Read> TarStream<'a, R> {
    pub(in crate::store) fn open(
        blob: R,
        limits: UnpackLimits<'a>,
        cancel: &'a Cancel,
    ) -> Result<Self, UnpackError> {
        let opened = Decompressor::open(CancellableReader { blob, cancel }, limits.is_compressible);
        if opened.is_err() {
            // A stop causes an error too.
            cancel.check()?;
        }
        let decompressor = opened.map_err(|error| match error {
            OpenError::Content(fault) => {
                let (offset, entry) = (0, None);
                let position = EntryPosition { offset, entry };
                UnpackError::Content { position, fault }
            }
            OpenError::Host(error) => UnpackError::host("read", b"the blob", error),
        })?;
        Ok(Self {
            decompressor,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            unread: 0..0,
            hasher: Hasher::default(),
            produced: 0,
            holes: 0,
            reservation: SpaceReservation::of(limits.budget),
            limits,
            cancel,
        })
    }

    /// Compression of the blob.
    pub(in crate::store) fn compression(&self) -> Compression {
        self.decompressor.compression()
    }

    /// The bounds that hold for this blob.
    pub(in crate::store) fn limits(&self) -> &UnpackLimits<'a> {
        &self.limits
    }

    /// Bytes of the tar that were returned.
    pub(in crate::store) fn position(&self) -> u64 {
        self.produced - self.unread.len() as u64
    }

    /// True if there are more bytes.
    pub(in crate::store) fn has_more(&mut self) -> Result<bool, UnpackError> {
        if self.unread.is_empty() {
            self.fill()?;
        }
        Ok(!self.unread.is_empty())
    }

    /// Up to `max` of the next bytes; empty at the end of the blob.
    pub(in crate::store) fn take(&mut self, max: u64) -> Result<&[u8], UnpackError> {
        self.has_more()?;
        let start = self.unread.start;
        let length = self.unread.len().min(usize::try_from(max).unwrap_or(usize::MAX));
        self.unread.start += length;
        Ok(&self.buffer[start..start + length])
    }

    /// Fills `block` up to the end of the blob, and returns the number of bytes.
    pub(in crate::store) fn take_into(&mut self, block: &mut [u8]) -> Result<usize, UnpackError> {
        let mut filled = 0;
        while filled < block.len() {
            let chunk = self.take((block.len() - filled) as u64)?;
            if chunk.is_empty() {
                break;
            }
            block[filled..filled + chunk.len()].copy_from_slice(chunk);
            filled += chunk.len();
        }
        Ok(filled)
    }

    /// Counts bytes that are written to files but are not in the tar.
    pub(in crate::store) fn charge_holes(&mut self, bytes: u64) -> Result<(), UnpackError> {
        self.holes = self.holes.saturating_add(bytes);
        self.check_bytes()
    }

    /// A fault at the current position.
    pub(in crate::store) fn content(&self, fault: Fault) -> UnpackError {
        UnpackError::Content {
            position: self.entry_position(),
            fault,
        }
    }

    /// An exceeded limit at the current position.
    pub(in crate::store) fn limit(&self, what: &'static str, max: u64, found: u64) -> UnpackError {
        UnpackError::Limit {
            what,
            max,
            found,
            position: self.entry_position(),
        }
    }

    /// Fails if the run is stopped.
    pub(in crate::store) fn check_cancel(&self) -> Result<(), UnpackError> {
        Ok(self.cancel.check()?)
    }

    /// The SHA-256 of the uncompressed bytes and their number; the blob must have been read to its end.
    pub(in crate::store) fn finish(self) -> (DiffId, u64) {
        self.reservation.keep();
        (DiffId(self.hasher.finish()), self.produced)
    }

    fn entry_position(&self) -> EntryPosition {
        EntryPosition {
            offset: self.position(),
            entry: None,
        }
    }

    fn fill(&mut self) -> Result<(), UnpackError> {
        self.check_cancel()?;
        let read = self.decompressor.read(&mut self.buffer);
        if read.is_err() {
            // A stop causes an error too.
            self.check_cancel()?;
        }
        let read = read.map_err(|source| match source.raw_os_error() {
            Some(_) => UnpackError::host("read", b"the blob", source),
            None => {
                let format = match self.decompressor.compression() {
                    Compression::Uncompressed => "the blob",
                    Compression::Gzip => "gzip",
                    Compression::Zstd => "zstd",
                };
                self.content(Fault::Compression { format, source })
            }
        })?;
        self.hasher.update(&self.buffer[..read]);
        self.unread = 0..read;
        self.produced += read as u64;
        self.check_bytes()
    }

    fn check_bytes(&mut self) -> Result<(), UnpackError> {
        let (found, limit) = (self.produced.saturating_add(self.holes), self.limits.bytes);
        match self.limits.budget {
            _ if found > self.limits.ceiling => {
                Err(self.limit("uncompressed bytes", self.limits.ceiling, found))
            }
            _ if self.reservation.grow_to(found.saturating_sub(limit)) => Ok(()),
            None => Err(self.limit("uncompressed bytes", limit, found)),
            Some(_) => Err(UnpackError::OverBudget {
                found,
                position: self.entry_position(),
            }),
        }
    }
}
