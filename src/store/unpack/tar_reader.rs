//! Reads the entries of a tar one after the other, with the semantics of Go's `archive/tar`.
//!
//! Extended headers are collected until the header that they belong to. Every byte that is not an entry's data is
//! passed to the tar-split writer, so that the tar can be recreated. A tar that Go accepts is accepted, for example
//! without end blocks or with an end in an entry's padding; a tar that Go rejects is rejected.

use std::io::{self, Read};
use std::os::fd::AsFd;

use rustix::io::Errno;

use super::entry_name;
use super::error::{EntryPosition, Fault, UnpackError};
use super::pax::PaxRecords;
use super::sparse_map::{self, Fragment, MapInData, SparseFormat};
use super::tar_header::{BLOCK, HeaderFields, text};
use super::tar_stream::TarStream;
use super::tar_time::TarTime;
use crate::store::escaped_name::EscapedName;

/// The largest value that the kernel accepts (`XATTR_SIZE_MAX`).
const MAX_XATTR: u64 = 64 << 10;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum TarEntryKind {
    File,
    HardLink,
    Symlink,
    CharDevice,
    BlockDevice,
    Directory,
    Fifo,
    /// A global extended header, which creates only the parent directory in its name.
    GlobalHeader,
    Other(u8),
}

impl TarEntryKind {
    /// Whether data follows the header. Go skips no data after the other kinds, whatever size the header has.
    fn has_body(self) -> bool {
        matches!(self, Self::File | Self::GlobalHeader | Self::Other(_))
    }
}

/// One entry, after its extended headers were applied.
#[derive(Debug)]
pub(in crate::store) struct TarEntry {
    /// Its number among the entries, from 0.
    pub(in crate::store) number: u64,
    /// Bytes of the tar before its data.
    pub(in crate::store) offset: u64,
    /// The name in the headers.
    pub(in crate::store) name: Vec<u8>,
    /// The name after Go's `path.Clean`.
    pub(in crate::store) clean: Vec<u8>,
    pub(in crate::store) kind: TarEntryKind,
    pub(in crate::store) link: Vec<u8>,
    /// Length of the file that it creates.
    pub(in crate::store) size: u64,
    /// The fragments of that file in the tar, if it is sparse.
    pub(in crate::store) sparse: Option<Vec<Fragment>>,
    /// Permission bits with setuid, setgid and sticky.
    pub(in crate::store) mode: u32,
    pub(in crate::store) uid: u32,
    pub(in crate::store) gid: u32,
    pub(in crate::store) mtime: TarTime,
    /// Not earlier than `mtime`.
    pub(in crate::store) atime: TarTime,
    pub(in crate::store) device: (u32, u32),
    pub(in crate::store) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl TarEntry {
    /// The entry's path below the root; empty for the root itself.
    pub(in crate::store) fn path(&self) -> &[u8] {
        entry_name::in_root(&self.clean)
    }

    /// True for names that mean `.`, which containers/storage ignores.
    pub(in crate::store) fn is_dot(&self) -> bool {
        self.clean == b"."
    }
}

/// Errors that name the entry.
impl TarEntry {
    pub(in crate::store) fn position(&self) -> EntryPosition {
        let (offset, entry) = (self.offset, Some(EscapedName::new(&self.name)));
        EntryPosition { offset, entry }
    }

    pub(in crate::store) fn fault(&self, fault: Fault) -> UnpackError {
        let position = self.position();
        UnpackError::Content { position, fault }
    }

    /// Distinguishes errors that only an unusual entry causes, because no other process works in the directory, from
    /// errors of the host.
    pub(in crate::store) fn refused(&self, action: &'static str, errno: Errno) -> UnpackError {
        match errno {
            Errno::NAMETOOLONG
            | Errno::EXIST
            | Errno::NOENT
            | Errno::NOTDIR
            | Errno::ISDIR
            | Errno::LOOP
            | Errno::MLINK
            | Errno::INVAL => {
                let source = errno.into();
                self.fault(Fault::Refused { action, source })
            }
            errno => UnpackError::host(action, &self.name, errno),
        }
    }

