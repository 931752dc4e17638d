//! Detects the blob's compression from its first bytes, as containers/storage does, and decompresses it.

use std::io::{self, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use super::error::Fault;
use crate::store::Compression;

/// Compressed bytes that are read at once.
const INPUT_BUFFER: usize = 256 << 10;

/// Base-2 logarithm of the largest zstd window, 128 MiB: the limit of the `zstd` program without `--long`, for
/// reading and writing. podman runs that program if it is installed; its own decoder accepts 512 MiB, which is too
/// much memory for several layers at once. Tools that build images stay at 8 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// The first bytes of the formats that containers/storage detects (`pkg/archive`: `DetectCompression`).
const MAGICS: [(&[u8], Format); 4] = [
    (b"\x1f\x8b\x08", Format::Gzip),
    (b"\x28\xb5\x2f\xfd", Format::Zstd),
    (b"BZh", Format::Unsupported("bzip2")),
    (b"\xfd7zXZ\0", Format::Unsupported("xz")),
];

#[derive(Clone, Copy)]
enum Format {
    Gzip,
    Zstd,
    Unsupported(&'static str),
}

/// The uncompressed bytes of a blob. Gzip with several members and zstd with several frames are read to the end.
pub(super) enum Decompressor<R: Read> {
    Uncompressed(io::Chain<io::Cursor<Vec<u8>>, R>),
    Gzip(Box<MultiGzDecoder<Source<R>>>),
    Zstd(zstd::Decoder<'static, Source<R>>),
}

type Source<R> = BufReader<io::Chain<io::Cursor<Vec<u8>>, R>>;

/// Why a blob cannot be decompressed.
pub(super) enum OpenError {
    Content(Fault),
    Host(io::Error),
}

impl<R: Read> Decompressor<R> {
    /// Detects the format from the first bytes of `blob`, if it may be compressed.
    pub(super) fn open(mut blob: R, is_compressible: bool) -> Result<Self, OpenError> {
        let longest = MAGICS
            .iter()
            .map(|(magic, _)| magic.len())
            .max()
            .unwrap_or_default();
        let mut start = Vec::with_capacity(longest);
        let read = Read::by_ref(&mut blob)
            .take(longest as u64)
            .read_to_end(&mut start);
        read.map_err(OpenError::Host)?;
        let mut formats = MAGICS.iter().filter(|_| is_compressible);
        let format = formats.find(|(magic, _)| start.starts_with(magic));
        let source = io::Cursor::new(start).chain(blob);
        let buffered = |source| BufReader::with_capacity(INPUT_BUFFER, source);
        match format {
            None => Ok(Self::Uncompressed(source)),
            Some((_, Format::Gzip)) => Ok(Self::Gzip(Box::new(MultiGzDecoder::new(buffered(source))))),
            Some((_, Format::Zstd)) => {
                let mut decoder = zstd::Decoder::with_buffer(buffered(source)).map_err(OpenError::Host)?;
                decoder
                    .window_log_max(ZSTD_WINDOW_LOG_MAX)
                    .map_err(OpenError::Host)?;
                Ok(Self::Zstd(decoder))
            }
            Some((_, Format::Unsupported(name))) => Err(OpenError::Content(Fault::Unsupported(name))),
        }
    }

    /// The detected compression.
    pub(super) fn compression(&self) -> Compression {
        match self {
            Self::Uncompressed(_) => Compression::Uncompressed,
            Self::Gzip(_) => Compression::Gzip,
            Self::Zstd(_) => Compression::Zstd,
        }
    }

    /// Reads uncompressed bytes; 0 at the end of the blob. Errors of the blob's own reader have an error number of
    /// the system, those of a broken stream do not.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match self {
                Self::Uncompressed(reader) => reader.read(buffer),
                Self::Gzip(reader) => reader.read(buffer),
                Self::Zstd(reader) => reader.read(buffer),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use super::*;

    fn read_all(blob: &[u8]) -> io::Result<(Compression, Vec<u8>)> {
        let mut reader = match Decompressor::open(blob, true) {
            Ok(reader) => reader,
            Err(OpenError::Content(fault)) => return Err(io::Error::other(fault)),
            Err(OpenError::Host(error)) => return Err(error),
        };
        let (mut out, mut buffer) = (Vec::new(), [0; 100]);
        loop {
            match reader.read(&mut buffer)? {
                0 => return Ok((reader.compression(), out)),
                n => out.extend_from_slice(&buffer[..n]),
            }
        }
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn detects_formats_by_their_first_bytes() {
        let text = b"some text that is longer than any magic";
        let (compression, out) = read_all(text).unwrap();
        assert_eq!((compression, &out[..]), (Compression::Uncompressed, &text[..]));
        let (compression, out) = read_all(&[gzip(b"one "), gzip(b"two")].concat()).unwrap();
        assert_eq!((compression, &out[..]), (Compression::Gzip, &b"one two"[..]));
        let frames = [b"one ", b"two "].map(|text| zstd::encode_all(&text[..], 0).unwrap());
        let (compression, out) = read_all(&frames.concat()).unwrap();
        assert_eq!((compression, &out[..]), (Compression::Zstd, &b"one two "[..]));
        assert_eq!(read_all(b"").unwrap(), (Compression::Uncompressed, Vec::new()));
        assert_eq!(
            read_all(b"\x1f").unwrap(),
            (Compression::Uncompressed, vec![0x1f])
        );
    }

    #[test]
    fn refuses_what_it_names() {
        for (blob, name) in [(&b"BZh91AY"[..], "bzip2"), (b"\xfd7zXZ\0\0\0", "xz")] {
            let error = read_all(blob).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn a_cut_or_trailing_garbage_is_an_error() {
        for whole in [gzip(&[7; 5000]), zstd::encode_all(&[7; 5000][..], 0).unwrap()] {
            for end in 6..whole.len() {
                assert!(
                    read_all(&whole[..end]).is_err(),
                    "cut after {end} of {}",
                    whole.len()
                );
            }
            assert!(read_all(&[&whole[..], b"garbage"].concat()).is_err());
        }
    }
}
