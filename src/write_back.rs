//! Gives bytes of a file to the disk ahead of the sync that makes them durable, so that the sync is short; and takes
//! them out of the memory when they are done with.
//!
//! Nothing here makes anything durable: `sync_file_range(2)` writes data alone and flushes no cache of the disk.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;

/// Has the kernel begin to write these bytes, and waits for nothing.
///
/// # Errors
/// When the disk did not take what it was given.
pub fn start(file: &File, bytes: Range<u64>) -> io::Result<()> {
    sync_file_range(file, bytes, libc::SYNC_FILE_RANGE_WRITE)
}

/// Has the kernel write these bytes, and waits until it has.
///
/// # Errors
/// As for [`start`].
pub fn finish(file: &File, bytes: Range<u64>) -> io::Result<()> {
    let all =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_file_range(file, bytes, all)
}

/// Has the kernel forget what it keeps in memory of a file that nobody will read again soon; what is not on the disk yet
/// stays. Advice: where it cannot be taken nothing is lost but the memory.
pub fn forget(file: &File) {
    if let Err(error) = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed) {
        tracing::debug!("a file stays in the page cache: {error}");
    }
}

fn sync_file_range(file: &File, bytes: Range<u64>, flags: libc::c_uint) -> io::Result<()> {
    let number = |bytes: u64| i64::try_from(bytes).map_err(io::Error::other);
    let (offset, length) = (
        number(bytes.start)?,
        number(bytes.end.saturating_sub(bytes.start))?,
    );
    // SAFETY: the descriptor is open while `file` is borrowed; all else are numbers.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // Not every file system can, nor does every sandbox let us; the sync that follows does it all.
        Some(libc::ENOSYS | libc::EPERM | libc::EINVAL | libc::ESPIPE | libc::EOPNOTSUPP) => Ok(()),
        // An error of the disk is told once, and this may have been the time.
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_back_is_left_to_the_sync() {
        let (reader, writer) = io::pipe().expect("a pipe");
        start(&File::from(std::os::fd::OwnedFd::from(writer)), 0..1).expect("a pipe has no disk");
        drop(reader);
        finish(&tempfile::tempfile().expect("a file"), 0..1 << 20).expect("there is nothing to write");
    }
}
