//! Reads the tar that a tar-split, downloaded chunks and files of this node make.

use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::rc::Rc;

use super::chunked_layer::{open_tar_split, read_toc};
use super::chunked_option::ChunkedOption;
use super::error::ChunkedError;
use super::section::{Decompressed, Section};
use super::toc::{Chunk, Toc};
use crate::cancel::Cancel;
use crate::delta::{SourceFile, Sources};
use crate::oci::Hasher;
use crate::store::EscapedName;
use crate::store::tar_split::{Record, Records};

/// The tar of a layer. It can be read again from its start; other seeks fail.
///
/// Each file's content is compared with its digest in the TOC after it was read. Errors contain a [`ChunkedError`], see
/// [`ChunkedError::of`].
pub struct ChunkedTar {
    option: ChunkedOption,
    toc: Toc,
    blob: Rc<dyn SourceFile>,
    sources: Box<dyn Sources>,
    cancel: Cancel,
    records: Records<BufReader<Decompressed>>,
    segment: Cursor<Vec<u8>>,
    file: Option<OpenFile>,
    /// Whether a file of this node was the reason of an error.
    has_changed_file: bool,
    /// Bytes of the tar that were read.
    position: u64,
}

/// The file whose content is being read.
struct OpenFile {
    number: usize,
    left: u64,
    hasher: Hasher,
    content: Content,
}

/// Where the content comes from.
enum Content {
    Local {
        file: Box<dyn SourceFile>,
        offset: u64,
    },
    Chunks {
        rest: Range<u32>,
        chunk: Option<OpenChunk>,
    },
}

struct OpenChunk {
    left: u64,
    /// None for zeros.
    bytes: Option<Decompressed>,
}

impl ChunkedTar {
    /// Opens the tar that `option` describes. `blob` has at least the ranges of `option`, and `sources` the files of its
    /// images.
    ///
    /// # Errors
    /// If the TOC or the tar-split cannot be read or is wrong.
    pub fn open(
        option: &ChunkedOption,
        blob: impl SourceFile + 'static,
        sources: Box<dyn Sources>,
        cancel: &Cancel,
    ) -> Result<Self, ChunkedError> {
        let blob: Rc<dyn SourceFile> = Rc::new(blob);
        let toc = read_toc(&blob, &option.metadata)?;
        Ok(Self {
            records: open_tar_split(&blob, &option.metadata)?,
            option: option.clone(),
            toc,
            blob,
            sources,
            cancel: cancel.clone(),
            segment: Cursor::default(),
            file: None,
            has_changed_file: false,
            position: 0,
        })
    }

    /// Whether reading failed because a file of this node is missing or was changed. Then the downloaded bytes may be right.
    pub fn has_changed_file(&self) -> bool {
        self.has_changed_file
    }

    fn read_next(&mut self, out: &mut [u8]) -> Result<usize, ChunkedError> {
        self.cancel.check()?;
        loop {
            if let Some(mut file) = self.file.take() {
                let read = self.read_file(&mut file, out)?;
                if file.left > 0 {
                    self.file = Some(file);
                } else {
                    self.end_file(file)?;
                }
                return Ok(read);
            }
            let read = self.segment.read(out).map_err(ChunkedError::Host)?;
            if read > 0 {
                return Ok(read);
            }
            match self.records.next_record()? {
                None => return Ok(0),
                Some(Record::Segment(bytes)) => self.segment = Cursor::new(bytes),
                Some(Record::File { size: 0, .. }) => {}
                Some(Record::File { name, size, .. }) => self.file = Some(self.open_file(&name, size)?),
            }
        }
    }

