//! The files of old images that a delta reads.

use std::fs::File;
use std::io;

/// Opens the files that a delta reads.
pub trait Sources: Send {
    /// Opens the regular file at `path` in the old image of this number. `path` is as the delta states it: relative,
    /// untrusted, perhaps not UTF-8.
    fn open(&self, image: usize, path: &[u8]) -> Result<Box<dyn SourceFile>, SourceError>;

    /// An empty file without a name, for inflated bytes.
    fn scratch_file(&self) -> io::Result<File>;
}

/// A file of an old image. Another program may change it while it is read.
pub trait SourceFile: Send {
    /// Reads up to `buffer.len()` bytes at `offset`; 0 bytes at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// Why a source cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The old image does not have the file, or not as a regular file.
    #[error("the old image has no regular file `{0}`")]
    Missing(String),
    /// The host refuses.
    #[error("cannot open the source `{path}`: {error}")]
    Host {
        /// The path in the old image.
        path: String,
        /// The system's error.
        error: io::Error,
    },
}

impl SourceFile for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, offset)
    }
}
