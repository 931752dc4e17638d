//! Creates scratch files: files without a name, which are gone when they are closed, also after `kill -9`.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

/// An empty file on the file system of this directory.
pub fn create(directory: impl AsFd) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match openat(&directory, ".", flags | OFlags::TMPFILE, mode) {
        // Not every file system has files without names (`open(2)`).
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let name = format!("scratch-{:016x}", rand::random::<u64>());
            let file = openat(
                &directory,
                name.as_str(),
                flags | OFlags::CREATE | OFlags::EXCL,
                mode,
            )?;
            unlinkat(&directory, name.as_str(), AtFlags::empty())?;
            Ok(file.into())
        }
        file => Ok(file?.into()),
    }
}
