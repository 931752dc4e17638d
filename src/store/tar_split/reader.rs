//! Recreates a layer's tar as a stream, from its tar-split and its unpacked files.
//!
//! Files are opened only below the layer's directory, and compared with their length and checksum in the tar-split.
//! The caller compares the digest of the whole tar: headers are copied from the tar-split unchanged.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Write};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::bufread::MultiGzDecoder;
use rustix::fs::{FileType, OFlags, ResolveFlags};

use super::TarSplitError;
use super::records::{Record, Records};
use super::writer::FileChecksum;
use crate::store::escaped_name::EscapedName;
use crate::store::unpack::{NameSet, clean, in_root, open_in};

/// Bytes of a tar that are copied at once.
const BUFFER: usize = 256 << 10;

/// Reads the tar that a gzipped tar-split and the files of a layer form.
///
/// Errors are [`TarSplitError`]s inside an [`io::Error`]. A damaged file is reported to the listener first. If the
/// listener accepts it, its missing bytes are read as zeros, and the tar keeps its length.
pub(in crate::store) struct Assembler<R: Read, L> {
    records: Records<BufReader<MultiGzDecoder<BufReader<R>>>>,
    seen: NameSet,
    diff: Arc<OwnedFd>,
    segment: Cursor<Vec<u8>>,
    file: Option<OpenFile>,
    listener: L,
}

/// Writes the tar that the gzipped `tar_split` and the files in `diff` form, if all files are intact. Returns its
/// length.
pub fn assemble(
    tar_split: impl Read,
    diff: BorrowedFd<'_>,
    mut out: impl Write,
) -> Result<u64, TarSplitError> {
    let diff = diff.try_clone_to_owned().map_err(TarSplitError::Read)?;
    let mut tar = Assembler::new(tar_split, Arc::new(diff), FileEvent::fail_if_damaged);
    let (mut buffer, mut length) = (vec![0; BUFFER], 0);
    loop {
        match tar.read_next(&mut buffer)? {
            0 => return Ok(length),
            read => {
                out.write_all(&buffer[..read]).map_err(TarSplitError::Write)?;
                length += read as u64;
            }
        }
    }
}

/// A report to the listener, with the file's name in the tar-split.
pub(in crate::store) enum FileEvent<'a> {
    /// The next bytes of the tar are the content of this file.
    Started(&'a [u8]),
    /// The content differs from the original, or is unreadable.
    Damaged(&'a [u8], TarSplitError),
}

impl FileEvent<'_> {
    /// A listener that accepts no damaged file.
    pub(in crate::store) fn fail_if_damaged(note: FileEvent<'_>) -> Result<(), TarSplitError> {
        match note {
            FileEvent::Started(_) => Ok(()),
            FileEvent::Damaged(_, error) => Err(error),
        }
    }
}

/// The file whose content is being read.
struct OpenFile {
    name: Vec<u8>,
    /// `None` after it was found damaged.
    file: Option<File>,
    size: u64,
    left: u64,
    crc: Vec<u8>,
    content: FileChecksum,
}

