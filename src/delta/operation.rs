//! Defines the operations of a delta and how they are encoded.
//!
//! After the header, a delta is one zstd stream of operations:
//!
//! ```text
//! op: u8   size: uvarint   data: `size` bytes, or nothing for Copy and Seek
//!
//! 0 Data           the data is the output
//! 1 Open           data: path                     the source is this file of old image 0, from its start
//! 2 Copy                                          the next `size` bytes of the source are the output
//! 3 AddData        data: differences              the same, after adding each byte of the data to its byte, modulo 256
//! 4 Seek                                          the source continues at byte `size`
//!
//! only in `InflatedTarDiff`:
//! 5 OpenInflated   data: image, offset, length, inflated length: uvarints; path
//!                                                 the source is the content of the zlib stream in this range of the file
//! 6 Deflate        data: codec: u8, length: uvarint
//!                                                 the next `length` bytes of output become one zlib stream in the tar
//! 7 OpenIn         data: image: uvarint, path     Open in another old image
//! ```
//!
//! Operations 0 to 4 are those of containers/tar-diff (`file-format.md`).

use super::Codec;

/// The length of the longest path, as other programs limit it.
pub const MAX_PATH: usize = 4 << 10;

pub(super) const DATA: u8 = 0;
pub(super) const OPEN: u8 = 1;
pub(super) const COPY: u8 = 2;
pub(super) const ADD_DATA: u8 = 3;
pub(super) const SEEK: u8 = 4;
pub(super) const OPEN_INFLATED: u8 = 5;
pub(super) const DEFLATE: u8 = 6;
pub(super) const OPEN_IN: u8 = 7;

/// Bytes of the longest uvarint: 64 bits in groups of seven.
pub(super) const MAX_UVARINT: usize = 10;

/// One operation. The data of `Data` and `AddData` follows in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Outputs the following bytes.
    Data {
        /// Their number.
        length: u64,
    },
    /// Reads another source, from its start.
    Open(SourceName),
    /// Outputs bytes of the source.
    Copy {
        /// Their number.
        length: u64,
    },
    /// Outputs bytes of the source, with the following bytes added to them.
    AddData {
        /// Their number.
        length: u64,
    },
    /// Continues at another byte of the source.
    Seek {
        /// Its offset.
        position: u64,
    },
    /// Compresses the next bytes of output.
    Deflate {
        /// The compressor.
        codec: Codec,
        /// Uncompressed length.
        length: u64,
    },
}

/// The file or inflated range that operations read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceName {
    /// Number of the old image.
    pub image: u64,
    /// Path in the old image, without a leading `/`.
    pub path: Vec<u8>,
    /// The range of the file whose inflated content is read; `None` for the file itself.
    pub inflated: Option<InflatedRange>,
}

/// A range of a file that is one zlib stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InflatedRange {
    /// Offset in the file.
    pub offset: u64,
    /// Length of the zlib stream.
    pub length: u64,
    /// Length of its content.
    pub inflated_length: u64,
}

impl SourceName {
    /// A file of old image 0.
    pub fn file(path: impl Into<Vec<u8>>) -> Self {
        Self::file_in(0, path)
    }

    /// A file of the old image with this number.
    pub fn file_in(image: u64, path: impl Into<Vec<u8>>) -> Self {
        Self {
            image,
            path: path.into(),
            inflated: None,
        }
    }

    /// The content of the zlib stream in a range of this file.
    pub fn inflated(self, range: InflatedRange) -> Self {
        Self {
            inflated: Some(range),
            ..self
        }
    }
}

impl Operation {
    /// Whether containers/tar-diff has this operation too.
    pub(super) fn is_standard(&self) -> bool {
        match self {
            Self::Open(source) => source.image == 0 && source.inflated.is_none(),
            Self::Deflate { .. } => false,
            Self::Data { .. } | Self::Copy { .. } | Self::AddData { .. } | Self::Seek { .. } => true,
        }
    }

    /// Appends the encoding to `out`, without the data of `Data` and `AddData`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut with_number = |op: u8, number: u64| {
            out.push(op);
            push_uvarint(out, number);
        };
        match self {
            Self::Data { length } => with_number(DATA, *length),
            Self::Copy { length } => with_number(COPY, *length),
            Self::AddData { length } => with_number(ADD_DATA, *length),
            Self::Seek { position } => with_number(SEEK, *position),
            Self::Open(source) => {
                let (op, data) = source.encode();
                with_number(op, data.len() as u64);
                out.extend_from_slice(&data);
            }
            Self::Deflate { codec, length } => {
                let mut data = vec![codec.to_byte()];
                push_uvarint(&mut data, *length);
                with_number(DEFLATE, data.len() as u64);
                out.extend_from_slice(&data);
            }
        }
    }
}

impl SourceName {
    fn encode(&self) -> (u8, Vec<u8>) {
        let mut data = Vec::with_capacity(4 * MAX_UVARINT + self.path.len());
        let op = match self.inflated {
            Some(range) => {
                let InflatedRange {
                    offset,
                    length,
                    inflated_length,
                } = range;
                for number in [self.image, offset, length, inflated_length] {
                    push_uvarint(&mut data, number);
                }
                OPEN_INFLATED
            }
            None if self.image == 0 => OPEN,
            None => {
                push_uvarint(&mut data, self.image);
                OPEN_IN
            }
        };
        data.extend_from_slice(&self.path);
        (op, data)
    }
}

/// Appends an unsigned LEB128 number, as Go's `binary.PutUvarint` writes it.
fn push_uvarint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn operations_are_encoded_as_the_format_says() {
        let range = InflatedRange {
            offset: 300,
            length: 7,
            inflated_length: 128,
        };
        let codec = Codec::from_byte(9).unwrap();
        let cases: [(Operation, &[u8]); 8] = [
            (Operation::Data { length: 5 }, b"\x00\x05"),
            (Operation::Open(SourceName::file("etc/a")), b"\x01\x05etc/a"),
            (Operation::Copy { length: 300 }, b"\x02\xac\x02"),
            (Operation::AddData { length: 127 }, b"\x03\x7f"),
            (Operation::Seek { position: 128 }, b"\x04\x80\x01"),
            (
                Operation::Open(SourceName::file_in(2, "b").inflated(range)),
                b"\x05\x07\x02\xac\x02\x07\x80\x01b",
            ),
            (Operation::Deflate { codec, length: 200 }, b"\x06\x03\x09\xc8\x01"),
            (Operation::Open(SourceName::file_in(1, "c")), b"\x07\x02\x01c"),
        ];
        for (operation, expected) in cases {
            let mut encoded = Vec::new();
            operation.encode(&mut encoded);
            assert_eq!(encoded, expected, "{operation:?}");
            assert_eq!(
                operation.is_standard(),
                expected[0] < OPEN_INFLATED,
                "{operation:?}"
            );
        }
    }
}