    /// The same for an extended attribute. `user` ones are forbidden on anything but files and directories
    /// (`xattr(7)`). ext4 returns ENOSPC if the inode has no space left; `fd` distinguishes this from a full disk.
    pub(in crate::store) fn refused_xattr(&self, name: &[u8], errno: Errno, fd: impl AsFd) -> UnpackError {
        let is_content = match errno {
            Errno::TOOBIG | Errno::RANGE | Errno::INVAL => true,
            Errno::PERM => name.starts_with(b"user."),
            Errno::NOSPC => has_space(fd),
            _ => false,
        };
        match errno {
            errno if is_content => {
                let (name, source) = (EscapedName::new(name), errno.into());
                self.fault(Fault::Xattr { name, source })
            }
            errno => UnpackError::host("set an extended attribute of", &self.name, errno),
        }
    }
}

/// True if the file system has space for the largest possible attribute.
fn has_space(fd: impl AsFd) -> bool {
    rustix::fs::fstatvfs(fd).is_ok_and(|space| space.f_bfree.saturating_mul(space.f_frsize) > MAX_XATTR)
}

/// Reads entries from a stream.
pub(in crate::store) struct TarReader<'a, R: Read> {
    stream: TarStream<'a, R>,
    /// Unread bytes of data of the current entry or extended header.
    body: u64,
    /// Bytes of padding after it.
    padding: usize,
    headers: u64,
    entries: u64,
    has_odd_size: bool,
}

/// The headers that describe the next entry.
#[derive(Default)]
struct Pending {
    records: Option<PaxRecords>,
    long_name: Vec<u8>,
    long_link: Vec<u8>,
}

impl<'a, R: Read> TarReader<'a, R> {
    pub(in crate::store) fn new(stream: TarStream<'a, R>) -> Self {
        Self {
            stream,
            body: 0,
            padding: 0,
            headers: 0,
            entries: 0,
            has_odd_size: false,
        }
    }

    /// The next entry; `None` at the end of the tar. Its headers, and all bytes before them, are passed to `raw`.
    pub(in crate::store) fn next(
        &mut self,
        raw: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Option<TarEntry>, UnpackError> {
        let mut pending = Pending::default();
        loop {
            if !self.skip(raw)? {
                return Ok(None);
            }
            let Some(block) = self.header(raw)? else {
                return Ok(None);
            };
            let fields = HeaderFields::parse(&block).map_err(|fault| self.stream.content(fault))?;
            match fields.typeflag {
                b'x' => pending.records = Some(self.records(&fields, raw)?),
                b'g' => {
                    let records = self.records(&fields, raw)?;
                    return self.global(fields, &records).map(Some);
                }
                b'L' => pending.long_name = text(&self.record(&fields, raw)?).to_vec(),
                b'K' => pending.long_link = text(&self.record(&fields, raw)?).to_vec(),
                _ => return self.entry(fields, pending, raw).map(Some),
            }
        }
    }

    /// The next bytes of the current entry's data, at most `max`; empty only at the end.
    pub(in crate::store) fn data(&mut self, max: u64) -> Result<&[u8], UnpackError> {
        let max = self.body.min(max);
        if max > 0 && !self.stream.has_more()? {
            return Err(self.stream.content(Fault::Truncated("an entry's data")));
        }
        let chunk = match max {
            0 => &[],
            max => self.stream.take(max)?,
        };
        self.body -= chunk.len() as u64;
        Ok(chunk)
    }

    /// True if some entry has another size than the data after its header: sparse files, including those that do not
    /// parse, and links with a size.
    pub(in crate::store) fn has_odd_size(&self) -> bool {
        self.has_odd_size
    }

    /// The stream, after the last entry.
    pub(in crate::store) fn into_stream(self) -> TarStream<'a, R> {
        self.stream
    }

