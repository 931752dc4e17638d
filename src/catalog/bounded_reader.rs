//! The bytes of a catalog's files, counted, and cut off when the run is to stop.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read};

use super::error::CatalogError;
use crate::cancel::Cancel;

/// The longest document. A bundle may hold all its manifests; the cluster's API takes none above 1.5 MiB.
pub(super) const DOCUMENT_LIMIT: u64 = 64 << 20;

/// The largest catalog, all its files together: a minute's reading, and thirty times what is usual.
const CATALOG_LIMIT: u64 = 16 << 30;

/// How much is read at a time, and between two looks at the signal to stop.
const BUFFER: usize = 256 << 10;

/// What may still be read.
#[derive(Debug)]
pub(super) struct Allowance<'a> {
    document: Cell<u64>,
    catalog: Cell<u64>,
    pub(super) cancel: &'a Cancel,
}

impl<'a> Allowance<'a> {
    pub(super) fn new(cancel: &'a Cancel) -> Self {
        Self {
            document: Cell::new(DOCUMENT_LIMIT),
            catalog: Cell::new(CATALOG_LIMIT),
            cancel,
        }
    }

    /// Allows for another document.
    pub(super) fn renew(&self) {
        self.document.set(DOCUMENT_LIMIT);
    }

    /// What ended the reading of `file`, if it was not the file's content.
    pub(super) fn exceeded(&self, file: &str) -> Result<(), CatalogError> {
        self.cancel.check()?;
        let too_much = |limit, what| CatalogError::TooMuch {
            file: file.to_owned(),
            limit,
            what,
        };
        if self.catalog.get() == 0 {
            return Err(too_much(CATALOG_LIMIT, "bytes, all files before it included"));
        }
        if self.document.get() == 0 {
            return Err(too_much(DOCUMENT_LIMIT, "bytes in one document"));
        }
        Ok(())
    }
}

/// A file that is read under an allowance.
pub(super) struct Watched<'a> {
    file: File,
    allowance: &'a Allowance<'a>,
}

impl<'a> Watched<'a> {
    pub(super) fn buffered(file: File, allowance: &'a Allowance<'a>) -> BufReader<Self> {
        allowance.renew();
        BufReader::with_capacity(BUFFER, Self { file, allowance })
    }
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let allowance = self.allowance;
        allowance.cancel.check().map_err(io::Error::other)?;
        let read = self.file.read(buffer)?;
        for left in [&allowance.document, &allowance.catalog] {
            left.set(left.get().saturating_sub(read as u64));
            if read > 0 && left.get() == 0 {
                return Err(io::Error::from(io::ErrorKind::FileTooLarge));
            }
        }
        Ok(read)
    }
}
