//! Gives a file to the disk while it is being written, so that little is left for the sync before a commit.
//!
//! ```text
//! |== on the disk ==|---- on its way, at most WINDOW ----|~ PIECE ~|
//! ^ 0               ^ awaited                            ^ started ^ written
//! ```
//!
//! Layers are synced with the whole file system, once, before they become visible. The kernel would let a tenth of the
//! memory become dirty until then, and write it in one go, with everybody's `fsync` queued behind it; and a process that
//! waits for it cannot leave, not even when killed. So each file goes to the disk when it is whole, a large one piece by
//! piece, and who writes faster than the disk waits for the disk.
//!
//! This makes nothing durable: `sync_file_range` writes data alone and flushes no cache. The sync still has to come.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

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
    awaited: u64,
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
        self.start(file)?;
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        let due = self.started.saturating_sub(WINDOW);
        if due > self.awaited {
            sync_range(file, self.awaited, due, flags)?;
            self.awaited = due;
        }
        Ok(())
    }

    /// Gives the rest of `file` to the disk, and waits for nothing: that would cost a turn of the disk for each small
    /// file.
    pub(super) fn start(&mut self, file: &File) -> io::Result<()> {
        if self.written > self.started {
            sync_range(file, self.started, self.written, libc::SYNC_FILE_RANGE_WRITE)?;
            self.started = self.written;
        }
        Ok(())
    }
}

fn sync_range(file: &File, from: u64, to: u64, flags: libc::c_uint) -> io::Result<()> {
    let offset = |bytes: u64| i64::try_from(bytes).map_err(io::Error::other);
    // SAFETY: the descriptor is open while `file` is borrowed; all else are numbers.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), offset(from)?, offset(to - from)?, flags) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_window_at_most_is_on_its_way() {
        let mut file = tempfile::tempfile().unwrap();
        let mut behind = WriteBehind::default();
        let piece = vec![7; 300 << 10];
        for _ in 0..60 {
            file.write_all(&piece).unwrap();
            behind.wrote(&file, piece.len() as u64).unwrap();
            assert!(behind.written - behind.started < PIECE);
            assert!(behind.started - behind.awaited <= WINDOW);
        }
        assert!(behind.awaited > 0);
        behind.start(&file).unwrap();
        assert_eq!(behind.started, file.metadata().unwrap().len());
        assert_eq!(file.metadata().unwrap().len(), 60 * (300 << 10));
    }
}
