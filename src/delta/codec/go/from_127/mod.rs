//! Writes blocks as Go 1.27 does at level 1: with the codes of the block before, with codes of their own, with the fixed
//! ones, or stored.

mod estimate;
mod matcher;

use super::bit_writer::{BitWriter, stored_bits};
use super::dynamic_header::{DynamicHeader, ONE_OFFSET};
use super::huffman::{Code, LITERALS, MAX_BITS, OFFSETS, assign_codes, coded_bits, fixed_codes};
use super::tokens::{END_OF_BLOCK, Tokens};
use estimate::estimated_bits;
use matcher::Matcher;

/// Matches are searched only in a last block of at least this length.
const MIN_MATCHED: usize = 128;

/// Longest last block that is stored without an attempt to compress it.
const MAX_STORED: usize = 32;

/// Blocks of fewer tokens may use the fixed codes.
const MAX_FIXED_TOKENS: usize = 250;

/// New codes are counted with 1/128 more.
const NEW_CODES_SHIFT: usize = 7;

/// Bits of a header of literals before it is known.
const GUESSED_HEADER_BITS: usize = 70 * 8;

/// Longer blocks are first examined for noise.
const MIN_EXAMINED: usize = 1024;

pub(super) struct From127 {
    bits: BitWriter,
    matcher: Matcher,
    tokens: Tokens,
    literals: [Code; LITERALS],
    offsets: [Code; OFFSETS],
    /// Bits of the header of the block that is still open. Its end is not written yet, because the next block may continue
    /// it.
    open_header: Option<usize>,
    /// Whether the open block has only literals.
    only_literals: bool,
    fixed: ([Code; LITERALS], [Code; OFFSETS]),
}

impl From127 {
    pub(super) fn new() -> Self {
        Self {
            bits: BitWriter::default(),
            matcher: Matcher::new(),
            tokens: Tokens::new(),
            literals: [Code::default(); LITERALS],
            offsets: [Code::default(); OFFSETS],
            open_header: None,
            only_literals: false,
            fixed: fixed_codes(),
        }
    }

    /// Writes a block; `last` says that it is the last one, and must be ended.
    pub(super) fn write(&mut self, block: &[u8], last: bool, out: &mut Vec<u8>) {
        self.tokens.clear();
        self.matcher.find(block, &mut self.tokens);
        if self.tokens.len() == 0 {
            self.write_stored(block, out);
        } else if self.tokens.len() > block.len() - (block.len() >> 4) {
            self.write_literals(block, last, out);
        } else {
            self.write_tokens(block, last, out);
        }
    }

    /// Writes the last block, and the end of the stream: an empty block with the fixed codes.
    pub(super) fn finish(&mut self, block: &[u8], out: &mut Vec<u8>) {
        if block.len() >= MIN_MATCHED {
            self.write(block, true, out);
        } else if block.len() > MAX_STORED {
            self.write_literals(block, true, out);
        } else if !block.is_empty() {
            self.write_stored(block, out);
        }
        self.bits.put(0b011, 3, out);
        self.bits.put_code(self.fixed.0[END_OF_BLOCK], out);
        self.bits.align(out);
    }

    /// Ends the open block, if there is one.
    fn end_block(&mut self, out: &mut Vec<u8>) {
        if self.open_header.take().is_some() {
            self.bits.put_code(self.literals[END_OF_BLOCK], out);
        }
    }

    fn write_stored(&mut self, block: &[u8], out: &mut Vec<u8>) {
        self.end_block(out);
        self.bits.put_stored(block, false, out);
    }

