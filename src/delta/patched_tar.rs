//! Applies a delta: reads the tar that it makes from the files of old images.
//!
//! ```text
//! delta ─→ DeltaReader ─ operations, differences ─┐
//!                                                 ├─→ output ─→ the tar
//! files ─→ OpenedSources ─ bytes ─────────────────┘      └─→ Deflater, between a Deflate and the end of its length ─→ the tar
//! ```
//!
//! Operations of any length are streamed; memory is the zstd window and a few buffers.

use std::io::{self, Read, Seek, SeekFrom};

use super::Format;
use super::codec::Deflater;
use super::delta_reader::DeltaReader;
use super::limits::Cost;
use super::opened_sources::OpenedSources;
use super::operation::{Operation, SourceName};
use super::patch_error::{FormatFault, PatchError};
use super::source::Sources;
use crate::cancel::Cancel;

/// Bytes that are deflated at once.
const CHUNK: usize = 64 << 10;

/// The tar that a delta makes. It can be read again from its start; other seeks fail.
///
/// Errors contain a [`PatchError`], see [`PatchError::of`].
pub struct PatchedTar<R> {
    delta: DeltaReader<R>,
    sources: OpenedSources,
    cost: Cost,
    /// The operation whose output is being read, with the bytes that are left of it.
    output: Option<(Output, u64)>,
    deflating: Option<Deflating>,
    deflated: Deflated,
    /// Bytes of the tar that were read.
    position: u64,
}

/// How an operation makes output.
#[derive(Clone, Copy)]
enum Output {
    Data,
    Copy,
    AddData,
}

/// A zlib stream in the output.
struct Deflating {
    deflater: Deflater,
    /// Uncompressed bytes that are missing.
    left: u64,
    chunk: Box<[u8]>,
}

/// Bytes of zlib streams that are not read yet.
#[derive(Default)]
struct Deflated {
    bytes: Vec<u8>,
    read: usize,
}

impl<R: Read + Seek> PatchedTar<R> {
    /// Opens a delta that starts at the current position of its file.
    ///
    /// # Errors
    /// If the delta does not have this format or cannot be read.
    pub fn open(
        delta: R,
        format: Format,
        sources: Box<dyn Sources>,
        cancel: &Cancel,
    ) -> Result<Self, PatchError> {
        Ok(Self {
            delta: DeltaReader::open(delta, format, cancel.clone())?,
            sources: OpenedSources::new(sources, cancel.clone()),
            cost: Cost::default(),
            output: None,
            deflating: None,
            deflated: Deflated::default(),
            position: 0,
        })
    }
}

impl<R: Read> PatchedTar<R> {
    /// Fills `out` up to the end of the tar; returns the number of bytes.
    fn fill(&mut self, out: &mut [u8]) -> Result<usize, PatchError> {
        self.delta.check_cancel()?;
        let mut filled = 0;
        while filled < out.len() {
            let read = self.deflated.read(&mut out[filled..]);
            if read > 0 {
                filled += read;
            } else if let Some((output, left)) = self.output {
                let room = (out.len() - filled) as u64;
                if let Some(mut deflating) = self.deflating.take() {
                    let chunk = &mut deflating.chunk[..left.min(CHUNK as u64) as usize];
                    self.read_output(output, left, chunk)?;
                    deflating.deflater.write(chunk, &mut self.deflated.bytes);
                    deflating.left -= chunk.len() as u64;
                    self.deflating = Some(deflating);
                } else {
                    let end = filled + left.min(room) as usize;
                    self.read_output(output, left, &mut out[filled..end])?;
                    filled = end;
                }
            } else if let Some(finished) = self.deflating.take_if(|deflating| deflating.left == 0) {
                finished.deflater.finish(&mut self.deflated.bytes);
            } else if !self.start_operation()? {
                break;
            }
        }
        self.cost.add_tar(filled as u64);
        Ok(filled)
    }

