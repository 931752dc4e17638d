//! Defines the files of old images that a delta reads, and who opens them.

use std::fs::File;
use std::io;

/// Opens the files that a delta reads.
pub trait Sources: Send {
    /// Opens the regular file at `path` in the old image of this number. `path` is as the delta states it: relative,
    /// untrusted, perhaps not UTF-8.
    fn open(&self, image: usize, path: &[u8]) -> Result<Box<dyn SourceFile>, SourceError>;

    /// An empty file without a name, for this many inflated bytes.
    fn scratch_file(&self, length: u64) -> io::Result<ScratchFile>;
}

/// A file without a name. The space that is reserved for it is released after it is closed.
pub struct ScratchFile {
    file: File,
    _reservation: Option<Box<dyn Send>>,
}

impl ScratchFile {
    /// For an empty file. `reservation` releases the space when it is dropped.
    pub fn new(file: File, reservation: impl Send + 'static) -> Self {
        Self {
            file,
            _reservation: Some(Box::new(reservation)),
        }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl From<File> for ScratchFile {
    /// Without a reservation.
    fn from(file: File) -> Self {
        Self {
            file,
            _reservation: None,
        }
    }
}

impl SourceFile for ScratchFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
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
