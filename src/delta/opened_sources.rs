//! Opens and reads the sources of a delta. A range of a zlib stream is inflated to a scratch file first.
//!
//! The last few sources stay open, because a delta may alternate between the sections of a file, and inflating one again
//! for each of them would take hours.

use std::io::{self, Write};
use std::ops::Range;

use flate2::{Decompress, FlushDecompress, Status};

use super::limits::MAX_INFLATED;
use super::operation::{InflatedRange, SourceName};
use super::patch_error::{FormatFault, PatchError, SourceFault};
use super::source::{ScratchFile, SourceError, SourceFile, Sources};
use crate::cancel::Cancel;

/// Open files at a time.
const MAX_OPEN: usize = 32;

/// Bytes of a block of a source. Reads of at least this length bypass the cache.
const BLOCK: usize = 4 << 10;

/// Cached blocks, 8 MiB. The delta of a program with many changes has operations of fifty bytes all over the old file.
const BLOCKS: usize = 2048;

/// Bytes that are inflated at once.
const CHUNK: usize = 64 << 10;

/// Bytes of a path in a message.
const PATH_IN_MESSAGE: usize = 200;

/// The sources of a delta.
pub(super) struct OpenedSources {
    sources: Box<dyn Sources>,
    cancel: Cancel,
    /// The current one is the last, the least recently used the first.
    opened: Vec<Opened>,
    /// The next byte of the current one.
    position: u64,
    blocks: Box<[u8]>,
    /// What each place in `blocks` contains.
    cached: Box<[Cached]>,
    /// Sources that were opened so far.
    count: u64,
}

/// A block of a source, or less at the end of the file.
#[derive(Clone, Default)]
struct Cached {
    /// The serial number of the source.
    source: u64,
    range: Range<u64>,
}

struct Opened {
    name: SourceName,
    serial: u64,
    file: Box<dyn SourceFile>,
}

impl OpenedSources {
    pub(super) fn new(sources: Box<dyn Sources>, cancel: Cancel) -> Self {
        Self {
            sources,
            cancel,
            opened: Vec::new(),
            position: 0,
            blocks: vec![0; BLOCKS * BLOCK].into_boxed_slice(),
            cached: vec![Cached::default(); BLOCKS].into_boxed_slice(),
            count: 0,
        }
    }

    /// Closes all sources.
    pub(super) fn clear(&mut self) {
        self.opened.clear();
        self.position = 0;
    }

    /// Reads from the start of this source, if it is open.
    pub(super) fn select(&mut self, name: &SourceName) -> bool {
        let Some(index) = self.opened.iter().rposition(|opened| opened.name == *name) else {
            return false;
        };
        self.opened[index..].rotate_left(1);
        self.position = 0;
        true
    }

    /// Opens a source and reads from its start.
    pub(super) fn open(&mut self, name: SourceName) -> Result<(), PatchError> {
        let opened = match usize::try_from(name.image) {
            Ok(image) => self.sources.open(image, &name.path),
            Err(_) => Err(SourceError::Missing(String::new())),
        };
        let mut file = opened.map_err(|error| {
            let fault = match error {
                SourceError::Missing(_) => SourceFault::Missing,
                SourceError::Host { error, .. } => host("open it")(error),
            };
            source_error(&name, fault)
        })?;
        let length = name.inflated.map_or(0, |range| range.inflated_length);
        while self.opened.len() >= MAX_OPEN || self.scratch_length() > MAX_INFLATED - length.min(MAX_INFLATED)
        {
            self.opened.remove(0);
        }
        if let Some(range) = name.inflated {
            file = match self.inflate(&*file, range)? {
                Ok(scratch) => Box::new(scratch),
                Err(fault) => return Err(source_error(&name, fault)),
            };
        }
        // Blocks of a file that was closed and opened again are not read.
        self.count += 1;
        let serial = self.count;
        self.opened.push(Opened { name, serial, file });
        self.position = 0;
        Ok(())
    }

    /// True if a source was opened.
    pub(super) fn has_current(&self) -> bool {
        !self.opened.is_empty()
    }

    /// Continues at another byte of the current source.
    pub(super) fn seek(&mut self, position: u64) {
        self.position = position;
    }

    /// Fills `out` with the next bytes.
    pub(super) fn copy(&mut self, mut out: &mut [u8]) -> Result<(), PatchError> {
        while !out.is_empty() {
            let read = if out.len() >= BLOCK {
                self.read_directly(out)?
            } else {
                let bytes = self.bytes(out.len())?;
                let read = bytes.len();
                out[..read].copy_from_slice(bytes);
                read
            };
            out = &mut out[read..];
            self.position = self.position.saturating_add(read as u64);
        }
        Ok(())
    }

    /// The next bytes, at least one and at most `max`.
    fn bytes(&mut self, max: usize) -> Result<&[u8], PatchError> {
        let serial = self.current()?.serial;
        let number = self.position / BLOCK as u64;
        let place = (number.wrapping_add(serial) % BLOCKS as u64) as usize;
        let Cached { source, range } = &self.cached[place];
        if *source != serial || !range.contains(&self.position) {
            self.cache_block(place, serial, number * BLOCK as u64)?;
        }
        let range = &self.cached[place].range;
        // Both are at most the length of a block.
        let start = (self.position - range.start) as usize;
        let length = (range.end - self.position) as usize;
        Ok(&self.blocks[place * BLOCK + start..][..length.min(max)])
    }