    /// Reads and starts the next operation; false at the end of the delta.
    fn start_operation(&mut self) -> Result<bool, PatchError> {
        let Some((operation, encoding)) = self.delta.next_operation()? else {
            return match self.deflating {
                None => Ok(false),
                Some(_) => Err(self.delta.fault(FormatFault::ZlibStream)),
            };
        };
        let started = self.start(operation, encoding);
        if let Some(source) = started.map_err(|fault| self.delta.fault(fault))? {
            self.sources.open(source)?;
        }
        Ok(true)
    }

    /// Starts an operation; returns the source that it needs, if that is not open.
    fn start(&mut self, operation: Operation, encoding: u64) -> Result<Option<SourceName>, FormatFault> {
        self.cost.add_encoding(encoding)?;
        match operation {
            Operation::Data { length } => self.start_output(Output::Data, length)?,
            Operation::Copy { length } => self.start_output(Output::Copy, length)?,
            Operation::AddData { length } => self.start_output(Output::AddData, length)?,
            Operation::Seek { .. } if !self.sources.has_current() => return Err(FormatFault::NoSource),
            Operation::Seek { position } => self.sources.seek(position),
            Operation::Open(name) if self.sources.select(&name) => {}
            Operation::Open(name) => {
                self.cost.add_opened()?;
                if let Some(range) = name.inflated {
                    self.cost.add_inflated(range.length, range.inflated_length)?;
                }
                return Ok(Some(name));
            }
            Operation::Deflate { .. } if self.deflating.is_some() => return Err(FormatFault::ZlibStream),
            Operation::Deflate { codec, length } => {
                self.cost.add_deflated(length)?;
                self.deflating = Some(Deflating {
                    deflater: Deflater::new(codec),
                    left: length,
                    chunk: vec![0; CHUNK].into_boxed_slice(),
                });
            }
        }
        Ok(None)
    }

    fn start_output(&mut self, output: Output, length: u64) -> Result<(), FormatFault> {
        if !matches!(output, Output::Data) && !self.sources.has_current() {
            return Err(FormatFault::NoSource);
        }
        if self
            .deflating
            .as_ref()
            .is_some_and(|deflating| length > deflating.left)
        {
            return Err(FormatFault::ZlibStream);
        }
        self.output = Some((output, length)).filter(|_| length > 0);
        Ok(())
    }

    /// Fills `out` with output of the current operation, which has `left` bytes.
    fn read_output(&mut self, output: Output, left: u64, out: &mut [u8]) -> Result<(), PatchError> {
        match output {
            Output::Copy => self.sources.copy(out)?,
            Output::Data => self.read_data(out, <[u8]>::copy_from_slice)?,
            Output::AddData => {
                self.sources.copy(out)?;
                self.read_data(out, |sums, differences| {
                    for (sum, difference) in sums.iter_mut().zip(differences) {
                        *sum = sum.wrapping_add(*difference);
                    }
                })?;
            }
        }
        self.cost.add_output(out.len() as u64);
        self.output = Some((output, left - out.len() as u64)).filter(|(_, left)| *left > 0);
        Ok(())
    }

    /// Passes the next data of the delta to `put`, in pieces, each with the part of `out` where it belongs.
    fn read_data(&mut self, mut out: &mut [u8], put: impl Fn(&mut [u8], &[u8])) -> Result<(), PatchError> {
        while !out.is_empty() {
            let data = self.delta.data()?;
            let length = data.len().min(out.len());
            let (now, later) = out.split_at_mut(length);
            put(now, &data[..length]);
            self.delta.consume(length);
            out = later;
        }
        Ok(())
    }
}

impl Deflated {
    fn read(&mut self, out: &mut [u8]) -> usize {
        let unread = &self.bytes[self.read..];
        let length = unread.len().min(out.len());
        out[..length].copy_from_slice(&unread[..length]);
        self.read += length;
        if self.read == self.bytes.len() {
            self.bytes.clear();
            self.read = 0;
        }
        length
    }
}

impl<R: Read> Read for PatchedTar<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.fill(out)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl<R: Read + Seek> Seek for PatchedTar<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match to {
            SeekFrom::Current(0) => {}
            SeekFrom::Start(0) => {
                self.delta.restart()?;
                self.sources.clear();
                self.cost = Cost::default();
                (self.output, self.deflating) = (None, None);
                self.deflated = Deflated::default();
                self.position = 0;
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests;
