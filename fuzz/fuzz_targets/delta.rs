//! No delta panics or hangs, and every error is one of the delta or of its sources. Three kinds of input: the bytes of a
//! delta, the bytes of its operations, and operations that are made to meet.
#![no_main]

use std::io::{self, Cursor, Read, Seek, SeekFrom};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use spoke_precache::cancel::Cancel;
use spoke_precache::delta::{
    Codec, Format, InflatedRange, Operation, PatchError, PatchedTar, ScratchFile, SourceError, SourceFile, SourceName,
    Sources,
};

/// Bytes of the tar that are read; the consumer limits them.
const MAX_TAR: u64 = 1 << 20;

const TEXT: &[u8] = b"the content of the file with a stream that has content, the content of the stream";

/// `TEXT` as a zlib stream without compression, after four bytes.
const STREAM_OFFSET: u64 = 4;

#[derive(Arbitrary, Debug)]
enum Input {
    Delta(Vec<u8>),
    Stream(Vec<u8>),
    Encoded(Vec<u8>),
    Operations(Vec<Step>),
}

#[derive(Arbitrary, Debug)]
enum Step {
    Data(Vec<u8>),
    /// More or less data than the length says.
    WrongData(u16, Vec<u8>),
    Open(Name),
    Copy(Number),
    Add(Vec<u8>),
    Seek(Number),
    Deflate(u8, Number),
    /// A zlib stream with its output.
    Stream(u8, Vec<u8>),
}

#[derive(Arbitrary, Debug)]
enum Name {
    Text,
    OtherImage,
    Stream,
    Range(u8, Number, Number, Number),
    Any(u8, Vec<u8>),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Small(u8),
    Medium(u16),
    Any(u64),
}

impl From<Number> for u64 {
    fn from(number: Number) -> Self {
        match number {
            Number::Small(number) => number.into(),
            Number::Medium(number) => number.into(),
            Number::Any(number) => number,
        }
    }
}

fuzz_target!(|input: Input| {
    match input {
        Input::Delta(delta) => check(&delta),
        Input::Stream(zstd) => check_operations(&zstd),
        Input::Encoded(operations) => check_operations(&compressed(&operations)),
        Input::Operations(steps) => {
            let mut operations = Vec::new();
            for step in steps {
                step.encode(&mut operations);
            }
            check_operations(&compressed(&operations));
        }
    }
});

fn compressed(operations: &[u8]) -> Vec<u8> {
    zstd::encode_all(operations, 1).expect("memory")
}

fn check_operations(zstd: &[u8]) {
    let [standard, own] = [Format::TarDiff, Format::InflatedTarDiff].map(|format| {
        let delta = [&format.header()[..], zstd].concat();
        check(&delta);
        read(&delta, format)
    });
    if let Some(tar) = standard {
        assert!(own == Some(tar), "our format makes another tar");
    }
}

fn check(delta: &[u8]) {
    for format in [Format::TarDiff, Format::InflatedTarDiff] {
        read(delta, format);
    }
}

/// The start of the tar, twice; `None` if the delta is refused.
fn read(delta: &[u8], format: Format) -> Option<Vec<u8>> {
    let tar = PatchedTar::open(Cursor::new(delta), format, Box::new(Files), &Cancel::default());
    let mut tar = match tar {
        Ok(tar) => tar,
        Err(error) => {
            check_error(&error);
            return None;
        }
    };
    let [first, second] = [(); 2].map(|()| {
        tar.seek(SeekFrom::Start(0)).expect("a file in memory");
        let mut bytes = Vec::new();
        match Read::by_ref(&mut tar).take(MAX_TAR).read_to_end(&mut bytes) {
            Ok(_) => Some(bytes),
            Err(error) => {
                check_error(PatchError::of(&error).expect("a fault, because the host has none"));
                None
            }
        }
    });
    assert!(first == second, "the second time it makes another tar");
    first
}

fn check_error(error: &PatchError) {
    assert!(
        matches!(error, PatchError::Format { .. } | PatchError::Source { .. }),
        "{error}"
    );
    assert!(error.to_string().len() < 2_000, "{error}");
}

impl Step {
    fn encode(self, out: &mut Vec<u8>) {
        let length = |data: &[u8]| data.len() as u64;
        let (operation, data) = match self {
            Self::Data(data) => (
                Operation::Data {
                    length: length(&data),
                },
                data,
            ),
            Self::WrongData(length, data) => (
                Operation::Data {
                    length: length.into(),
                },
                data,
            ),
            Self::Open(name) => (Operation::Open(name.into()), Vec::new()),
            Self::Copy(length) => (
                Operation::Copy {
                    length: length.into(),
                },
                Vec::new(),
            ),
            Self::Add(data) => (
                Operation::AddData {
                    length: length(&data),
                },
                data,
            ),
            Self::Seek(position) => (
                Operation::Seek {
                    position: position.into(),
                },
                Vec::new(),
            ),
            Self::Deflate(byte, length) => match Codec::from_byte(byte % 20) {
                Some(codec) => (
                    Operation::Deflate {
                        codec,
                        length: length.into(),
                    },
                    Vec::new(),
                ),
                None => return,
            },
            Self::Stream(byte, data) => {
                Self::Deflate(byte, Number::Any(length(&data))).encode(out);
                (
                    Operation::Data {
                        length: length(&data),
                    },
                    data,
                )
            }
        };
        operation.encode(out);
        out.extend_from_slice(&data);
    }
}

impl From<Name> for SourceName {
    fn from(name: Name) -> Self {
        match name {
            Name::Text => Self::file("text"),
            Name::OtherImage => Self::file_in(1, "text"),
            Name::Stream => Self::file("stream").inflated(InflatedRange {
                offset: STREAM_OFFSET,
                length: stored_stream().len() as u64,
                inflated_length: TEXT.len() as u64,
            }),
            Name::Range(image, offset, length, inflated_length) => Self::file_in(image.into(), "stream")
                .inflated(InflatedRange {
                    offset: offset.into(),
                    length: length.into(),
                    inflated_length: inflated_length.into(),
                }),
            Name::Any(image, path) => Self::file_in(image.into(), path),
        }
    }
}

fn stored_stream() -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::none());
    encoder.write_all(TEXT).expect("memory");
    encoder.finish().expect("memory")
}

/// Two images with a `text`; the first one has a `stream` too.
struct Files;

impl Sources for Files {
    fn open(&self, image: usize, path: &[u8]) -> Result<Box<dyn SourceFile>, SourceError> {
        match (image, path) {
            (0 | 1, b"text") => Ok(Box::new(InMemory(TEXT.to_vec()))),
            (0, b"stream") => Ok(Box::new(InMemory(
                [&b"head"[..], &stored_stream(), b"tail"].concat(),
            ))),
            _ => Err(SourceError::Missing(path.escape_ascii().to_string())),
        }
    }

    fn scratch_file(&self, _: u64) -> io::Result<ScratchFile> {
        Ok(tempfile::tempfile()?.into())
    }
}

struct InMemory(Vec<u8>);

impl SourceFile for InMemory {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.len());
        let read = (self.0.len() - start).min(buffer.len());
        buffer[..read].copy_from_slice(&self.0[start..start + read]);
        Ok(read)
    }
}