    /// Reads the block of the current position, which starts at `start`.
    fn cache_block(&mut self, place: usize, serial: u64, start: u64) -> Result<(), PatchError> {
        self.cached[place] = Cached::default();
        let mut blocks = std::mem::take(&mut self.blocks);
        let read = self.read_block(&mut blocks[place * BLOCK..][..BLOCK], start);
        self.blocks = blocks;
        let range = start..start + read? as u64;
        if !range.contains(&self.position) {
            return Err(too_short(self.current()?, self.position));
        }
        self.cached[place] = Cached {
            source: serial,
            range,
        };
        Ok(())
    }

    /// Fills `block` up to the end of the file.
    fn read_block(&self, block: &mut [u8], start: u64) -> Result<usize, PatchError> {
        let current = self.current()?;
        let mut filled = 0;
        while filled < block.len() {
            match read_at(&*current.file, &mut block[filled..], start + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) => return Err(source_error(&current.name, host("read it")(error))),
            }
        }
        Ok(filled)
    }

    /// Reads at least one byte of the current source at its position.
    fn read_directly(&self, buffer: &mut [u8]) -> Result<usize, PatchError> {
        let current = self.current()?;
        match read_at(&*current.file, buffer, self.position) {
            Ok(0) => Err(too_short(current, self.position)),
            Ok(read) => Ok(read),
            Err(error) => Err(source_error(&current.name, host("read it")(error))),
        }
    }

    fn current(&self) -> Result<&Opened, PatchError> {
        let (offset, fault) = (0, FormatFault::NoSource);
        self.opened.last().ok_or(PatchError::Format { offset, fault })
    }

    /// Bytes of the scratch files.
    fn scratch_length(&self) -> u64 {
        let ranges = self.opened.iter().filter_map(|opened| opened.name.inflated);
        ranges.map(|range| range.inflated_length).sum()
    }

    /// Writes the content of a zlib stream to a scratch file. It must be exactly what the delta says.
    fn inflate(
        &self,
        file: &dyn SourceFile,
        range: InflatedRange,
    ) -> Result<Result<ScratchFile, SourceFault>, PatchError> {
        let scratch = match self.sources.scratch_file(range.inflated_length) {
            Ok(scratch) => scratch,
            Err(error) => return Ok(Err(host("store its inflated content")(error))),
        };
        let mut inflater = Decompress::new(true);
        let (mut output, mut buffer, mut input) = (vec![0; CHUNK], vec![0; CHUNK], 0..0);
        loop {
            self.cancel.check()?;
            if input.is_empty() && inflater.total_in() < range.length {
                let left = usize::try_from(range.length - inflater.total_in()).unwrap_or(CHUNK);
                let position = range.offset.saturating_add(inflater.total_in());
                input = match read_at(file, &mut buffer[..left.min(CHUNK)], position) {
                    Ok(0) => return Ok(Err(SourceFault::Shorter(position.saturating_add(1)))),
                    Ok(read) => 0..read,
                    Err(error) => return Ok(Err(host("read it")(error))),
                };
            }
            let before = (inflater.total_in(), inflater.total_out());
            let status = inflater.decompress(&buffer[input.clone()], &mut output, FlushDecompress::None);
            let (read, inflated) = (inflater.total_in() - before.0, inflater.total_out() - before.1);
            input.start += read as usize;
            let ended = match status {
                Ok(Status::StreamEnd) => true,
                Ok(_) if read + inflated > 0 => false,
                Ok(_) | Err(_) => return Ok(Err(SourceFault::Changed)),
            };
            if inflater.total_out() > range.inflated_length {
                return Ok(Err(SourceFault::Changed));
            }
            if let Err(error) = scratch.file().write_all(&output[..inflated as usize]) {
                return Ok(Err(host("store its inflated content")(error)));
            }
            if ended {
                let found = (inflater.total_in(), inflater.total_out());
                let is_exact = found == (range.length, range.inflated_length);
                return Ok(if is_exact {
                    Ok(scratch)
                } else {
                    Err(SourceFault::Changed)
                });
            }
        }
    }
}

/// The source ends before this position.
fn too_short(source: &Opened, position: u64) -> PatchError {
    source_error(&source.name, SourceFault::Shorter(position.saturating_add(1)))
}

/// Reads some bytes. A read that a signal interrupts is repeated.
fn read_at(file: &dyn SourceFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, offset) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

fn host(action: &'static str) -> impl Fn(io::Error) -> SourceFault {
    move |error| SourceFault::Host { action, error }
}

fn source_error(name: &SourceName, fault: SourceFault) -> PatchError {
    let start = &name.path[..name.path.len().min(PATH_IN_MESSAGE)];
    let dots = if start.len() < name.path.len() { "…" } else { "" };
    PatchError::Source {
        image: name.image,
        path: format!("{}{dots}", start.escape_ascii()),
        fault,
    }
}
