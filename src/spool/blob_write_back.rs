//! Adds the bytes of a blob to the write queue while they arrive. Otherwise the sync before a commit writes them all at once:
//! it syncs the whole file system.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::directory::SpoolDirectory;
use crate::write_back::WriteQueue;

/// Bytes of one piece. Smaller blobs and ends are left to the sync.
const PIECE: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct BlobWriteBack {
    queue: WriteQueue,
    /// Opened again: the kernel reports an error of the disk once for each open file, and the thread that makes the blob
    /// durable must receive it.
    file: Option<Arc<File>>,
    /// The bytes before this offset in the file were added, or were there before.
    added: u64,
}

impl BlobWriteBack {
    pub(super) fn new(queue: &WriteQueue, dir: &SpoolDirectory, name: &str, size: u64) -> Self {
        let wanted = size >= PIECE && !queue.is_off();
        let file = || dir.open_raw(name, OFlags::RDWR).ok().map(Arc::new);
        Self {
            queue: queue.clone(),
            file: wanted.then(file).flatten(),
            added: 0,
        }
    }

    /// Skips what is in the file already.
    pub(super) fn start_at(&mut self, offset: u64) {
        self.added = offset;
    }

    /// The file has this length now.
    pub(super) fn grown_to(&mut self, length: u64) {
        let Some(file) = &self.file else {
            return;
        };
        if length.saturating_sub(self.added) >= PIECE && self.queue.offer(file, self.added..length) {
            self.added = length;
        }
    }
}
