//! Writes blocks as Go 1.11 to 1.26 do at level 1: each with codes of its own, or stored.

mod matcher;

use super::bit_writer::{BitWriter, stored_bits};
use super::dynamic_header::{DynamicHeader, ONE_OFFSET};
use super::huffman::{Code, LITERALS, MAX_BITS, OFFSETS, assign_codes, coded_bits};
use super::tokens::{END_OF_BLOCK, Tokens};
use matcher::Matcher;

/// Matches are searched only in a last block of at least this length.
const MIN_MATCHED: usize = 128;

/// Longest last block that is stored without an attempt to compress it.
const MAX_STORED: usize = 16;

pub(super) struct Until126 {
    bits: BitWriter,
    matcher: Matcher,
    tokens: Tokens,
}

impl Until126 {
    pub(super) fn new() -> Self {
        Self {
            bits: BitWriter::default(),
            matcher: Matcher::new(),
            tokens: Tokens::new(),
        }
    }

    /// Writes a block that is not the last one.
    pub(super) fn write(&mut self, block: &[u8], out: &mut Vec<u8>) {
        self.tokens.clear();
        self.matcher.find(block, &mut self.tokens);
        if self.tokens.len() > block.len() - (block.len() >> 4) {
            write_literals(block, &mut self.bits, out);
        } else {
            write_tokens(&mut self.tokens, block, &mut self.bits, out);
        }
    }

    /// Writes the last block, and the end of the stream: an empty stored block.
    pub(super) fn finish(&mut self, block: &[u8], out: &mut Vec<u8>) {
        if block.len() >= MIN_MATCHED {
            self.write(block, out);
        } else if block.len() > MAX_STORED {
            write_literals(block, &mut self.bits, out);
        } else if !block.is_empty() {
            self.bits.put_stored(block, false, out);
        }
        self.bits.put_stored(&[], true, out);
    }
}

/// Writes the block as these tokens, or stores it if that is hardly longer.
fn write_tokens(tokens: &mut Tokens, block: &[u8], bits: &mut BitWriter, out: &mut Vec<u8>) {
    tokens.count_symbols();
    tokens.literals[END_OF_BLOCK] = 1;
    if tokens.offsets.iter().all(|&frequency| frequency == 0) {
        // Go codes a distance even if there is none.
        tokens.offsets[0] = 1;
    }
    let mut literals = [Code::default(); LITERALS];
    let mut offsets = [Code::default(); OFFSETS];
    assign_codes(&tokens.literals, MAX_BITS, &mut literals);
    assign_codes(&tokens.offsets, MAX_BITS, &mut offsets);
    let header = DynamicHeader::new(&literals, &offsets);
    // Without the bits that follow lengths and distances, which Go does not count here.
    let size =
        header.bits() + coded_bits(&tokens.literals, &literals) + coded_bits(&tokens.offsets, &offsets);
    if stored_bits(block) < size + (size >> 4) {
        return bits.put_stored(block, false, out);
    }
    header.write(bits, out);
    bits.burst(size + tokens.extra_bits(), out, |burst| {
        tokens.write(&literals, &offsets, burst);
        burst.put_code(literals[END_OF_BLOCK]);
    });
}

/// Writes the block as literals, or stores it if that is hardly longer.
fn write_literals(block: &[u8], bits: &mut BitWriter, out: &mut Vec<u8>) {
    let mut frequencies = [0; END_OF_BLOCK + 1];
    for &byte in block {
        frequencies[usize::from(byte)] += 1;
    }
    frequencies[END_OF_BLOCK] = 1;
    let mut codes = [Code::default(); END_OF_BLOCK + 1];
    assign_codes(&frequencies, MAX_BITS, &mut codes);
    let header = DynamicHeader::new(&codes, &[ONE_OFFSET]);
    // One bit for a distance, although there is none.
    let size = header.bits() + coded_bits(&frequencies, &codes) + 1;
    if stored_bits(block) < size + (size >> 4) {
        return bits.put_stored(block, false, out);
    }
    header.write(bits, out);
    bits.burst(size, out, |burst| {
        for &byte in block {
            burst.put_code(codes[usize::from(byte)]);
        }
        burst.put_code(codes[END_OF_BLOCK]);
    });
}
