//! Streams a file as the body of a request, and counts the bytes that the connection took.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use futures::stream;
use reqwest::Body;
use tokio::sync::mpsc;

/// How much is read at a time.
const CHUNK: u64 = 256 << 10;

/// How many chunks are read ahead of the connection.
const AHEAD: usize = 2;

/// What a request sends. It can be sent more than once.
#[derive(Clone, Debug)]
pub(super) enum RequestBody {
    None,
    Bytes(Bytes),
    File(Arc<FileBody>),
}

impl RequestBody {
    /// How many bytes of a file the connection took; 0 for bytes in memory.
    pub(super) fn taken(&self) -> u64 {
        match self {
            Self::File(file) => file.taken.load(Ordering::Relaxed),
            _ => 0,
        }
    }

    /// How many bytes of a file were taken for the first time since the last call. A registry that breaks every upload off at
    /// the same byte makes no progress.
    pub(super) fn newly_taken(&self) -> u64 {
        match self {
            Self::File(file) => {
                let taken = self.taken();
                taken.saturating_sub(file.highest.fetch_max(taken, Ordering::Relaxed))
            }
            _ => 0,
        }
    }

    /// Whether the connection took all.
    pub(super) fn is_taken(&self) -> bool {
        match self {
            Self::File(file) => self.taken() >= file.size,
            _ => true,
        }
    }
}

/// A file that is uploaded, perhaps several times, and how much of it was taken this time.
#[derive(Debug)]
pub(super) struct FileBody {
    file: Arc<File>,
    pub(super) size: u64,
    taken: Arc<AtomicU64>,
    /// The most that was taken of it in any stream.
    highest: AtomicU64,
}

impl FileBody {
    /// The first `size` bytes of `file`. An error if it is shorter.
    pub(super) fn new(file: File, size: u64) -> io::Result<Arc<Self>> {
        if file.metadata()?.len() < size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Arc::new(Self {
            file: Arc::new(file),
            size,
            taken: Arc::default(),
            highest: AtomicU64::default(),
        }))
    }

    /// The file from its beginning. A thread reads it, because a disk may be slow.
    pub(super) fn stream(&self) -> Body {
        let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(AHEAD);
        let (file, size) = (Arc::clone(&self.file), self.size);
        tokio::task::spawn_blocking(move || {
            let mut offset = 0;
            while offset < size {
                let chunk = read(&file, offset, CHUNK.min(size - offset));
                let is_last = chunk.is_err();
                offset += CHUNK;
                // The connection broke, or this is the error that breaks it.
                if sender.blocking_send(chunk).is_err() || is_last {
                    return;
                }
            }
        });
        let taken = Arc::clone(&self.taken);
        taken.store(0, Ordering::Relaxed);
        Body::wrap_stream(stream::unfold(receiver, move |mut receiver| {
            let taken = Arc::clone(&taken);
            async move {
                let chunk = receiver.recv().await?;
                let length = chunk.as_ref().map_or(0, Bytes::len);
                taken.fetch_add(length as u64, Ordering::Relaxed);
                Some((chunk, receiver))
            }
        }))
    }
}

fn read(file: &File, offset: u64, length: u64) -> io::Result<Bytes> {
    let mut chunk = BytesMut::zeroed(usize::try_from(length).expect("a chunk fits into memory"));
    file.read_exact_at(&mut chunk, offset)?;
    Ok(chunk.freeze())
}
