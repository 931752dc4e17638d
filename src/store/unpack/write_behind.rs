//! Writes a large file to the disk while it is being unpacked, so that little is left for the sync before a commit.
//!
//! ```text
//! |== on the disk ==|---- being written, at most WINDOW --|~ CHUNK ~|
//! ^ 0               ^ waited_for                            ^ started ^ written
//! ```
//!
//! Layers are synced with the whole file system, once, before they become visible. Until then the kernel would let a
//! tenth of the memory become dirty and write it in one go. Every `fsync` of other programs would wait behind it, and
//! a process in that wait cannot exit, not even when killed. So a large file is written to the disk in chunks, and an
//! unpacker that is faster than the disk waits for the disk. Small files and the ends of large ones are added to a queue
//! ([`WriteQueue`](crate::write_back::WriteQueue)).
//!
//! This makes nothing durable; the sync is still needed.

use std::fs::File;
use std::io;
use std::ops::Range;

use crate::write_back;

/// Bytes that are written at once; large enough for a disk's full speed.
const CHUNK: u64 = 1 << 20;

/// Bytes of one file that may be in progress: less than a tenth of a second of a slow disk. As many files are written
/// at the same time as layers are unpacked.
const WINDOW: u64 = 8 << 20;

/// How much of a file, which is written from start to end, has been passed to the disk.
#[derive(Debug, Default)]
pub(super) struct WriteBehind {
    written: u64,
    started: u64,
    waited_for: u64,
}

impl WriteBehind {
    /// The bytes that were not passed to the disk.
    pub(super) fn rest(&self) -> Range<u64> {
        self.started..self.written
    }

    /// Records that `bytes` more were written to `file`. Waits for the disk if it is too far behind.
    ///
    /// # Errors
    /// If the disk failed to write earlier bytes.
    pub(super) fn wrote(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        self.written += bytes;
        if self.written - self.started < CHUNK {
            return Ok(());
        }
        write_back::start(file, self.started..self.written)?;
        self.started = self.written;
        let due = self.started.saturating_sub(WINDOW);
        if due > self.waited_for {
            write_back::finish(file, self.waited_for..due)?;
            self.waited_for = due;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::{Mode, OFlags};

    const KIB: u64 = 1 << 10;

    /// Writes of 300 KiB reach the megabyte with every fourth one, and 8 MiB before that the disk is waited for.
    #[test]
    fn a_window_at_most_is_on_its_way() {
        let file = tempfile::tempfile().unwrap();
        let mut behind = WriteBehind::default();
        let mut steps = Vec::new();
        for _ in 0..40 {
            behind.wrote(&file, 300 * KIB).unwrap();
            steps.push((behind.started / KIB, behind.waited_for / KIB));
        }
        steps.dedup();
        assert_eq!(
            steps,
            [
                (0, 0),
                (1200, 0),
                (2400, 0),
                (3600, 0),
                (4800, 0),
                (6000, 0),
                (7200, 0),
                (8400, 208),
                (9600, 1408),
                (10800, 2608),
                (12000, 3808),
            ]
        );
    }

    /// A descriptor with `O_PATH` refuses what a disk would do, so an error shows that the kernel was called.
    #[test]
    fn the_kernel_is_called_for_a_whole_piece_and_not_before() {
        let file = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let file = File::from(file);
        let mut behind = WriteBehind::default();
        behind.wrote(&file, CHUNK - 1).unwrap();
        let error = behind.wrote(&file, 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}
