//! Reads one blob of a medium, ahead of its user.
//!
//! The kernel is asked for the next [`WINDOW`] bytes before they are needed, because its own read-ahead (128 KiB) is too short
//! to keep a disk busy while the last bytes are hashed. What was read is dropped from the page cache: it is in the spool
//! then, and the node needs its memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use rustix::fs::{Advice, fadvise};

use super::medium::Medium;
use super::reading_lock::ReadingTurn;
use super::tree::Opened;

/// How far ahead the kernel is asked to read.
const WINDOW: u64 = 8 << 20;

/// For how much it is asked at once. Of a longer range it reads only what the device takes in one request, or what it reads ahead
/// by itself (`force_page_cache_ra` in `mm/readahead.c`): at least this.
const STEP: u64 = 128 << 10;

/// Reads exactly one blob. While it exists, no other blob of the medium is read.
#[derive(Debug)]
pub struct MediumReader {
    medium: Arc<Medium>,
    file: Arc<File>,
    /// Where the blob begins in the file.
    start: u64,
    size: u64,
    /// The next byte, from the blob's start.
    position: u64,
    /// Up to here the kernel was asked to read.
    requested: u64,
    /// Up to here the page cache was dropped.
    dropped: u64,
    _turn: ReadingTurn,
}

impl MediumReader {
    pub(super) fn new(medium: Arc<Medium>, opened: Opened, size: u64, turn: ReadingTurn) -> Self {
        Self {
            medium,
            file: opened.file,
            start: opened.start,
            size,
            position: 0,
            requested: 0,
            dropped: 0,
            _turn: turn,
        }
    }

    /// Keeps between one and two windows requested, and drops whole windows that were read.
    fn move_window(&mut self) {
        if self.position + WINDOW > self.requested && self.requested < self.size {
            let end = self.position.saturating_add(2 * WINDOW).min(self.size);
            while self.requested < end {
                let next = (self.requested + STEP).min(end);
                self.advise(self.requested, next, Advice::WillNeed);
                self.requested = next;
            }
        }
        if self.position - self.dropped >= WINDOW {
            self.drop_pages();
        }
    }

    fn drop_pages(&mut self) {
        self.advise(self.dropped, self.position, Advice::DontNeed);
        self.dropped = self.position;
    }

    /// Without the advice, reading is only slower.
    fn advise(&self, from: u64, to: u64, advice: Advice) {
        let length = NonZeroU64::new(to.saturating_sub(from));
        if length.is_some()
            && let Err(error) = fadvise(&self.file, self.start + from, length, advice)
        {
            tracing::debug!("cannot advise the kernel about a medium: {error}");
        }
    }
}

impl Read for MediumReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.size.saturating_sub(self.position);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        if length == 0 {
            return Ok(0);
        }
        self.move_window();
        let at = self.start + self.position;
        let read = self
            .medium
            .read(|| self.file.read_at(&mut buffer[..length], at))?;
        if read == 0 {
            let why = format!("the file ends {left} bytes before the end of the blob");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for MediumReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.size.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let position = position.ok_or(io::ErrorKind::InvalidInput)?;
        self.drop_pages();
        self.position = position;
        (self.requested, self.dropped) = (position, position);
        Ok(position)
    }
}

impl Drop for MediumReader {
    fn drop(&mut self) {
        self.drop_pages();
    }
}