    /// The stream, for its errors and counters.
    pub(in crate::store) fn stream(&mut self) -> &mut TarStream<'a, R> {
        &mut self.stream
    }

    /// Skips the rest of an entry; false if the tar ends in its padding, which Go accepts as an end.
    fn skip(&mut self, raw: &mut impl FnMut(&[u8]) -> io::Result<()>) -> Result<bool, UnpackError> {
        loop {
            let chunk = self.data(u64::MAX)?;
            if chunk.is_empty() {
                break;
            }
            raw(chunk).map_err(UnpackError::tar_split)?;
        }
        let mut padding = [0; BLOCK];
        let padding = &mut padding[..std::mem::take(&mut self.padding)];
        let read = self.stream.take_into(padding)?;
        raw(&padding[..read]).map_err(UnpackError::tar_split)?;
        Ok(read == padding.len())
    }

    /// The next header block; `None` after two blocks of zeros, or at the end of the stream.
    fn header(
        &mut self,
        raw: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Option<[u8; BLOCK]>, UnpackError> {
        self.stream.check_cancel()?;
        let Some(block) = self.block(raw)? else {
            return Ok(None);
        };
        if block == [0; BLOCK] {
            return match self.block(raw)? {
                Some(second) if second != [0; BLOCK] => {
                    let fault = Fault::Header("a header after a single block of zeros");
                    Err(self.stream.content(fault))
                }
                _ => Ok(None),
            };
        }
        self.headers += 1;
        let max = self.stream.limits().entries;
        if self.headers > max {
            return Err(self.stream.limit("tar headers", max, self.headers));
        }
        Ok(Some(block))
    }

    /// A whole block; `None` at the end of the stream.
    fn block(
        &mut self,
        raw: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Option<[u8; BLOCK]>, UnpackError> {
        let mut block = [0; BLOCK];
        match self.stream.take_into(&mut block)? {
            0 => return Ok(None),
            BLOCK => {}
            _ => return Err(self.stream.content(Fault::Truncated("a header"))),
        }
        raw(&block).map_err(UnpackError::tar_split)?;
        Ok(Some(block))
    }

    /// The data of an extended header.
    fn record(
        &mut self,
        fields: &HeaderFields,
        raw: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Vec<u8>, UnpackError> {
        self.start_body(fields.size)?;
        let max = self.stream.limits().record;
        if self.body > max as u64 {
            return Err(self
                .stream
                .limit("bytes in an extended header", max as u64, self.body));
        }
        let mut record = Vec::new();
        loop {
            let chunk = self.data(u64::MAX)?;
            if chunk.is_empty() {
                break;
            }
            record.extend_from_slice(chunk);
        }
        raw(&record).map_err(UnpackError::tar_split)?;
        Ok(record)
    }

    fn records(
        &mut self,
        fields: &HeaderFields,
        raw: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<PaxRecords, UnpackError> {
        let data = self.record(fields, raw)?;
        PaxRecords::parse(&data).map_err(|fault| self.stream.content(fault))
    }

    fn start_body(&mut self, size: i64) -> Result<(), UnpackError> {
        let negative = |_| self.stream.content(Fault::Header("the size is negative"));
        self.body = u64::try_from(size).map_err(negative)?;
        self.padding = (self.body.wrapping_neg() % BLOCK as u64) as usize;
        Ok(())
    }

    /// A global header yields an entry with only a name, which its records may set.
    fn global(&mut self, mut fields: HeaderFields, records: &PaxRecords) -> Result<TarEntry, UnpackError> {
        records
            .apply(&mut fields)
            .map_err(|fault| self.stream.content(fault))?;
        let nothing = HeaderFields {
            typeflag: b'g',
            name: fields.name,
            link: Vec::new(),
            size: 0,
            mode: 0,
            uid: 0,
            gid: 0,
            mtime: TarTime::from_secs(0),
            atime: None,
            device: (0, 0),
        };
        self.finish_entry(nothing, TarEntryKind::GlobalHeader, None, Vec::new())
    }

    fn entry(
        &mut self,
        mut fields: HeaderFields,
        pending: Pending,
        raw: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<TarEntry, UnpackError> {
        let records = pending.records.unwrap_or_default();
        records
            .apply(&mut fields)
            .map_err(|fault| self.stream.content(fault))?;
        if !pending.long_name.is_empty() {
            fields.name = pending.long_name;
        }
        if !pending.long_link.is_empty() {
            fields.link = pending.long_link;
        }
        let kind = match fields.typeflag {
            0 if fields.name.ends_with(b"/") => TarEntryKind::Directory,
            0 | b'0' => TarEntryKind::File,
            b'1' => TarEntryKind::HardLink,
            b'2' => TarEntryKind::Symlink,
            b'3' => TarEntryKind::CharDevice,
            b'4' => TarEntryKind::BlockDevice,
            b'5' => TarEntryKind::Directory,
            b'6' => TarEntryKind::Fifo,
            // Its map may continue after the header, so the following bytes cannot be interpreted without it.
            b'S' => return Err(self.stream.content(Fault::Type(b'S')).in_entry(&fields.name)),
            other => TarEntryKind::Other(other),
        };
        self.has_odd_size |= !kind.has_body() && fields.size != 0;
        self.start_body(if kind.has_body() { fields.size } else { 0 })?;
        let sparse = self.sparse(&mut fields, &records, kind, raw);
        let sparse = sparse.map_err(|error| error.in_entry(&fields.name))?;
        self.finish_entry(fields, kind, sparse, records.xattrs())
    }

    /// Reads the map of a sparse file, and sets the name and size of the file itself in `fields`.
    fn sparse(
        &mut self,
        fields: &mut HeaderFields,
        records: &PaxRecords,
        kind: TarEntryKind,
        raw: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Option<Vec<Fragment>>, UnpackError> {
        let layout = SparseFormat::of(records);
        if layout == SparseFormat::Plain {
            return Ok(None);
        }
        self.has_odd_size = true;
        if !records.value("GNU.sparse.name").is_empty() {
            fields.name = records.value("GNU.sparse.name").to_vec();
        }
        let real_size = sparse_map::real_size(records).map_err(|fault| self.stream.content(fault))?;
        fields.size = real_size.unwrap_or(fields.size);
        let map = match layout {
            SparseFormat::InData => self.map_in_data(raw)?,
            _ => sparse_map::map_in_records(records).map_err(|fault| self.stream.content(fault))?,
        };
        let bad = Fault::Header("a sparse map without a file");
        let size = match u64::try_from(fields.size) {
            Ok(size) if kind.has_body() => size,
            _ => return Err(self.stream.content(bad)),
        };
        let map = sparse_map::check(map, size, self.body).map_err(|fault| self.stream.content(fault))?;
        Ok(Some(map))
    }

    fn map_in_data(
        &mut self,
        raw: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Vec<Fragment>, UnpackError> {
        let max = self.stream.limits().record;
        let mut map = MapInData::default();
        loop {
            if self.body < BLOCK as u64 {
                return Err(self.stream.content(Fault::Truncated("a sparse map")));
            }
            self.body -= BLOCK as u64;
            let Some(block) = self.block(raw)? else {
                return Err(self.stream.content(Fault::Truncated("a sparse map")));
            };
            if map.push(&block).map_err(|fault| self.stream.content(fault))? {
                return map.finish().map_err(|fault| self.stream.content(fault));
            }
            if map.len() > max {
                return Err(self
                    .stream
                    .limit("bytes in a sparse map", max as u64, map.len() as u64));
            }
        }
    }

    fn finish_entry(
        &mut self,
        fields: HeaderFields,
        kind: TarEntryKind,
        sparse: Option<Vec<Fragment>>,
        xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<TarEntry, UnpackError> {
        let clean = entry_name::clean(&fields.name);
        let entry = TarEntry {
            number: self.entries,
            offset: self.stream.position(),
            kind,
            link: fields.link,
            size: if kind.has_body() {
                fields.size.unsigned_abs()
            } else {
                0
            },
            sparse,
            mode: (fields.mode & 0o7777) as u32,
            // Go keeps the lower half of the number.
            uid: fields.uid as u32,
            gid: fields.gid as u32,
            mtime: fields.mtime,
            atime: fields.atime.map_or(fields.mtime, |atime| atime.max(fields.mtime)),
            device: (
                (fields.device.0 & 0xfff) as u32,
                (fields.device.1 & 0xf_ffff) as u32,
            ),
            xattrs,
            name: fields.name,
            clean,
        };
        self.entries += 1;
        self.check_path(&entry)
            .map_err(|error| error.in_entry(&entry.name))?;
        Ok(entry)
    }

    fn check_path(&self, entry: &TarEntry) -> Result<(), UnpackError> {
        let limits = self.stream.limits();
        let length = entry.path().len() + 1;
        if length > limits.path {
            return Err(self
                .stream
                .limit("bytes in a path", limits.path as u64, length as u64));
        }
        let depth = entry.path().split(|&byte| byte == b'/').count();
        if depth > limits.depth {
            return Err(self
                .stream
                .limit("directories in a path", limits.depth as u64, depth as u64));
        }
        Ok(())
    }
}
