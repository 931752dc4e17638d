//! Deltas that cost more than any real one.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// Errors of a delta that applies to files `0` to `99`, each with ten bytes.
fn error_of(delta: &[u8]) -> String {
    let names: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (&name[..], &b"0123456789"[..])).collect();
    apply(Format::InflatedTarDiff, delta, Images::new(&[&files])).unwrap_err()
}

#[test]
fn a_window_needs_at_most_8_mib() {
    let with_window = |log| {
        let mut encoder = zstd::Encoder::new(Format::TarDiff.header().to_vec(), 1).unwrap();
        encoder.window_log(log).unwrap();
        encoder.write_all(b"\x00\x03abc").unwrap();
        encoder.finish().unwrap()
    };
    let apply = |delta: &[u8]| apply(Format::TarDiff, delta, Images::default());
    assert_eq!(apply(&with_window(23)).unwrap(), b"abc");
    let error = apply(&with_window(24)).unwrap_err();
    assert!(error.contains("requires too much memory"), "{error}");
}

#[test]
fn operations_without_output_end() {
    let path = ["./".repeat(2047), "1".to_owned()].concat();
    let mut open = Vec::new();
    Operation::Open(SourceName::file(path)).encode(&mut open);
    let delta = packed(Format::InflatedTarDiff, &open.repeat(5000));
    assert!(delta.len() < 10_000);
    let error = error_of(&delta);
    assert!(
        error.contains("the limit of 16777216 bytes of operations without output"),
        "{error}"
    );
}

#[test]
fn opening_files_ends() {
    let mut opens = Vec::new();
    for name in 0..40 {
        Operation::Open(SourceName::file(name.to_string())).encode(&mut opens);
    }
    let error = error_of(&packed(Format::InflatedTarDiff, &opens.repeat(2000)));
    assert!(error.contains("the limit of 65536 opened files"), "{error}");
}

#[test]
fn inflating_and_deflating_more_than_a_gibibyte_is_refused() {
    let inflated = |length, inflated_length| {
        let range = InflatedRange {
            offset: 0,
            length,
            inflated_length,
        };
        let open = Operation::Open(SourceName::file("1").inflated(range));
        error_of(&delta(Format::InflatedTarDiff, &[(open, b"")]))
    };
    assert!(inflated(1 << 40, (256 << 20) + 1).contains("268435456 bytes of one inflated range"));
    assert!(inflated(10, 10_321).contains("10320 bytes of one inflated range"));
    let codec = Codec::from_byte(6).unwrap();
    let length = (256 << 20) + 1;
    let error = error_of(&delta(
        Format::InflatedTarDiff,
        &[(Operation::Deflate { codec, length }, b"")],
    ));
    assert!(error.contains("268435456 bytes of one zlib stream"), "{error}");
}

/// Zeros without end, read and counted.
struct Zeros(Arc<AtomicU64>);

impl Sources for Zeros {
    fn open(&self, _: usize, _: &[u8]) -> Result<Box<dyn SourceFile>, SourceError> {
        Ok(Box::new(Self(Arc::clone(&self.0))))
    }

    fn scratch_file(&self, _: u64) -> io::Result<ScratchFile> {
        Ok(tempfile::tempfile()?.into())
    }
}

impl SourceFile for Zeros {
    fn read_at(&self, buffer: &mut [u8], _: u64) -> io::Result<usize> {
        self.0.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        buffer.fill(0);
        Ok(buffer.len())
    }
}

/// The consumer decides how much of it is read.
#[test]
fn an_operation_of_any_length_is_streamed() {
    let (length, read) = (1 << 62, Arc::default());
    let steps = [
        (Operation::Open(SourceName::file("a")), &b""[..]),
        (Operation::Copy { length }, b""),
    ];
    let delta = Cursor::new(delta(Format::TarDiff, &steps));
    let sources = Box::new(Zeros(Arc::clone(&read)));
    let mut tar = PatchedTar::open(delta, Format::TarDiff, sources, &Cancel::default()).unwrap();
    let mut bytes = vec![1; 3 << 20];
    tar.read_exact(&mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert!(read.load(Ordering::Relaxed) < (3 << 20) + (1 << 18));
}

/// A delta of empty zstd frames that never ends.
struct EmptyFrames {
    header: Cursor<&'static [u8; 8]>,
    frame: Vec<u8>,
    reads: u32,
    cancel: Cancel,
}

impl Read for EmptyFrames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.header.read(buffer)?;
        if read > 0 {
            return Ok(read);
        }
        self.reads += 1;
        if self.reads == 1000 {
            self.cancel.stop(StopReason::Deadline);
        }
        buffer[..self.frame.len()].copy_from_slice(&self.frame);
        Ok(self.frame.len())
    }
}

impl Seek for EmptyFrames {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Ok(0)
    }
}

#[test]
fn endless_frames_without_content_end_with_the_run() {
    let cancel = Cancel::default();
    let delta = EmptyFrames {
        header: Cursor::new(Format::TarDiff.header()),
        frame: zstd::encode_all(&b""[..], 1).unwrap(),
        reads: 0,
        cancel: cancel.clone(),
    };
    let mut tar = PatchedTar::open(delta, Format::TarDiff, Box::new(Images::default()), &cancel).unwrap();
    let error = tar.read(&mut [0]).unwrap_err();
    assert!(
        matches!(PatchError::of(&error), Some(PatchError::Stopped(_))),
        "{error}"
    );
}
