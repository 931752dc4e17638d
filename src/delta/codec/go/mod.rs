//! Compresses as Go's `compress/zlib` does at level 1, with which Go's linker compresses debug sections.
//!
//! ```text
//! input ─ blocks of 65535 bytes ─→ matcher ─→ tokens ─→ block: Huffman codes, header, bits
//! ```
//!
//! The linker writes one symbol after the other, but blocks start every 65535 bytes, however the input is divided, so the
//! stream depends only on its content. The algorithm is the same from Go 1.11, whose linker was the first to compress, to
//! Go 1.26; Go 1.27 has another one.

mod bit_writer;
mod dynamic_header;
mod from_127;
mod huffman;
mod tokens;
mod until_126;
mod window;

use zlib_rs::adler32::adler32;

use super::GoVersion;
use from_127::From127;
use until_126::Until126;

/// Go compresses this many bytes at once, because a stored block cannot have more.
const BLOCK_LENGTH: usize = 65_535;

/// RFC 1950: deflate with a window of 32 KiB, fastest level.
const HEADER: [u8; 2] = [0x78, 0x01];

/// A stream that is being compressed.
pub(super) struct GoDeflater {
    /// The header, until it is written.
    header: &'static [u8],
    /// Input until a block is complete and more input shows that it is not the last one.
    block: Vec<u8>,
    checksum: u32,
    blocks: Blocks,
}

/// The writer of the blocks.
enum Blocks {
    Until126(Box<Until126>),
    From127(Box<From127>),
}

impl GoDeflater {
    pub(super) fn new(version: GoVersion) -> Self {
        Self {
            header: &HEADER,
            block: Vec::with_capacity(BLOCK_LENGTH),
            checksum: 1,
            blocks: match version {
                GoVersion::Until126 => Blocks::Until126(Box::new(Until126::new())),
                GoVersion::From127 => Blocks::From127(Box::new(From127::new())),
            },
        }
    }

    pub(super) fn write(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        self.checksum = adler32(self.checksum, input);
        while !input.is_empty() {
            if self.block.len() == BLOCK_LENGTH {
                self.write_header(out);
                match &mut self.blocks {
                    Blocks::Until126(blocks) => blocks.write(&self.block, out),
                    Blocks::From127(blocks) => blocks.write(&self.block, false, out),
                }
                self.block.clear();
            }
            let (now, later) = input.split_at(input.len().min(BLOCK_LENGTH - self.block.len()));
            self.block.extend_from_slice(now);
            input = later;
        }
    }

    pub(super) fn finish(mut self, out: &mut Vec<u8>) {
        self.write_header(out);
        match &mut self.blocks {
            Blocks::Until126(blocks) => blocks.finish(&self.block, out),
            Blocks::From127(blocks) => blocks.finish(&self.block, out),
        }
        out.extend_from_slice(&self.checksum.to_be_bytes());
    }

    fn write_header(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(std::mem::take(&mut self.header));
    }
}

#[cfg(test)]
mod tests;
