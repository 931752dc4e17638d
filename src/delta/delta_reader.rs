//! Reads a delta: its header, the zstd stream and the operations in it.
//!
//! It keeps one zstd window and two buffers in memory. The data of Data and AddData is read in pieces, by
//! [`DeltaReader::data`] and [`DeltaReader::consume`].

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation as _, OutBuffer};

use super::operation::{
    ADD_DATA, COPY, DATA, DEFLATE, InflatedRange, MAX_PATH, MAX_UVARINT, OPEN, OPEN_IN, OPEN_INFLATED,
    Operation, SEEK, SourceName,
};
use super::patch_error::{FormatFault, PatchError};
use super::{Codec, Format};
use crate::cancel::Cancel;

/// Base-2 logarithm of the largest zstd window, 8 MiB, which every decoder should accept (RFC 8878, 3.1.1.1.2).
/// containers/tar-diff writes this at its default level. Higher levels of older versions of its encoder write up to 32 MiB,
/// which is too much memory for a node that applies several deltas.
const WINDOW_LOG_MAX: u32 = 23;

/// Compressed bytes that are read at once.
const INPUT_BUFFER: usize = 64 << 10;

/// Uncompressed bytes that are decoded at once: a block of zstd.
const BUFFER: usize = 128 << 10;

/// The longest AddData, as other programs limit it.
const MAX_ADD_DATA: u64 = 100 << 20;

/// A delta being read.
pub(super) struct DeltaReader<R> {
    delta: BufReader<R>,
    /// Where the delta starts in its file.
    start: u64,
    format: Format,
    cancel: Cancel,
    decoder: Decoder<'static>,
    /// True after the last byte of a zstd frame.
    frame_ended: bool,
    buffer: Box<[u8]>,
    unread: Range<usize>,
    /// Uncompressed bytes before `unread`.
    offset: u64,
}

impl<R: Read + Seek> DeltaReader<R> {
    /// Reads the header.
    pub(super) fn open(mut delta: R, format: Format, cancel: Cancel) -> Result<Self, PatchError> {
        let start = delta.stream_position().map_err(PatchError::Host)?;
        let mut reader = Self {
            delta: BufReader::with_capacity(INPUT_BUFFER, delta),
            start,
            format,
            cancel,
            decoder: decoder().map_err(PatchError::Host)?,
            frame_ended: false,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            unread: 0..0,
            offset: 0,
        };
        reader.read_header()?;
        Ok(reader)
    }

    /// Reads from the header again.
    pub(super) fn restart(&mut self) -> Result<(), PatchError> {
        self.delta
            .seek(SeekFrom::Start(self.start))
            .map_err(PatchError::Host)?;
        self.decoder.reinit().map_err(PatchError::Host)?;
        (self.frame_ended, self.unread, self.offset) = (false, 0..0, 0);
        self.read_header()
    }
}

impl<R: Read> DeltaReader<R> {
    /// The next operation and the length of its encoding; `None` at the end. All data of the last one must have been
    /// consumed.
    pub(super) fn next_operation(&mut self) -> Result<Option<(Operation, u64)>, PatchError> {
        if self.unread.is_empty() && !self.fill()? {
            return Ok(None);
        }
        let start = self.offset;
        let op = self.byte()?;
        let size = self.number()?;
        let operation = match op {
            DATA => Operation::Data { length: size },
            COPY => Operation::Copy { length: size },
            SEEK => Operation::Seek { position: size },
            ADD_DATA if size <= MAX_ADD_DATA => Operation::AddData { length: size },
            ADD_DATA => {
                let (what, max) = ("bytes of one AddData", MAX_ADD_DATA);
                return Err(self.fault(FormatFault::Limit { what, max }));
            }
            OPEN => Operation::Open(SourceName::file(self.path(size)?)),
            OPEN_INFLATED | DEFLATE | OPEN_IN if self.format == Format::InflatedTarDiff => {
                self.own_operation(op, size)?
            }
            _ => return Err(self.fault(FormatFault::Operation(op))),
        };
        Ok(Some((operation, self.offset - start)))
    }

    /// The next bytes of the data of an operation, at least one.
    pub(super) fn data(&mut self) -> Result<&[u8], PatchError> {
        if self.unread.is_empty() && !self.fill()? {
            return Err(self.fault(FormatFault::CutOff));
        }
        Ok(&self.buffer[self.unread.clone()])
    }

    /// Marks bytes of [`Self::data`] as read.
    pub(super) fn consume(&mut self, length: usize) {
        self.unread.start += length;
        self.offset += length as u64;
    }

    /// A fault at the current position.
    pub(super) fn fault(&self, fault: FormatFault) -> PatchError {
        PatchError::Format {
            offset: self.offset,
            fault,
        }
    }

