//! Starts writing a file's bytes to the disk before the sync, so that the sync is short, and drops them from the page
//! cache.
//!
//! Nothing here makes bytes durable: `sync_file_range(2)` writes data alone and does not flush the disk's cache.

mod io_budget;
mod write_queue;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;

pub use io_budget::{IoBudget, IoBudgetError};
pub use write_queue::WriteQueue;

/// Makes the kernel start writing these bytes, and does not wait for the disk unless its queue is full.
///
/// # Errors
/// If the writing cannot start, for instance because no blocks can be allocated.
pub fn start(file: &File, bytes: Range<u64>) -> io::Result<()> {
    sync_file_range(file, bytes, libc::SYNC_FILE_RANGE_WRITE)
}

/// Makes the kernel write these bytes, and waits for it.
///
/// # Errors
/// Also if the disk failed to write earlier bytes of this file.
pub fn finish(file: &File, bytes: Range<u64>) -> io::Result<()> {
    let all =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_file_range(file, bytes, all)
}

/// Drops a file from the page cache that will not be read again soon; bytes that are not on the disk yet stay. This
/// is advice (`posix_fadvise(2)`): a failure only costs memory.
pub fn forget(file: &File) {
    if let Err(error) = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed) {
        tracing::debug!("cannot drop a file from the page cache: {error}");
    }
}

fn sync_file_range(file: &File, bytes: Range<u64>, flags: libc::c_uint) -> io::Result<()> {
    let number = |bytes: u64| i64::try_from(bytes).map_err(io::Error::other);
    let (offset, length) = (
        number(bytes.start)?,
        number(bytes.end.saturating_sub(bytes.start))?,
    );
    // SAFETY: the descriptor is open while `file` is borrowed; the other arguments are numbers.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // Not every file system or sandbox supports the call; the sync that follows writes everything.
        Some(libc::ENOSYS | libc::EPERM | libc::EINVAL | libc::ESPIPE | libc::EOPNOTSUPP) => Ok(()),
        // The kernel reports an error of the disk once, and this call may have received it.
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_files_are_left_to_the_sync() {
        let (reader, writer) = io::pipe().expect("a pipe");
        start(&File::from(std::os::fd::OwnedFd::from(writer)), 0..1).expect("a pipe has no disk");
        drop(reader);
        finish(&tempfile::tempfile().expect("a file"), 0..1 << 20).expect("there is nothing to write");
    }
}
