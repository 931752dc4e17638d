//! Writes deltas: merges data, splits long operations, and opens and seeks only where the source or the position changes.

use std::io::{self, Write};

use super::operation::{MAX_PATH, Operation, SourceName};
use super::{Codec, Format};

/// The longest operation: other programs hold a whole `AddData` in memory.
const MAX_OPERATION: usize = 4 << 20;

/// Base-2 logarithm of the zstd window, 8 MiB: what every decoder accepts without options.
const WINDOW_LOG: u32 = 23;

/// A delta being written. The operations are its methods; [`DeltaWriter::finish`] completes it.
pub struct DeltaWriter<W: Write> {
    format: Format,
    encoder: zstd::Encoder<'static, W>,
    /// The data of the next Data operation.
    data: Vec<u8>,
    /// The source that the last operation opened.
    source: Option<SourceName>,
    /// The byte of the source that the next operation reads.
    position: u64,
    /// Output that the last `Deflate` still expects.
    to_deflate: u64,
    /// Encodings of operations.
    encoded: Vec<u8>,
}

impl<W: Write> DeltaWriter<W> {
    /// Writes the header; `level` is zstd's, 19 for a delta that is stored.
    pub fn new(mut writer: W, format: Format, level: i32) -> io::Result<Self> {
        writer.write_all(format.header())?;
        let mut encoder = zstd::Encoder::new(writer, level)?;
        encoder.window_log(WINDOW_LOG)?;
        Ok(Self {
            format,
            encoder,
            data: Vec::new(),
            source: None,
            position: 0,
            to_deflate: 0,
            encoded: Vec::new(),
        })
    }

