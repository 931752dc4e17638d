//! Records how many bytes of a spooled file are durable, with their SHA-256, so that a download continues after a
//! power loss.
//!
//! ```text
//! 00000000000002097152 9c56…64 digits…01ab 5d01…16 digits…77c2⏎       103 bytes, one record
//! └ offset             └ SHA-256 of the    └ the first 8 bytes of SHA-256 of
//!   in bytes             file's first        `<name of the file> <offset> <SHA-256 of the prefix>`
//!                        `offset` bytes      without its ending
//! ```
//!
//! A record is verified twice. Its own checksum rejects a line that was torn, lost, or written for another blob. And
//! the record counts only after the bytes of the prefix, read back from the disk, have the digest that it names. The
//! order in which a disk writes its cache therefore affects how much is lost, but never which bytes are accepted. All
//! lines have the same length, so that a damaged line affects no other.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use crate::oci::Digest;

use super::directory::SpoolDirectory;
use super::file_names::FileNames;

/// Length of a record in bytes.
const LINE: usize = 20 + 1 + 64 + 1 + SUM + 1;

/// Hexadecimal digits of a record's own checksum.
const SUM: usize = 16;

/// The most records in a journal, and the most that are read: 824 KiB.
const MAX_RECORDS: usize = 8192;

/// The first `offset` bytes of a file have the digest `prefix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JournalRecord {
    pub(super) offset: u64,
    pub(super) prefix: Digest,
}

impl JournalRecord {
    fn line(&self, names: &FileNames) -> String {
        let (offset, prefix) = (self.offset, self.prefix.hex());
        let sum = Digest::of(format!("{names} {offset} {prefix}").as_bytes()).hex();
        format!("{offset:020} {prefix} {}\n", &sum[..SUM])
    }

    fn parse(line: &[u8], names: &FileNames) -> Option<Self> {
        let mut words = std::str::from_utf8(line).ok()?.split(' ');
        let record = Self {
            offset: words.next()?.parse().ok()?,
            prefix: Digest::from_hex(words.next()?).ok()?,
        };
        (record.line(names).as_bytes() == line).then_some(record)
    }
}

/// The records with a correct checksum in the journal of a file, sorted by offset. Anything but a regular file has
/// none.
pub(super) fn records(dir: &SpoolDirectory, names: &FileNames) -> Vec<JournalRecord> {
    let name = names.journal();
    match regular(dir, &name, OFlags::RDONLY).and_then(|file| file.as_ref().map_or(Ok(Vec::new()), read)) {
        Ok(text) => {
            let lines = text.chunks_exact(LINE);
            let mut records: Vec<JournalRecord> = lines
                .filter_map(|line| JournalRecord::parse(line, names))
                .collect();
            records.sort_unstable();
            records
        }
        Err(error) => {
            tracing::warn!(
                "cannot read the journal `{}`: {error}",
                dir.path.join(name).display()
            );
            Vec::new()
        }
    }
}

/// An open journal. It has records only for bytes that the file still has.
#[derive(Debug)]
pub(super) struct Journal {
    names: FileNames,
    file: File,
    records: usize,
    /// A request for a record is queued at the syncer.
    pub(super) is_syncing: bool,
    /// Another `Partial` of the range writes to the file now.
    pub(super) is_closed: bool,
    /// The directory entry of the journal is durable.
    pub(super) has_durable_name: bool,
    /// The error of the syncer's last request.
    pub(super) sync_error: Option<io::Error>,
}

impl Journal {
    /// Opens or creates the journal, and replaces its records with `records`.
    pub(super) fn with(
        dir: &SpoolDirectory,
        names: FileNames,
        records: &[JournalRecord],
    ) -> io::Result<Self> {
        let name = names.journal();
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let flags = OFlags::RDWR | OFlags::CREATE;
        let file = regular(dir, &name, flags)?.ok_or_else(missing)?;
        let text: String = records.iter().map(|record| record.line(&names)).collect();
        if read(&file)? != text.as_bytes() {
            file.write_all_at(text.as_bytes(), 0)?;
            file.set_len(text.len() as u64)?;
        }
        Ok(Self {
            names,
            file,
            records: records.len(),
            is_syncing: false,
            is_closed: false,
            has_durable_name: false,
            sync_error: None,
        })
    }

    /// Whether another record fits.
    pub(super) fn has_space(&self) -> bool {
        self.records < MAX_RECORDS
    }

    /// Writes a record into the page cache.
    pub(super) fn append(&mut self, record: JournalRecord) -> io::Result<()> {
        let line = record.line(&self.names);
        self.file
            .write_all_at(line.as_bytes(), (self.records * LINE) as u64)?;
        self.records += 1;
        Ok(())
    }

    /// A second descriptor of the file, to sync it without the lock on this value.
    pub(super) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

/// Opens the regular file `name`. A link, a pipe or anything else with that name is removed first.
fn regular(dir: &SpoolDirectory, name: &str, flags: OFlags) -> io::Result<Option<File>> {
    match dir.open_raw(name, flags) {
        Ok(file) if file.metadata()?.is_file() => return Ok(Some(file)),
        // A symbolic link, a directory, a socket.
        Ok(_) | Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {}
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    rustix::fs::unlinkat(&dir.fd, name, AtFlags::empty())?;
    match dir.open_raw(name, flags | OFlags::EXCL) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads the journal, up to the largest length that it may have.
fn read(file: &File) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.size()).unwrap_or(usize::MAX);
    let mut text = vec![0; length.min(MAX_RECORDS * LINE)];
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
