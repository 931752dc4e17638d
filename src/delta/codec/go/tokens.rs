//! The literals and matches of a block, and how often each of their symbols occurs.

use super::bit_writer::Burst;
use super::huffman::{Code, LITERALS, OFFSETS};

/// The symbol that ends a block.
pub(super) const END_OF_BLOCK: usize = 256;

/// The first symbol of lengths.
pub(super) const LENGTHS: usize = 257;

/// Shortest length of a match in deflate.
const MIN_LENGTH: usize = 3;

/// Longest length of a match in deflate.
pub(super) const MAX_LENGTH: usize = 258;

/// RFC 1951, 3.2.5: bits that follow the symbol of a length.
pub(super) const LENGTH_EXTRA_BITS: [u8; 29] = [
    0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0,
];

/// For each length, less the shortest one: its symbol, less the first one, and the extra bits.
const LENGTH_SYMBOLS: [(u8, u8); 256] = {
    let mut symbols = [(0, 0); 256];
    let (mut length, mut symbol) = (0, 0);
    while symbol < 28 {
        let mut extra = 0;
        while extra < 1 << LENGTH_EXTRA_BITS[symbol] && length < 255 {
            symbols[length] = (symbol as u8, extra);
            extra += 1;
            length += 1;
        }
        symbol += 1;
    }
    symbols[255] = (28, 0);
    symbols
};

/// Marks a token as a match; bits 15 to 22 are the length less 3, the lowest 15 bits the distance less 1. A literal is its
/// byte.
const MATCH: u32 = 1 << 31;

/// Symbol of a distance less 1.
#[inline(always)]
fn offset_symbol(offset: u32) -> usize {
    if offset < 2 {
        return offset as usize;
    }
    let log = offset.ilog2();
    (2 * log + (offset >> (log - 1) & 1)) as usize
}

/// Bits that follow the symbol of a distance.
#[inline(always)]
pub(super) fn offset_extra_bits(symbol: usize) -> u32 {
    (symbol as u32 / 2).saturating_sub(1)
}

/// Tokens of one block.
pub(super) struct Tokens {
    tokens: Vec<u32>,
    pub(super) literals: [u32; LITERALS],
    pub(super) offsets: [u32; OFFSETS],
}

impl Tokens {
    pub(super) fn new() -> Self {
        Self {
            tokens: Vec::with_capacity(super::BLOCK_LENGTH),
            literals: [0; LITERALS],
            offsets: [0; OFFSETS],
        }
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.literals.fill(0);
        self.offsets.fill(0);
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn add_literals(&mut self, bytes: &[u8]) {
        self.tokens.extend(bytes.iter().map(|&byte| u32::from(byte)));
        for &byte in bytes {
            self.literals[usize::from(byte)] += 1;
        }
    }

    /// Adds a match of 3 to 258 bytes.
    pub(super) fn add_match(&mut self, length: usize, distance: u32) {
        let (length, offset) = (length - MIN_LENGTH, distance - 1);
        self.tokens.push(MATCH | (length as u32) << 15 | offset);
        self.literals[LENGTHS + usize::from(LENGTH_SYMBOLS[length].0)] += 1;
        self.offsets[offset_symbol(offset)] += 1;
    }

    /// Bits of all lengths and distances that follow their symbols.
    pub(super) fn extra_bits(&self) -> usize {
        let lengths = self.literals[LENGTHS..].iter().zip(LENGTH_EXTRA_BITS);
        let offsets = self.offsets.iter().enumerate();
        lengths
            .map(|(&count, bits)| count as usize * usize::from(bits))
            .sum::<usize>()
            + offsets
                .map(|(symbol, &count)| count as usize * offset_extra_bits(symbol) as usize)
                .sum::<usize>()
    }

    /// Writes the tokens without the end of the block.
    pub(super) fn write(
        &self,
        literals: &[Code; LITERALS],
        offsets: &[Code; OFFSETS],
        burst: &mut Burst<'_>,
    ) {
        let coded = |code: Code, extra: u64| {
            (
                u64::from(code.bits) | extra << code.length,
                u32::from(code.length),
            )
        };
        let bytes: [(u64, u32); 256] = std::array::from_fn(|byte| coded(literals[byte], 0));
        let lengths: [(u64, u32); 256] = std::array::from_fn(|length| {
            let (symbol, extra) = LENGTH_SYMBOLS[length];
            let (bits, count) = coded(literals[LENGTHS + usize::from(symbol)], extra.into());
            (bits, count + u32::from(LENGTH_EXTRA_BITS[usize::from(symbol)]))
        });
        for &token in &self.tokens {
            if token & MATCH == 0 {
                let (bits, count) = bytes[token as usize & 0xff];
                burst.put(bits, count);
                continue;
            }
            let (length_bits, length_count) = lengths[(token >> 15 & 0xff) as usize];
            let offset = token & 0x7fff;
            let symbol = offset_symbol(offset);
            let extra_count = offset_extra_bits(symbol);
            let (bits, count) = coded(offsets[symbol], u64::from(offset & ((1 << extra_count) - 1)));
            // At most 15 + 5 + 15 + 13 bits.
            burst.put(
                length_bits | bits << length_count,
                length_count + count + extra_count,
            );
        }
    }
}