    fn write_tokens(&mut self, block: &[u8], last: bool, out: &mut Vec<u8>) {
        self.tokens.count_symbols();
        self.tokens.literals[END_OF_BLOCK] = 1;
        if self.open_header.is_some() && (self.only_literals || !self.fits_codes()) {
            self.end_block(out);
        }
        let mut offsets = self.tokens.offsets;
        if offsets.iter().all(|&frequency| frequency == 0) {
            // Go codes a distance even if there is none.
            offsets[0] = 1;
        }
        // Go adds the end of the last block to its tokens.
        let count = self.tokens.len() + usize::from(last);
        let extra = self.tokens.extra_bits();
        let bits_with = |literals: &[Code], codes: &[Code]| {
            coded_bits(&self.tokens.literals, literals) + coded_bits(&offsets, codes) + extra
        };
        let fixed_size = (count < MAX_FIXED_TOKENS).then(|| 3 + bits_with(&self.fixed.0, &self.fixed.1));
        let stored_size = stored_bits(block);

        if let Some(open_header) = self.open_header {
            let estimate = open_header + estimated_bits(&self.tokens, count);
            let end = usize::from(self.literals[END_OF_BLOCK].length);
            let new_size = estimate + end + (estimate >> NEW_CODES_SHIFT);
            let reuse_size = bits_with(&self.literals, &self.offsets);
            let size = new_size.min(reuse_size);
            if new_size < reuse_size {
                self.end_block(out);
            }
            // The fixed codes need the end of the open block too.
            if fixed_size.is_some_and(|fixed_size| fixed_size + 7 < size) && stored_size > size {
                return self.write_fixed(out);
            }
            if stored_size <= size {
                return self.write_stored(block, out);
            }
        }
        if self.open_header.is_none() {
            assign_codes(&self.tokens.literals, MAX_BITS, &mut self.literals);
            assign_codes(&offsets, MAX_BITS, &mut self.offsets);
            let header = DynamicHeader::new(&self.literals, &self.offsets);
            let size = header.bits()
                + coded_bits(&self.tokens.literals, &self.literals)
                + coded_bits(&offsets, &self.offsets)
                + extra;
            if let Some(fixed_size) = fixed_size.filter(|&fixed_size| fixed_size <= size) {
                return if stored_size <= fixed_size {
                    self.write_stored(block, out)
                } else {
                    self.write_fixed(out)
                };
            }
            if stored_size <= size {
                return self.write_stored(block, out);
            }
            header.write(&mut self.bits, out);
            self.open_header = Some(header.bits());
            self.only_literals = false;
        }
        let size =
            coded_bits(&self.tokens.literals, &self.literals) + coded_bits(&offsets, &self.offsets) + extra;
        self.bits.burst(size, out, |burst| {
            self.tokens.write(&self.literals, &self.offsets, burst)
        });
        if last {
            self.end_block(out);
        }
    }

    /// Whether the codes of the open block have all symbols of the tokens.
    fn fits_codes(&self) -> bool {
        let has_codes = |frequencies: &[u32], codes: &[Code]| {
            let mut symbols = frequencies.iter().zip(codes);
            symbols.all(|(&frequency, code)| frequency == 0 || code.length > 0)
        };
        has_codes(&self.tokens.literals, &self.literals) && has_codes(&self.tokens.offsets, &self.offsets)
    }

    /// Writes the tokens with the fixed codes.
    fn write_fixed(&mut self, out: &mut Vec<u8>) {
        self.end_block(out);
        let (literals, offsets) = &self.fixed;
        self.bits.put(0b010, 3, out);
        let size = coded_bits(&self.tokens.literals, literals)
            + coded_bits(&self.tokens.offsets, offsets)
            + self.tokens.extra_bits();
        self.bits.burst(size, out, |burst| {
            self.tokens.write(literals, offsets, burst);
            burst.put_code(literals[END_OF_BLOCK]);
        });
    }

    /// Writes the block as literals, or stores it if that is not longer.
    fn write_literals(&mut self, block: &[u8], last: bool, out: &mut Vec<u8>) {
        let mut frequencies = [0; END_OF_BLOCK + 1];
        for &byte in block {
            frequencies[usize::from(byte)] += 1;
        }
        if is_noise(block, &frequencies[..END_OF_BLOCK]) {
            return self.write_stored(block, out);
        }
        frequencies[END_OF_BLOCK] = 1;
        let mut codes = [Code::default(); LITERALS];
        assign_codes(&frequencies, MAX_BITS, &mut codes[..=END_OF_BLOCK]);
        let estimate = coded_bits(&frequencies, &codes) + self.open_header.unwrap_or(GUESSED_HEADER_BITS);
        let estimate = estimate + (estimate >> NEW_CODES_SHIFT);
        if stored_bits(block) <= estimate {
            return self.write_stored(block, out);
        }
        if self.open_header.is_some() {
            let mut bytes = frequencies[..END_OF_BLOCK].iter().zip(&self.literals);
            let fits = bytes.all(|(&frequency, code)| frequency == 0 || code.length > 0);
            if !fits || estimate < coded_bits(&frequencies[..END_OF_BLOCK], &self.literals) {
                self.end_block(out);
            }
        }
        if self.open_header.is_none() {
            self.literals = codes;
            let header = DynamicHeader::new(&self.literals, &[ONE_OFFSET]);
            header.write(&mut self.bits, out);
            self.open_header = Some(header.bits());
            self.only_literals = true;
        }
        let size = coded_bits(&frequencies, &self.literals);
        self.bits.burst(size, out, |burst| {
            for &byte in block {
                burst.put_code(self.literals[usize::from(byte)]);
            }
        });
        if last {
            self.end_block(out);
        }
    }
}

/// Whether all bytes occur about equally often.
fn is_noise(block: &[u8], frequencies: &[u32]) -> bool {
    let average = block.len() as f64 / 256.0;
    let squares = frequencies
        .iter()
        .map(|&frequency| (f64::from(frequency) - average).powi(2));
    // These numbers have few digits: no sum is rounded.
    block.len() > MIN_EXAMINED && squares.sum::<f64>() < (2 * block.len()) as f64
}
