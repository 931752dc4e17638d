//! The exact zlib compressors: a debug section that was inflated for a delta gets its original bytes back.
//!
//! A delta of compressed bytes saves nothing, so a delta names the inflated sections of files and the [`Codec`] that made the
//! stream. Two compressors of the same level produce different streams; a codec therefore means one program's output, byte
//! for byte:
//!
//! | byte | codec | who writes such sections |
//! |---|---|---|
//! | 1–9 | stock zlib at this level, `windowBits` 15, `memLevel` 8 | GNU ld, gold and objcopy (6, 1 or 9) |
//! | 16 | `compress/zlib` of Go 1.11 to 1.26 at level 1 | Go's linker |
//! | 17 | `compress/zlib` of Go 1.27 at level 1 | Go's linker |
//!
//! zlib-rs, zlib-ng and zlib in hardware write other bytes. [`find_codec`] proves which codec a stream is from.

mod find;
mod go;
mod zlib;

use std::fmt;

pub use find::find_codec;
use go::GoDeflater;
use zlib::ZlibDeflater;

/// A compressor whose output is known byte for byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Stock zlib at a level.
    Zlib(ZlibLevel),
    /// `compress/zlib` of a version of Go at level 1.
    Go(GoVersion),
}

/// Versions of Go whose `compress/zlib` writes the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GoVersion {
    /// Go 1.11, whose linker was the first to compress debug sections, to Go 1.26.
    Until126,
    /// Go 1.27, which has a new compressor.
    From127,
}

/// A compression level of zlib: 1 to 9. Level 0 only stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ZlibLevel(u8);

impl ZlibLevel {
    /// The level, if it is one that compresses.
    pub fn new(level: u8) -> Option<Self> {
        (1..=9).contains(&level).then_some(Self(level))
    }
}

impl Codec {
    /// The codec that a delta names by this byte.
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            16 => Some(Self::Go(GoVersion::Until126)),
            17 => Some(Self::Go(GoVersion::From127)),
            _ => ZlibLevel::new(byte).map(Self::Zlib),
        }
    }

    /// How a delta names this codec.
    pub fn to_byte(self) -> u8 {
        match self {
            Self::Zlib(ZlibLevel(level)) => level,
            Self::Go(GoVersion::Until126) => 16,
            Self::Go(GoVersion::From127) => 17,
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zlib(ZlibLevel(level)) => write!(formatter, "zlib level {level}"),
            Self::Go(GoVersion::Until126) => formatter.write_str("Go until 1.26, level 1"),
            Self::Go(GoVersion::From127) => formatter.write_str("Go from 1.27, level 1"),
        }
    }
}

/// Compresses one zlib stream: header, deflate, Adler-32. How the input is divided into writes does not change the output.
pub struct Deflater(Compressor);

enum Compressor {
    Zlib(ZlibDeflater),
    Go(GoDeflater),
}

impl Deflater {
    /// Starts a stream.
    pub fn new(codec: Codec) -> Self {
        Self(match codec {
            Codec::Zlib(ZlibLevel(level)) => Compressor::Zlib(ZlibDeflater::new(level)),
            Codec::Go(version) => Compressor::Go(GoDeflater::new(version)),
        })
    }

    /// Compresses `input` and appends to `out` what is ready. At most 64 KiB of input and its output are held back.
    pub fn write(&mut self, input: &[u8], out: &mut Vec<u8>) {
        match &mut self.0 {
            Compressor::Zlib(deflater) => deflater.write(input, out),
            Compressor::Go(deflater) => deflater.write(input, out),
        }
    }

    /// Appends the rest of the stream.
    pub fn finish(self, out: &mut Vec<u8>) {
        match self.0 {
            Compressor::Zlib(deflater) => deflater.finish(out),
            Compressor::Go(deflater) => deflater.finish(out),
        }
    }
}

impl fmt::Debug for Deflater {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Deflater").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
