//! Faults of deltas, of sources and of the host.

use super::*;

/// An encoded operation with data of the right length.
fn encoded(op: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![op];
    let size = data.len();
    if size >= 0x80 {
        bytes.push(size as u8 | 0x80);
    }
    bytes.push(if size >= 0x80 {
        (size >> 7) as u8
    } else {
        size as u8
    });
    bytes.extend_from_slice(data);
    bytes
}

#[test]
fn every_fault_of_a_delta_is_named() {
    let open = encoded(1, b"a");
    let after_open = |bytes: &[u8]| [&open[..], bytes].concat();
    let long_path = encoded(1, &[b'a'; 4097]);
    let numbers = [&[7, 10][..], &[0xff; 9], &[1]].concat();
    let deflate = b"\x06\x02\x06\x05";
    let cases: [(&str, Vec<u8>, &str); 24] = [
        ("an unknown operation", vec![8, 0], "unknown operation 8"),
        ("a copy of nothing", vec![2, 1], "opens no source"),
        ("an addition to nothing", vec![3, 1, 0], "opens no source"),
        ("a seek in nothing", vec![4, 0], "opens no source"),
        ("an empty path", encoded(1, b""), "path of a source is empty"),
        ("the root", encoded(1, b"/./"), "path of a source is empty"),
        ("a path out of the image", encoded(1, b"../a"), "contains `..`"),
        (
            "a path out of a directory",
            encoded(1, b"a/../a"),
            "contains `..`",
        ),
        ("a NUL", encoded(1, b"a\0b"), "contains a NUL"),
        ("a long path", long_path, "is too long"),
        (
            "64 bits",
            [&[4][..], &[0xff; 9], &[1]].concat(),
            "exceeds 63 bits",
        ),
        ("64 bits of an image", numbers, "exceeds 63 bits"),
        (
            "a long addition",
            after_open(b"\x03\x81\x80\x80\x32"),
            "104857600 bytes of one AddData",
        ),
        ("a cut number", vec![0], "cut off"),
        ("cut data", b"\x00\x05abc".to_vec(), "cut off"),
        (
            "endless data",
            [&[0][..], &[0xff; 8], &[0x7f]].concat(),
            "cut off",
        ),
        ("a cut path", b"\x01\x05ab".to_vec(), "cut off"),
        ("no codec", b"\x06\x02\x00\x01".to_vec(), "unknown codec 0"),
        (
            "too much for Deflate",
            b"\x06\x03\x06\x01\x00".to_vec(),
            "operation 6 has too much",
        ),
        (
            "too little for OpenInflated",
            b"\x05\x02\x00\x00\x00\x00a".to_vec(),
            "operation 5 has too much",
        ),
        (
            "too much for OpenIn",
            [&[7, 0xff, 0x7f][..], &[0; 9000]].concat(),
            "operation 7 has too much",
        ),
        (
            "streams in streams",
            [&deflate[..], deflate].concat(),
            "does not end with an operation",
        ),
        (
            "a crossed end of a stream",
            [deflate, &b"\x00\x06abcdef"[..]].concat(),
            "does not end with an operation",
        ),
        (
            "half a stream",
            [deflate, &b"\x00\x04abcd"[..]].concat(),
            "does not end with an operation",
        ),
    ];
    for (name, operations, expected) in cases {
        let delta = packed(Format::InflatedTarDiff, &operations);
        let images = Images::new(&[&[("a", b"0123456789")]]);
        let error = apply(Format::InflatedTarDiff, &delta, images).unwrap_err();
        assert!(
            error.starts_with("malformed delta: ") && error.contains(expected),
            "{name}: {error}"
        );
    }
}

#[test]
fn a_delta_of_another_format_is_refused() {
    let tar_diff = delta(Format::TarDiff, &[(Operation::Data { length: 1 }, b"a")]);
    for delta in [&tar_diff[..], &tar_diff[..5], b"", b"tardf2\n\0", &[0; 600]] {
        let error = apply(Format::InflatedTarDiff, delta, Images::default()).unwrap_err();
        assert!(error.contains(r"it does not start with `itrdf1"), "{error}");
    }
}

#[test]
fn a_cut_or_trailing_garbage_is_a_fault() {
    let whole = delta(Format::TarDiff, &[(Operation::Data { length: 5000 }, &[7; 5000])]);
    let apply = |delta: &[u8]| apply(Format::TarDiff, delta, Images::default());
    assert!(apply(&whole).is_ok());
    for end in 0..whole.len() {
        assert!(
            apply(&whole[..end]).is_err(),
            "cut after {end} of {}",
            whole.len()
        );
    }
    assert!(apply(&[&whole[..], b"garbage"].concat()).is_err());
    assert!(apply(&[&whole[..], b"\x00"].concat()).is_err());
}

