//! Applies deltas to files in memory.
#![allow(clippy::unwrap_used)]

mod faults;
mod go_deltas;
mod hostile;
mod model;

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::sync::Arc;

use super::PatchedTar;
use crate::cancel::{Cancel, StopReason, Stopped};
use crate::delta::{
    Codec, DeltaWriter, Format, InflatedRange, Operation, PatchError, ScratchFile, SourceError, SourceFile,
    SourceName, Sources,
};

/// Old images whose files are in memory.
#[derive(Clone, Default)]
struct Images(Arc<Vec<BTreeMap<Vec<u8>, Vec<u8>>>>);

impl Images {
    fn new(images: &[&[(&str, &[u8])]]) -> Self {
        let files = |files: &&[(&str, &[u8])]| {
            let file = |(path, content): &(&str, &[u8])| (path.as_bytes().to_vec(), content.to_vec());
            files.iter().map(file).collect()
        };
        Self(Arc::new(images.iter().map(files).collect()))
    }
}

impl Sources for Images {
    fn open(&self, image: usize, path: &[u8]) -> Result<Box<dyn SourceFile>, SourceError> {
        match self.0.get(image).and_then(|files| files.get(path)) {
            Some(content) => Ok(Box::new(InMemory(content.clone()))),
            None => Err(SourceError::Missing(path.escape_ascii().to_string())),
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

/// An operation and its data.
type Step<'a> = (Operation, &'a [u8]);

/// A delta of these operations.
fn delta(format: Format, operations: &[Step<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (operation, data) in operations {
        operation.encode(&mut bytes);
        bytes.extend_from_slice(data);
    }
    packed(format, &bytes)
}

/// A delta of these encoded operations.
fn packed(format: Format, operations: &[u8]) -> Vec<u8> {
    [&format.header()[..], &zstd::encode_all(operations, 1).unwrap()].concat()
}

fn apply(format: Format, delta: &[u8], sources: Images) -> Result<Vec<u8>, String> {
    let tar = PatchedTar::open(Cursor::new(delta), format, Box::new(sources), &Cancel::default());
    let mut bytes = Vec::new();
    match tar
        .map_err(io::Error::from)
        .and_then(|mut tar| tar.read_to_end(&mut bytes))
    {
        Ok(_) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

fn zlib(bytes: &[u8], level: u8) -> Vec<u8> {
    let mut deflater = crate::delta::Deflater::new(Codec::from_byte(level).unwrap());
    let mut out = Vec::new();
    deflater.write(bytes, &mut out);
    deflater.finish(&mut out);
    out
}

#[test]
fn every_operation_makes_its_part_of_the_tar() {
    let text = b"a text that is compressed, a text that is compressed".repeat(9);
    let section = [b"head".to_vec(), zlib(&text, 6), b"tail".to_vec()].concat();
    let images = Images::new(&[
        &[("etc/a", b"0123456789"), ("b", b"abc"), ("lib/section", &section)],
        &[("b", b"other")],
    ]);
    let open = |name| (Operation::Open(SourceName::file(name)), &b""[..]);
    let copy = |length| (Operation::Copy { length }, &b""[..]);
    let seek = |position| (Operation::Seek { position }, &b""[..]);
    let range = InflatedRange {
        offset: 4,
        length: section.len() as u64 - 8,
        inflated_length: text.len() as u64,
    };
    let inflated = (
        Operation::Open(SourceName::file("lib/section").inflated(range)),
        &b""[..],
    );
    let deflate = |level, length| {
        let codec = Codec::from_byte(level).unwrap();
        (Operation::Deflate { codec, length }, &b""[..])
    };
    let changed = [&text[..100], b"new", &text[103..]].concat();
    let compressed = [&b"("[..], &zlib(&changed, 9), b")"].concat();
    let length = text.len() as u64;
    let cases: [(&str, &[Step<'_>], &[u8]); 9] = [
        ("nothing", &[], b""),
        (
            "data",
            &[
                (Operation::Data { length: 3 }, b"xyz"),
                (Operation::Data { length: 0 }, b""),
            ],
            b"xyz",
        ),
        ("copy", &[open("etc/a"), copy(2), copy(3)], b"01234"),
        (
            "seek",
            &[open("etc/a"), seek(8), copy(2), seek(1), copy(1)],
            b"891",
        ),
        (
            "open again",
            &[open("b"), copy(2), open("etc/a"), copy(1), open("b"), copy(1)],
            b"ab0a",
        ),
        (
            "add",
            &[open("b"), seek(1), (Operation::AddData { length: 2 }, &[1, 0xff])],
            b"cb",
        ),
        (
            "another image",
            &[(Operation::Open(SourceName::file_in(1, "b")), b""), copy(5)],
            b"other",
        ),
        ("inflated", &[inflated.clone(), seek(2), copy(4)], b"text"),
        (
            "deflated",
            &[
                (Operation::Data { length: 1 }, b"("),
                inflated,
                deflate(9, length),
                copy(100),
                (Operation::Data { length: 3 }, b"new"),
                seek(103),
                copy(length - 103),
                (Operation::Data { length: 1 }, b")"),
            ],
            &compressed,
        ),
    ];
    for (name, operations, expected) in cases {
        let standard = operations.iter().all(|(operation, _)| operation.is_standard());
        for format in [Format::TarDiff, Format::InflatedTarDiff] {
            let made = apply(format, &delta(format, operations), images.clone());
            if standard || format == Format::InflatedTarDiff {
                assert_eq!(made.as_deref(), Ok(expected), "{name}");
            } else {
                assert!(made.unwrap_err().contains("unknown operation"), "{name}");
            }
        }
    }
}

#[test]
fn paths_are_cleaned() {
    let images = Images::new(&[&[("etc/a", b"content")]]);
    for path in ["etc/a", "/etc/a", "./etc//a", "etc/./a/"] {
        let open = (Operation::Open(SourceName::file(path)), &b""[..]);
        let delta = delta(Format::TarDiff, &[open, (Operation::Copy { length: 7 }, b"")]);
        assert_eq!(
            apply(Format::TarDiff, &delta, images.clone()).unwrap(),
            b"content",
            "{path}"
        );
    }
}

#[test]
fn the_tar_can_be_read_again_from_its_start_only() {
    let content: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    let images = Images::new(&[&[("a", &content)]]);
    let codec = Codec::from_byte(1).unwrap();
    let mut writer = DeltaWriter::new(b"before".to_vec(), Format::InflatedTarDiff, 1).unwrap();
    let (name, length) = (SourceName::file("a"), content.len() as u64);
    writer.copy_from(&name, 0, length).unwrap();
    writer.deflate(codec, length).unwrap();
    writer.copy_from(&name, 0, length).unwrap();
    let mut file = Cursor::new(writer.finish().unwrap());
    file.set_position(6);
    let format = Format::InflatedTarDiff;
    let mut tar = PatchedTar::open(file, format, Box::new(images), &Cancel::default()).unwrap();
    let expected = [content.clone(), zlib(&content, 1)].concat();
    for stop in [10, content.len() + 70_000, expected.len()] {
        assert_eq!(tar.stream_position().unwrap(), 0);
        let mut bytes = vec![0; stop];
        tar.read_exact(&mut bytes).unwrap();
        assert!(bytes == expected[..stop]);
        assert_eq!(tar.stream_position().unwrap(), stop as u64);
        for other in [SeekFrom::Start(1), SeekFrom::End(0), SeekFrom::Current(1)] {
            assert_eq!(tar.seek(other).unwrap_err().kind(), io::ErrorKind::Unsupported);
        }
        assert_eq!(tar.seek(SeekFrom::Start(0)).unwrap(), 0);
    }
}

#[test]
fn a_stopped_run_ends_it() {
    let cancel = Cancel::default();
    let delta = Cursor::new(delta(Format::TarDiff, &[(Operation::Data { length: 1 }, b"a")]));
    let images = Box::new(Images::default());
    let mut tar = PatchedTar::open(delta, Format::TarDiff, images, &cancel).unwrap();
    cancel.stop(StopReason::Deadline);
    let error = tar.read(&mut [0; 10]).unwrap_err();
    assert!(matches!(
        PatchError::of(&error),
        Some(PatchError::Stopped(Stopped(StopReason::Deadline)))
    ));
}