    /// Fails if the run is stopped.
    pub(super) fn check_cancel(&self) -> Result<(), PatchError> {
        Ok(self.cancel.check()?)
    }

    fn read_header(&mut self) -> Result<(), PatchError> {
        let expected = self.format.header();
        let mut header = [0; 8];
        match self.delta.read_exact(&mut header) {
            Ok(()) if header == *expected => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(PatchError::Host(error)),
            Ok(()) | Err(_) => Err(self.fault(FormatFault::Header(expected))),
        }
    }

    /// An operation that only our format has.
    fn own_operation(&mut self, op: u8, size: u64) -> Result<Operation, PatchError> {
        let operands = || FormatFault::Operands(op);
        if size > (4 * MAX_UVARINT + MAX_PATH) as u64 {
            return Err(self.fault(operands()));
        }
        let end = self.offset + size;
        let operation = match op {
            DEFLATE => {
                let byte = self.byte()?;
                let codec = Codec::from_byte(byte).ok_or_else(|| self.fault(FormatFault::Codec(byte)))?;
                let length = self.number()?;
                Operation::Deflate { codec, length }
            }
            _ => {
                let image = self.number()?;
                let inflated = if op == OPEN_INFLATED {
                    let (offset, length, inflated_length) = (self.number()?, self.number()?, self.number()?);
                    Some(InflatedRange {
                        offset,
                        length,
                        inflated_length,
                    })
                } else {
                    None
                };
                let rest = end
                    .checked_sub(self.offset)
                    .ok_or_else(|| self.fault(operands()))?;
                let path = self.path(rest)?;
                Operation::Open(SourceName {
                    image,
                    path,
                    inflated,
                })
            }
        };
        if self.offset != end {
            return Err(self.fault(operands()));
        }
        Ok(operation)
    }

    fn path(&mut self, length: u64) -> Result<Vec<u8>, PatchError> {
        if length > MAX_PATH as u64 {
            return Err(self.fault(FormatFault::Path("is too long")));
        }
        let mut path = Vec::with_capacity(length as usize);
        while path.len() < length as usize {
            let missing = length as usize - path.len();
            let data = self.data()?;
            let data = &data[..missing.min(data.len())];
            path.extend_from_slice(data);
            self.consume(path.len() - (length as usize - missing));
        }
        clean_path(&path).map_err(|fault| self.fault(FormatFault::Path(fault)))
    }

    fn byte(&mut self) -> Result<u8, PatchError> {
        let byte = self.data()?[0];
        self.consume(1);
        Ok(byte)
    }

    /// A uvarint. Lengths and offsets of files have at most 63 bits, so greater numbers are faults.
    fn number(&mut self) -> Result<u64, PatchError> {
        let mut number = 0;
        // Nine groups of seven bits are 63.
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(self.fault(FormatFault::Number))
    }

    /// Decodes more; false at the end of the delta.
    fn fill(&mut self) -> Result<bool, PatchError> {
        loop {
            // A delta may consist of empty frames only, which keep the decoder busy without any output.
            self.cancel.check()?;
            let input = loop {
                match self.delta.fill_buf() {
                    Ok(_) => break self.delta.buffer(),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(PatchError::Host(error)),
                }
            };
            let at_end = input.is_empty();
            if at_end && self.frame_ended {
                return Ok(false);
            }
            let mut input = InBuffer::around(input);
            let mut output = OutBuffer::around(&mut self.buffer[..]);
            let hint = match self.decoder.run(&mut input, &mut output) {
                Ok(hint) => hint,
                Err(error) => return Err(self.fault(FormatFault::Zstd(error))),
            };
            let (read, decoded) = (input.pos(), output.pos());
            self.delta.consume(read);
            self.frame_ended = hint == 0;
            if decoded > 0 {
                self.unread = 0..decoded;
                return Ok(true);
            }
            if at_end && !self.frame_ended {
                return Err(self.fault(FormatFault::CutOff));
            }
        }
    }
}

fn decoder() -> io::Result<Decoder<'static>> {
    let mut decoder = Decoder::new()?;
    decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))?;
    Ok(decoder)
}

/// The path without empty components and `.`, as Go's `path.Clean` makes it. Go also resolves `..`; no program writes it.
fn clean_path(path: &[u8]) -> Result<Vec<u8>, &'static str> {
    if path.contains(&0) {
        return Err("contains a NUL");
    }
    let components = path.split(|byte| *byte == b'/');
    let components: Vec<&[u8]> = components.filter(|name| !matches!(name, [] | [b'.'])).collect();
    if components.is_empty() {
        return Err("is empty");
    }
    if components.contains(&&b".."[..]) {
        return Err("contains `..`");
    }
    Ok(components.join(&b'/'))
}
