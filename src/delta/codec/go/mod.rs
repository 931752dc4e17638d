//! Compresses as Go's `compress/zlib` does at level 1, with which Go's linker compresses debug sections.
//!
//! ```text
//! input ─ blocks of 65535 bytes ─→ matcher ─→ tokens ─→ block: Huffman codes, header, bits
//! ```
//!
//! The linker writes one symbol after the other, but blocks start every 65535 bytes, however the input is divided, so the
//! stream depends only on its content. The algorithm is the same from Go 1.11, whose linker was the first to compress, to
//! Go 1.26.

mod bit_writer;
mod block;
mod dynamic_header;
mod huffman;
mod matcher;
mod tokens;
mod window;

use bit_writer::BitWriter;
use matcher::Matcher;
use tokens::Tokens;

/// Go compresses so many bytes at once, because a stored block cannot have more.
const BLOCK_LENGTH: usize = 65_535;

/// RFC 1950: deflate with a window of 32 KiB, fastest level.
const HEADER: [u8; 2] = [0x78, 0x01];

/// Go looks for matches only in a last block of at least this length.
const MIN_MATCHED: usize = 128;

/// Longest last block that Go stores without trying to compress it.
const MAX_STORED: usize = 16;

/// A stream that is being compressed.
pub(super) struct GoDeflater {
    /// What was not written yet of the header.
    header: &'static [u8],
    /// Input until a block is complete and more input shows that it is not the last one.
    block: Vec<u8>,
    checksum: u32,
    bits: BitWriter,
    matcher: Matcher,
    tokens: Tokens,
}

impl GoDeflater {
    pub(super) fn new() -> Self {
        Self {
            header: &HEADER,
            block: Vec::with_capacity(BLOCK_LENGTH),
            checksum: 1,
            bits: BitWriter::default(),
            matcher: Matcher::new(),
            tokens: Tokens::new(),
        }
    }

    pub(super) fn write(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        self.checksum = super::zlib::adler32(self.checksum, input);
        while !input.is_empty() {
            if self.block.len() == BLOCK_LENGTH {
                self.write_header(out);
                self.write_matched(out);
                self.block.clear();
            }
            let (now, later) = input.split_at(input.len().min(BLOCK_LENGTH - self.block.len()));
            self.block.extend_from_slice(now);
            input = later;
        }
    }

    pub(super) fn finish(mut self, out: &mut Vec<u8>) {
        self.write_header(out);
        let length = self.block.len();
        if length >= MIN_MATCHED {
            self.write_matched(out);
        } else if length > MAX_STORED {
            block::write_literals(&self.block, &mut self.bits, out);
        } else if length > 0 {
            block::write_stored(&self.block, false, &mut self.bits, out);
        }
        block::write_stored(&[], true, &mut self.bits, out);
        out.extend_from_slice(&self.checksum.to_be_bytes());
    }

    fn write_header(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(std::mem::take(&mut self.header));
    }

    /// Compresses a block with matches, unless there are hardly any.
    fn write_matched(&mut self, out: &mut Vec<u8>) {
        self.tokens.clear();
        self.matcher.find(&self.block, &mut self.tokens);
        if self.tokens.len() > self.block.len() - (self.block.len() >> 4) {
            block::write_literals(&self.block, &mut self.bits, out);
        } else {
            block::write_tokens(&mut self.tokens, &self.block, &mut self.bits, out);
        }
    }
}

#[cfg(test)]
mod tests;