impl<R, L> Assembler<R, L>
where
    R: Read,
    L: FnMut(FileEvent<'_>) -> Result<(), TarSplitError>,
{
    /// Reads `tar_split` from its current position, and files below `diff`.
    pub(in crate::store) fn new(tar_split: R, diff: Arc<OwnedFd>, listener: L) -> Self {
        Self {
            records: Records::new(BufReader::new(MultiGzDecoder::new(BufReader::new(tar_split)))),
            seen: NameSet::default(),
            diff,
            segment: Cursor::default(),
            file: None,
            listener,
        }
    }

    /// Reads the next line; false at the end.
    fn advance(&mut self) -> Result<bool, TarSplitError> {
        match self.records.next_record()? {
            None => return Ok(false),
            Some(Record::Segment(bytes)) => self.segment = Cursor::new(bytes),
            Some(Record::File { name, size, crc }) => {
                // podman rejects a tar-split that names a path twice.
                if !self.seen.insert(&clean(&name)) {
                    let reason = format!("second entry for `{}`", EscapedName::new(&name));
                    return Err(self.records.fault(reason));
                }
                if size > 0 {
                    self.begin(name, size, crc)?;
                }
            }
        }
        Ok(true)
    }

    fn begin(&mut self, name: Vec<u8>, size: u64, crc: Vec<u8>) -> Result<(), TarSplitError> {
        (self.listener)(FileEvent::Started(&name))?;
        let file = match open(&name, self.diff.as_fd()) {
            Ok(file) => Some(file),
            Err(source) => {
                (self.listener)(FileEvent::Damaged(&name, unreadable(&name, source)))?;
                None
            }
        };
        let (left, content) = (size, FileChecksum::new());
        self.file = Some(OpenFile {
            name,
            file,
            size,
            left,
            crc,
            content,
        });
        Ok(())
    }

    fn read_next(&mut self, out: &mut [u8]) -> Result<usize, TarSplitError> {
        loop {
            if let Some(mut file) = self.file.take() {
                let read = file.read(out, &mut self.listener)?;
                if file.left > 0 {
                    self.file = Some(file);
                } else {
                    file.finish(&mut self.listener)?;
                }
                return Ok(read);
            }
            match self.segment.read(out).map_err(TarSplitError::Read)? {
                0 if self.advance()? => {}
                read => return Ok(read),
            }
        }
    }
}

impl<R, L> Read for Assembler<R, L>
where
    R: Read,
    L: FnMut(FileEvent<'_>) -> Result<(), TarSplitError>,
{
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match out.len() {
            0 => Ok(0),
            _ => self.read_next(out).map_err(io::Error::other),
        }
    }
}

impl OpenFile {
    /// Reads some of the remaining bytes; missing ones are zeros.
    fn read(
        &mut self,
        out: &mut [u8],
        listener: &mut impl FnMut(FileEvent<'_>) -> Result<(), TarSplitError>,
    ) -> Result<usize, TarSplitError> {
        let want = out.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let out = &mut out[..want];
        let read = match &mut self.file {
            None => {
                out.fill(0);
                want
            }
            Some(file) => match retrying(|| file.read(out)) {
                Ok(0) => {
                    let found = self.content.length();
                    let reason = format!("expected {} bytes, found {found}", self.size);
                    self.report_damage(differs(&self.name, reason), listener)?;
                    out.fill(0);
                    want
                }
                Ok(read) => {
                    self.content.update(&out[..read]);
                    read
                }
                Err(error) => {
                    self.report_damage(unreadable(&self.name, error), listener)?;
                    out.fill(0);
                    want
                }
            },
        };
        self.left -= read as u64;
        Ok(read)
    }

    /// Compares the content with length and checksum in the tar-split.
    fn finish(
        mut self,
        listener: &mut impl FnMut(FileEvent<'_>) -> Result<(), TarSplitError>,
    ) -> Result<(), TarSplitError> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        match retrying(|| file.read(&mut [0])) {
            Ok(0) if self.content.crc() == *self.crc => Ok(()),
            // The checksum of no data: containers/storage writes it for a hard link with a size, whose data it never
            // reads.
            Ok(0) if self.crc == FileChecksum::new().crc() => Ok(()),
            Ok(0) => {
                let (expected, found) = (BASE64.encode(&self.crc), BASE64.encode(self.content.crc()));
                let reason = format!("expected checksum {expected}, found {found}");
                self.report_damage(differs(&self.name, reason), listener)
            }
            Ok(_) => {
                let reason = format!("expected {} bytes, found more", self.size);
                self.report_damage(differs(&self.name, reason), listener)
            }
            Err(error) => self.report_damage(unreadable(&self.name, error), listener),
        }
    }

    /// Reports the damage, once.
    fn report_damage(
        &mut self,
        error: TarSplitError,
        listener: &mut impl FnMut(FileEvent<'_>) -> Result<(), TarSplitError>,
    ) -> Result<(), TarSplitError> {
        self.file = None;
        listener(FileEvent::Damaged(&self.name, error))
    }
}

fn retrying(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn unreadable(name: &[u8], source: io::Error) -> TarSplitError {
    let path = EscapedName::new(name);
    TarSplitError::File { path, source }
}

fn differs(name: &[u8], reason: String) -> TarSplitError {
    let path = EscapedName::new(name);
    TarSplitError::Differs { path, reason }
}

/// Opens a regular file, and never a device or a FIFO, even if the layer has changed.
fn open(name: &[u8], diff: BorrowedFd<'_>) -> io::Result<File> {
    let clean = clean(name);
    let open = |flags| {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        open_in(diff, in_root(&clean), flags, ResolveFlags::empty())
    };
    let stat = rustix::fs::fstat(open(OFlags::PATH)?)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(open(OFlags::RDONLY | OFlags::NONBLOCK)?.into())
}