#[test]
fn every_fault_of_a_source_is_named() {
    let stream = zlib(b"content of a section", 6);
    let file = [b"01234", &stream[..], b"56789"].concat();
    let length = stream.len() as u64;
    let range = |offset, length, inflated_length| InflatedRange {
        offset,
        length,
        inflated_length,
    };
    let name = |range| SourceName::file("dir/a").inflated(range);
    let changed = "does not have the compressed content";
    let shorter = format!("it ends before byte {}", file.len() + 1);
    let cases = [
        (
            "no such file",
            SourceName::file("b"),
            1,
            "the old image has no such regular file",
        ),
        (
            "no such image",
            SourceName::file_in(1, "dir/a"),
            1,
            "the old image has no such regular file",
        ),
        (
            "any number",
            SourceName::file_in(1 << 62, "dir/a"),
            1,
            "the old image has no such regular file",
        ),
        ("a short file", SourceName::file("dir/a"), 100, &shorter),
        ("a short stream", name(range(5, length - 1, 20)), 1, changed),
        ("a long range", name(range(5, length + 1, 20)), 1, changed),
        ("a short content", name(range(5, length, 21)), 1, changed),
        ("a long content", name(range(5, length, 19)), 1, changed),
        ("no stream", name(range(0, length, 20)), 1, changed),
        (
            "a range after the end",
            name(range(1 << 40, length, 20)),
            1,
            "it ends before byte",
        ),
        ("a range across the end", name(range(5, 400, 20)), 1, changed),
        (
            "a short inflated source",
            name(range(5, length, 20)),
            21,
            "it ends before byte 21",
        ),
    ];
    for (case, name, copied, expected) in cases {
        let image = name.image;
        let steps = [
            (Operation::Open(name), &b""[..]),
            (Operation::Copy { length: copied }, b""),
        ];
        let delta = delta(Format::InflatedTarDiff, &steps);
        let images = Images::new(&[&[("dir/a", &file)]]);
        let error = apply(Format::InflatedTarDiff, &delta, images).unwrap_err();
        let start = format!(
            "cannot use `{}` of the old image number {image}: ",
            if case == "no such file" { "b" } else { "dir/a" }
        );
        assert!(
            error.starts_with(&start) && error.contains(expected),
            "{case}: {error}"
        );
    }
}

/// Cannot be read.
struct Broken;

const EIO: i32 = 5;

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(EIO))
    }
}

impl Sources for Broken {
    fn open(&self, _: usize, path: &[u8]) -> Result<Box<dyn SourceFile>, SourceError> {
        match path {
            b"opens" => Ok(Box::new(Self)),
            _ => Err(SourceError::Host {
                path: String::new(),
                error: io::Error::from_raw_os_error(EIO),
            }),
        }
    }

    fn scratch_file(&self, _: u64) -> io::Result<ScratchFile> {
        Err(io::Error::from_raw_os_error(EIO))
    }
}

impl SourceFile for Broken {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(EIO))
    }
}

/// Only a fault of what a whole blob needs too is the host's.
#[test]
fn the_host_is_blamed_for_the_delta_but_not_for_a_source() {
    let whole = delta(Format::TarDiff, &[(Operation::Data { length: 1 }, b"a")]);
    let file = whole[..12].chain(Broken);
    let file = NoSeek(file);
    let images = Box::new(Images::default());
    let mut tar = PatchedTar::open(file, Format::TarDiff, images, &Cancel::default()).unwrap();
    let error = tar.read(&mut [0]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(EIO));
    assert!(PatchError::of(&error).is_none());

    let range = InflatedRange {
        offset: 0,
        length: 9,
        inflated_length: 9,
    };
    let opens = SourceName::file("opens");
    for source in [SourceName::file("closed"), opens.clone(), opens.inflated(range)] {
        let steps = [
            (Operation::Open(source), &b""[..]),
            (Operation::Copy { length: 1 }, b""),
        ];
        let delta = Cursor::new(delta(Format::InflatedTarDiff, &steps));
        let format = Format::InflatedTarDiff;
        let mut tar = PatchedTar::open(delta, format, Box::new(Broken), &Cancel::default()).unwrap();
        let error = tar.read(&mut [0]).unwrap_err();
        assert_eq!(error.raw_os_error(), None);
        assert!(
            matches!(PatchError::of(&error), Some(PatchError::Source { .. })),
            "{error}"
        );
    }
}

/// A file at its start.
struct NoSeek<R>(R);

impl<R: Read> Read for NoSeek<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl<R> Seek for NoSeek<R> {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Ok(0)
    }
}
