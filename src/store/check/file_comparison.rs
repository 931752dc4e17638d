//! Compares a file of a layer with the copy of its content in the tar-split.

use std::fs::File;
use std::io::Read as _;

use super::expected_tree::FoundFile;

/// Zeros that are compared at once.
const HOLE_CHUNK: u64 = 64 << 10;

/// A file that is read while its expected content arrives.
pub(super) struct FileComparison {
    file: Option<File>,
    buffer: Vec<u8>,
    /// The difference, once one was found.
    pub(super) flaw: Option<String>,
}

impl FileComparison {
    /// Opens the file. A failure is a flaw.
    pub(super) fn of(file: &FoundFile) -> Self {
        let mut comparison = Self {
            file: None,
            buffer: Vec::new(),
            flaw: None,
        };
        match file.open() {
            Ok(file) => comparison.file = Some(file.into()),
            Err(errno) => comparison.flaw = Some(format!("it cannot be opened: {errno}")),
        }
        comparison
    }

    /// Compares the next bytes.
    pub(super) fn bytes(&mut self, expected: &[u8]) {
        self.compare(expected.len(), |found| found == expected);
    }

    /// Compares the next `length` bytes with zeros.
    pub(super) fn hole(&mut self, mut length: u64) {
        while length > 0 && self.file.is_some() {
            let chunk = length.min(HOLE_CHUNK);
            self.compare(chunk as usize, |found| found.iter().all(|byte| *byte == 0));
            length -= chunk;
        }
    }

    fn compare(&mut self, length: usize, is_same: impl Fn(&[u8]) -> bool) {
        let Some(file) = &mut self.file else { return };
        self.buffer.resize(length, 0);
        let flaw = match file.read_exact(&mut self.buffer) {
            Ok(()) if is_same(&self.buffer) => return,
            Ok(()) => "its content differs from the tar".to_owned(),
            Err(error) => format!("it cannot be read: {error}"),
        };
        self.flaw = Some(flaw);
        self.file = None;
    }
}