    fn open_file(&self, name: &[u8], size: u64) -> Result<OpenFile, ChunkedError> {
        let missing = || ChunkedError::Toc("it does not have all files of the tar".to_owned());
        let number = self.toc.find(name, size).ok_or_else(missing)?;
        let origin = self.option.origins.get(number).ok_or_else(missing)?;
        let content = match origin {
            Some(image) => {
                let opened = self.sources.open(usize::from(*image), name);
                let file = opened.map_err(|error| ChunkedError::File {
                    path: EscapedName::new(name),
                    reason: error.to_string(),
                })?;
                Content::Local { file, offset: 0 }
            }
            None => Content::Chunks {
                rest: self.toc.files[number].chunks.clone(),
                chunk: None,
            },
        };
        Ok(OpenFile {
            number,
            left: size,
            hasher: Hasher::default(),
            content,
        })
    }

    /// Reads at least one byte.
    fn read_file(&self, file: &mut OpenFile, out: &mut [u8]) -> Result<usize, ChunkedError> {
        let length = usize::try_from(file.left).unwrap_or(usize::MAX).min(out.len());
        let out = &mut out[..length];
        let read = match &mut file.content {
            Content::Local { file: local, offset } => {
                let read = retrying(|| local.read_at(out, *offset));
                let read = read.map_err(|error| self.fault(file.number, &error.to_string()))?;
                *offset += read as u64;
                read
            }
            Content::Chunks { rest, chunk } => self.read_chunk(file.number, rest, chunk, out)?,
        };
        if read == 0 {
            return Err(self.fault(file.number, "it is too short"));
        }
        file.hasher.update(&out[..read]);
        file.left -= read as u64;
        Ok(read)
    }

    fn read_chunk(
        &self,
        number: usize,
        rest: &mut Range<u32>,
        open: &mut Option<OpenChunk>,
        out: &mut [u8],
    ) -> Result<usize, ChunkedError> {
        let chunk = match open {
            Some(chunk) => chunk,
            None => match rest.next() {
                Some(next) => open.insert(self.open_chunk(&self.toc.chunks[next as usize])?),
                None => return Ok(0),
            },
        };
        let length = usize::try_from(chunk.left).unwrap_or(usize::MAX).min(out.len());
        let out = &mut out[..length];
        let read = match &mut chunk.bytes {
            Some(bytes) => retrying(|| bytes.read(out)).map_err(|error| match error.raw_os_error() {
                Some(_) => ChunkedError::Host(error),
                None => self.fault(number, &error.to_string()),
            })?,
            None => {
                out.fill(0);
                length
            }
        };
        chunk.left -= read as u64;
        if chunk.left == 0 {
            *open = None;
        }
        Ok(read)
    }

    fn open_chunk(&self, chunk: &Chunk) -> Result<OpenChunk, ChunkedError> {
        let section = || Section::new(&self.blob, chunk.compressed.clone());
        let bytes = (!chunk.is_zeros).then(|| section().decompress(chunk.size));
        Ok(OpenChunk {
            left: chunk.size,
            bytes: bytes.transpose().map_err(ChunkedError::Host)?,
        })
    }

    fn end_file(&self, file: OpenFile) -> Result<(), ChunkedError> {
        match file.hasher.finish() == self.toc.files[file.number].digest {
            true => Ok(()),
            false => Err(self.fault(file.number, "its content has another digest")),
        }
    }

    /// A fault of a file, or of its chunks.
    fn fault(&self, number: usize, reason: &str) -> ChunkedError {
        let path = EscapedName::new(self.toc.files[number].name.as_bytes());
        let reason = reason.to_owned();
        match self.option.origins.get(number) {
            Some(Some(_)) => ChunkedError::File { path, reason },
            _ => ChunkedError::Chunk { path, reason },
        }
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

impl Read for ChunkedTar {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let read = self.read_next(out).inspect_err(|error| {
            self.has_changed_file |= matches!(error, ChunkedError::File { .. });
        })?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for ChunkedTar {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match to {
            SeekFrom::Current(0) => {}
            SeekFrom::Start(0) => {
                self.records = open_tar_split(&self.blob, &self.option.metadata)?;
                self.segment = Cursor::default();
                (self.file, self.position) = (None, 0);
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok(self.position)
    }
}
