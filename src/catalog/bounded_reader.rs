//! Reads a catalog's files up to a limit of bytes, and stops when the run is cancelled.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read};

use super::error::CatalogError;
use crate::cancel::Cancel;

/// The longest document. A bundle may contain all its manifests; the cluster's API refuses objects above 1.5 MiB.
pub(super) const DOCUMENT_LIMIT: u64 = 64 << 20;

/// The largest catalog, all its files together: it takes a minute to read, and is thirty times the usual size.
const CATALOG_LIMIT: u64 = 16 << 30;

/// How many bytes are read between two checks for cancellation.
const BUFFER: usize = 256 << 10;

/// How many bytes may still be read.
#[derive(Debug)]
pub(super) struct ReadBudget<'a> {
    document: Cell<u64>,
    catalog: Cell<u64>,
    pub(super) cancel: &'a Cancel,
}

impl<'a> ReadBudget<'a> {
    pub(super) fn new(cancel: &'a Cancel) -> Self {
        Self {
            document: Cell::new(DOCUMENT_LIMIT),
            catalog: Cell::new(CATALOG_LIMIT),
            cancel,
        }
    }

    /// Resets the limit of the document, for the next document.
    pub(super) fn next_document(&self) {
        self.document.set(DOCUMENT_LIMIT);
    }

    /// Returns an error if cancellation or a limit ended the reading of `file`.
    pub(super) fn check(&self, file: &str) -> Result<(), CatalogError> {
        self.cancel.check()?;
        let exceeded = |limit, what| CatalogError::LimitExceeded {
            file: file.to_owned(),
            limit,
            what,
        };
        if self.catalog.get() == 0 {
            return Err(exceeded(CATALOG_LIMIT, "bytes, all files before it included"));
        }
        if self.document.get() == 0 {
            return Err(exceeded(DOCUMENT_LIMIT, "bytes in one document"));
        }
        Ok(())
    }
}

/// A file that is read within a budget.
pub(super) struct BoundedReader<'a> {
    file: File,
    budget: &'a ReadBudget<'a>,
}

impl<'a> BoundedReader<'a> {
    pub(super) fn buffered(file: File, budget: &'a ReadBudget<'a>) -> BufReader<Self> {
        budget.next_document();
        BufReader::with_capacity(BUFFER, Self { file, budget })
    }
}

impl Read for BoundedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let budget = self.budget;
        budget.cancel.check().map_err(io::Error::other)?;
        let read = self.file.read(buffer)?;
        for left in [&budget.document, &budget.catalog] {
            left.set(left.get().saturating_sub(read as u64));
            if read > 0 && left.get() == 0 {
                return Err(io::Error::from(io::ErrorKind::FileTooLarge));
            }
        }
        Ok(read)
    }
}
