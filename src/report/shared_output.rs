//! Shares one output stream between the log and the progress bars.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// The stream; clones share it.
#[derive(Clone)]
pub(super) struct SharedOutput(Arc<Mutex<dyn Write + Send>>);

impl SharedOutput {
    pub(super) fn new(stream: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(stream)))
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(bytes)
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}