    /// The output continues with these bytes.
    pub fn data(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = MAX_OPERATION - self.data.len();
            let (now, later) = bytes.split_at(self.until_boundary(bytes.len() as u64).min(room));
            self.data.extend_from_slice(now);
            bytes = later;
            if self.data.len() == MAX_OPERATION {
                self.write_data()?;
            }
            self.count_deflated(now.len())?;
        }
        Ok(())
    }

    /// The output continues with `length` bytes of the source from `offset`.
    pub fn copy_from(&mut self, source: &SourceName, offset: u64, mut length: u64) -> io::Result<()> {
        self.read_from(source, offset, length)?;
        while length > 0 {
            let now = self.until_boundary(length).min(MAX_OPERATION);
            self.write(&Operation::Copy { length: now as u64 })?;
            length -= now as u64;
            self.count_deflated(now)?;
        }
        Ok(())
    }

    /// The output continues with as many bytes of the source from `offset` as there are differences, each with its
    /// difference added.
    pub fn add_from(&mut self, source: &SourceName, offset: u64, mut differences: &[u8]) -> io::Result<()> {
        self.read_from(source, offset, differences.len() as u64)?;
        while !differences.is_empty() {
            let now = self.until_boundary(differences.len() as u64).min(MAX_OPERATION);
            let (now, later) = differences.split_at(now);
            self.write(&Operation::AddData {
                length: now.len() as u64,
            })?;
            self.encoder.write_all(now)?;
            differences = later;
            self.count_deflated(now.len())?;
        }
        Ok(())
    }

    /// The next `length` bytes of output become one zlib stream of this compressor.
    ///
    /// # Errors
    /// If the previous stream is not complete, or the format has no such operation.
    pub fn deflate(&mut self, codec: Codec, length: u64) -> io::Result<()> {
        if self.to_deflate > 0 {
            return Err(invalid("a zlib stream in the delta is not complete"));
        }
        self.write_data()?;
        self.write(&Operation::Deflate { codec, length })?;
        self.to_deflate = length;
        Ok(())
    }

    /// Completes the delta.
    pub fn finish(mut self) -> io::Result<W> {
        if self.to_deflate > 0 {
            return Err(invalid("a zlib stream in the delta is not complete"));
        }
        self.write_data()?;
        self.encoder.finish()
    }

    /// Bytes of an operation up to the end of the zlib stream in the output: no operation crosses it.
    fn until_boundary(&self, length: u64) -> usize {
        let length = match self.to_deflate {
            0 => length,
            left => length.min(left),
        };
        usize::try_from(length).unwrap_or(usize::MAX)
    }

    /// Data after the end of a zlib stream is another operation.
    fn count_deflated(&mut self, output: usize) -> io::Result<()> {
        match self.to_deflate {
            0 => Ok(()),
            left => {
                self.to_deflate = left - output as u64;
                if self.to_deflate == 0 {
                    self.write_data()
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Makes `source` at `offset` what the next operation reads.
    fn read_from(&mut self, source: &SourceName, offset: u64, length: u64) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        self.write_data()?;
        if self.source.as_ref() != Some(source) {
            if source.path.is_empty() || source.path.len() > MAX_PATH {
                return Err(invalid("the path of a source is empty or too long for a delta"));
            }
            self.write(&Operation::Open(source.clone()))?;
            self.source = Some(source.clone());
            self.position = 0;
        }
        if self.position != offset {
            self.write(&Operation::Seek { position: offset })?;
        }
        self.position = offset
            .checked_add(length)
            .ok_or_else(|| invalid("the end of a range in a source exceeds 64 bits"))?;
        Ok(())
    }

    fn write_data(&mut self) -> io::Result<()> {
        if self.data.is_empty() {
            return Ok(());
        }
        self.write(&Operation::Data {
            length: self.data.len() as u64,
        })?;
        self.encoder.write_all(&self.data)?;
        self.data.clear();
        Ok(())
    }

    fn write(&mut self, operation: &Operation) -> io::Result<()> {
        if self.format == Format::TarDiff && !operation.is_standard() {
            return Err(invalid(
                "a `tardf1` delta reads only files of one image and compresses nothing",
            ));
        }
        self.encoded.clear();
        operation.encode(&mut self.encoded);
        self.encoder.write_all(&self.encoded)
    }
}

fn invalid(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::delta::InflatedRange;

    /// The operations of a delta as bytes.
    fn operations(delta: &[u8], format: Format) -> Vec<u8> {
        zstd::decode_all(delta.strip_prefix(format.header()).unwrap()).unwrap()
    }

    fn encoded(operations: &[(Operation, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (operation, data) in operations {
            operation.encode(&mut bytes);
            bytes.extend_from_slice(data);
        }
        bytes
    }

    #[test]
    fn it_opens_and_seeks_only_when_the_source_or_the_position_changes() {
        let (a, b) = (SourceName::file("a"), SourceName::file("b"));
        let mut writer = DeltaWriter::new(Vec::new(), Format::TarDiff, 1).unwrap();
        writer.data(b"he").unwrap();
        writer.data(b"ad").unwrap();
        writer.copy_from(&a, 0, 10).unwrap();
        writer.add_from(&a, 10, &[1, 2]).unwrap();
        writer.copy_from(&a, 5, 1).unwrap();
        writer.copy_from(&b, 9, 0).unwrap();
        writer.copy_from(&b, 0, 3).unwrap();
        writer.copy_from(&a, 7, 3).unwrap();
        let delta = writer.finish().unwrap();
        let open = |source: &SourceName| Operation::Open(source.clone());
        let expected = encoded(&[
            (Operation::Data { length: 4 }, b"head"),
            (open(&a), b""),
            (Operation::Copy { length: 10 }, b""),
            (Operation::AddData { length: 2 }, &[1, 2]),
            (Operation::Seek { position: 5 }, b""),
            (Operation::Copy { length: 1 }, b""),
            (open(&b), b""),
            (Operation::Copy { length: 3 }, b""),
            (open(&a), b""),
            (Operation::Seek { position: 7 }, b""),
            (Operation::Copy { length: 3 }, b""),
        ]);
        assert_eq!(operations(&delta, Format::TarDiff), expected);
    }

    #[test]
    fn no_operation_is_longer_than_4_mib_or_crosses_the_end_of_a_zlib_stream() {
        const MIB: usize = 1 << 20;
        let a = SourceName::file("a");
        let codec = Codec::from_byte(3).unwrap();
        let mut writer = DeltaWriter::new(Vec::new(), Format::InflatedTarDiff, 1).unwrap();
        writer.data(&vec![7; 3 * MIB]).unwrap();
        writer.data(&vec![7; 3 * MIB]).unwrap();
        writer.copy_from(&a, 0, 5 << 20).unwrap();
        writer.deflate(codec, 4).unwrap();
        writer.data(b"abcdefg").unwrap();
        writer.deflate(codec, 2).unwrap();
        writer.copy_from(&a, 5 << 20, 3).unwrap();
        writer.deflate(codec, 1).unwrap();
        writer.add_from(&a, (5 << 20) + 3, &[8, 9]).unwrap();
        let delta = writer.finish().unwrap();
        let mib = MIB as u64;
        let expected = encoded(&[
            (Operation::Data { length: 4 * mib }, &vec![7; 4 * MIB]),
            (Operation::Data { length: 2 * mib }, &vec![7; 2 * MIB]),
            (Operation::Open(a), b""),
            (Operation::Copy { length: 4 * mib }, b""),
            (Operation::Copy { length: mib }, b""),
            (Operation::Deflate { codec, length: 4 }, b""),
            (Operation::Data { length: 4 }, b"abcd"),
            (Operation::Data { length: 3 }, b"efg"),
            (Operation::Deflate { codec, length: 2 }, b""),
            (Operation::Copy { length: 2 }, b""),
            (Operation::Copy { length: 1 }, b""),
            (Operation::Deflate { codec, length: 1 }, b""),
            (Operation::AddData { length: 1 }, &[8]),
            (Operation::AddData { length: 1 }, &[9]),
        ]);
        assert!(operations(&delta, Format::InflatedTarDiff) == expected);
    }

    #[test]
    fn it_writes_nothing_that_the_format_does_not_have() {
        let codec = Codec::from_byte(6).unwrap();
        let range = InflatedRange {
            offset: 0,
            length: 1,
            inflated_length: 1,
        };
        let mut writer = DeltaWriter::new(Vec::new(), Format::TarDiff, 1).unwrap();
        let sources = [
            SourceName::file_in(1, "a"),
            SourceName::file("a").inflated(range),
            SourceName::file(""),
            SourceName::file(vec![b'a'; MAX_PATH + 1]),
        ];
        for source in sources {
            let kind = writer.copy_from(&source, 0, 1).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::InvalidInput, "{source:?}");
        }
        let kind = writer.deflate(codec, 1).unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::InvalidInput);
        let mut writer = DeltaWriter::new(Vec::new(), Format::InflatedTarDiff, 1).unwrap();
        writer.deflate(codec, 2).unwrap();
        writer.data(b"a").unwrap();
        assert!(writer.deflate(codec, 1).is_err());
        assert!(writer.finish().is_err(), "the zlib stream is not complete");
    }
}
