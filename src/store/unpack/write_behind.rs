//! Gives a file to the disk while it is being written, so that little is left for the sync before a commit.
//!
//! ```text
//! |== on the disk ==|---- on its way, at most WINDOW ----|~ PIECE ~|
//! ^ 0               ^ waited_for                            ^ started ^ written
//! ```
//!
//! Layers are synced with the whole file system, once, before they become visible. The kernel would let a tenth of the
//! memory become dirty until then, and write it in one go, with everybody's `fsync` queued behind it; and a process that
//! waits for it cannot leave, not even when killed. So a large file goes to the disk piece by piece, and who writes faster
//! than the disk waits for the disk. Small files and the ends of large ones are left to the sync: to give each of them
//! to the disk by itself made a run half as long again, and their neighbour waited no less (`benches/neighbour.rs`).
//!
//! This makes nothing durable; the sync still has to come.

use std::fs::File;
use std::io;

use crate::write_back;

/// Bytes that are given to the disk at once; large enough for a disk's full speed.
const PIECE: u64 = 1 << 20;

/// Bytes of one file that may be on their way: less than a tenth of a second of a slow disk. As many files are written at
/// the same time as layers are unpacked.
const WINDOW: u64 = 8 << 20;

/// How far a file, which is written from its start to its end, is on its way to the disk.
#[derive(Debug, Default)]
pub(super) struct WriteBehind {
    written: u64,
    started: u64,
    waited_for: u64,
}

impl WriteBehind {
    /// Notes that `bytes` more were written to `file`. Waits for the disk if it is too far behind.
    ///
    /// # Errors
    /// When the disk did not take what was written earlier.
    pub(super) fn wrote(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        self.written += bytes;
        if self.written - self.started < PIECE {
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
        behind.wrote(&file, PIECE - 1).unwrap();
        let error = behind.wrote(&file, 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}
