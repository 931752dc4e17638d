//! A file of a layer's tree, compared with content that the tar-split holds itself: then nobody compared it while the tar
//! was put together.

use std::fs::File;
use std::io::Read as _;

use super::expected_tree::FoundFile;

/// Zeros that are compared at once.
const HOLE_PIECE: u64 = 64 << 10;

/// A file that is read along with what it must hold.
pub(super) struct FileComparison {
    file: Option<File>,
    buffer: Vec<u8>,
    /// What is wrong with it, once it is known.
    pub(super) flaw: Option<String>,
}

impl FileComparison {
    /// Opens the file; that it cannot be is a flaw.
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

    /// The next bytes must be these.
    pub(super) fn piece(&mut self, expected: &[u8]) {
        self.compare(expected.len(), |found| found == expected);
    }

    /// So many bytes must be zeros.
    pub(super) fn hole(&mut self, mut length: u64) {
        while length > 0 && self.file.is_some() {
            let piece = length.min(HOLE_PIECE);
            self.compare(piece as usize, |found| found.iter().all(|byte| *byte == 0));
            length -= piece;
        }
    }

    fn compare(&mut self, length: usize, is_same: impl Fn(&[u8]) -> bool) {
        let Some(file) = &mut self.file else { return };
        self.buffer.resize(length, 0);
        let flaw = match file.read_exact(&mut self.buffer) {
            Ok(()) if is_same(&self.buffer) => return,
            Ok(()) => "its content is not that of the tar".to_owned(),
            Err(error) => format!("it cannot be read: {error}"),
        };
        self.flaw = Some(flaw);
        self.file = None;
    }
}
