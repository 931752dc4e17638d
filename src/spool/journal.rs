//! The journal of one file: how far its bytes are known to be right, in a form that a torn write cannot forge.
//!
//! ```text
//! 00000000000002097152 9c56…64 digits…01ab 5d01…16 digits…77c2⏎       103 bytes, one record
//! └ offset             └ SHA-256 of the    └ the first 8 bytes of SHA-256 of
//!   in bytes             file's first        `<name of the file> <offset> <SHA-256 of the prefix>`
//!                        `offset` bytes      without its ending
//! ```
//!
//! A record proves itself twice. Its own sum tells a line that was torn, lost, or written for another blob. And it is
//! only believed after the bytes of the prefix, read back from the disk, have been hashed and have the digest it
//! names; the order in which a disk keeps what it is given therefore decides how much is lost, and never what is
//! believed. Lines have one length, so that a bad one spoils none after it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use crate::oci::Digest;

use super::Shared;
use super::file_names::FileNames;

/// Length of a record in bytes.
const LINE: usize = 20 + 1 + 64 + 1 + SUM + 1;

/// Hexadecimal digits of a record's own sum.
const SUM: usize = 16;

/// A journal has no more records, and no more is read of one: 824 KiB.
const MOST: usize = 8192;

/// The first `offset` bytes of a file have the digest `prefix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Record {
    pub(super) offset: u64,
    pub(super) prefix: Digest,
}

impl Record {
    fn line(&self, stem: &FileNames) -> String {
        let (offset, prefix) = (self.offset, self.prefix.hex());
        let sum = Digest::of(format!("{stem} {offset} {prefix}").as_bytes()).hex();
        format!("{offset:020} {prefix} {}\n", &sum[..SUM])
    }

    fn parse(line: &[u8], stem: &FileNames) -> Option<Self> {
        let mut words = std::str::from_utf8(line).ok()?.split(' ');
        let record = Self {
            offset: words.next()?.parse().ok()?,
            prefix: Digest::from_hex(words.next()?).ok()?,
        };
        (record.line(stem).as_bytes() == line).then_some(record)
    }
}

/// The records of a file's journal whose sums are right, by offset. Whatever else bears its name has none.
pub(super) fn records(spool: &Shared, stem: &FileNames) -> Vec<Record> {
    let name = stem.journal();
    match regular(spool, &name, OFlags::RDONLY).and_then(|file| file.as_ref().map_or(Ok(Vec::new()), read)) {
        Ok(text) => {
            let lines = text.chunks_exact(LINE);
            let mut records: Vec<Record> = lines.filter_map(|line| Record::parse(line, stem)).collect();
            records.sort_unstable();
            records
        }
        Err(error) => {
            tracing::warn!("`{}` is not used: {error}", spool.path.join(name).display());
            Vec::new()
        }
    }
}

/// A journal to be continued. It lives and dies with the file's bytes: what is cut off there has no record here.
#[derive(Debug)]
pub(super) struct Journal {
    stem: FileNames,
    file: File,
    records: usize,
    /// A record waits for the thread that syncs.
    pub(super) is_syncing: bool,
    /// Its blob has gone to somebody else, who writes here too.
    pub(super) is_closed: bool,
    /// The directory has its entry, durably.
    pub(super) is_entered: bool,
    /// What the thread that syncs was told by the disk.
    pub(super) failure: Option<io::Error>,
}

impl Journal {
    /// Opens the journal, making it if need be, and leaves just these records in it.
    pub(super) fn with(spool: &Shared, stem: FileNames, records: &[Record]) -> io::Result<Self> {
        let name = stem.journal();
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let flags = OFlags::RDWR | OFlags::CREATE;
        let file = regular(spool, &name, flags)?.ok_or_else(missing)?;
        let text: String = records.iter().map(|record| record.line(&stem)).collect();
        if read(&file)? != text.as_bytes() {
            file.write_all_at(text.as_bytes(), 0)?;
            file.set_len(text.len() as u64)?;
        }
        Ok(Self {
            stem,
            file,
            records: records.len(),
            is_syncing: false,
            is_closed: false,
            is_entered: false,
            failure: None,
        })
    }

    /// Whether there is room for another record.
    pub(super) fn has_room(&self) -> bool {
        self.records < MOST
    }

    /// Writes a record, as far as the page cache.
    pub(super) fn append(&mut self, record: Record) -> io::Result<()> {
        let line = record.line(&self.stem);
        self.file
            .write_all_at(line.as_bytes(), (self.records * LINE) as u64)?;
        self.records += 1;
        Ok(())
    }

    /// The file, for one who syncs it without holding us.
    pub(super) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

/// Opens the regular file `name`. What is none, a link, a pipe or the like, is removed and is as if it had not been.
fn regular(spool: &Shared, name: &str, flags: OFlags) -> io::Result<Option<File>> {
    match spool.open_raw(name, flags) {
        Ok(file) if file.metadata()?.is_file() => return Ok(Some(file)),
        // A symbolic link, a directory, a socket.
        Ok(_) | Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {}
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    rustix::fs::unlinkat(&spool.dir, name, AtFlags::empty())?;
    match spool.open_raw(name, flags | OFlags::EXCL) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// As much as a journal may have.
fn read(file: &File) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.size()).unwrap_or(usize::MAX);
    let mut text = vec![0; length.min(MOST * LINE)];
    let mut filled = 0;
    while filled < text.len() {
        match file.read_at(&mut text[filled..], filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    text.truncate(filled);
    Ok(text)
}
