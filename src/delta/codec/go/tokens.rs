//! Holds the literals and matches of a block, counts their symbols and writes them.

use std::ops::Range;

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

/// Values of the lowest 9 bits of a token: a literal's byte, or 256 and a match's length less 3.
///
/// The next 5 bits are the symbol of the distance, the others the bits that follow this symbol. So literals and matches are
/// counted and written alike; a processor could not predict a branch between them.
const VALUES: usize = 512;

/// The value of the shortest match.
const MATCHES: usize = 256;

/// Where the symbol of the distance starts in a token.
const OFFSET_SHIFT: u32 = 9;

/// Where the extra bits of the distance start in a token.
const EXTRA_SHIFT: u32 = 14;

/// Values of the symbol of the distance.
const OFFSET_SYMBOLS: usize = 32;

/// What a literal has in place of this symbol.
const NO_OFFSET: u32 = 31;

/// Literals that are added at once.
const GROUP: usize = 8;

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
    /// Space for as many as a block has bytes, and for a last group.
    tokens: Box<[u32]>,
    count: usize,
    pub(super) literals: [u32; LITERALS],
    pub(super) offsets: [u32; OFFSETS],
}

impl Tokens {
    pub(super) fn new() -> Self {
        Self {
            tokens: vec![0; super::BLOCK_LENGTH + GROUP].into_boxed_slice(),
            count: 0,
            literals: [0; LITERALS],
            offsets: [0; OFFSETS],
        }
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Adds these of the bytes as literals.
    #[inline(always)]
    pub(super) fn add_literals(&mut self, bytes: &[u8], range: Range<usize>) {
        let mut from = range.start;
        loop {
            let Some(group) = bytes[from..].first_chunk::<GROUP>() else {
                return self.add_last_literals(&bytes[from..range.end]);
            };
            // A copy of constant length is faster. The next token overwrites what is beyond the range.
            self.tokens[self.count..self.count + GROUP].copy_from_slice(&group.map(literal));
            let added = (range.end - from).min(GROUP);
            self.count += added;
            from += added;
            if from == range.end {
                return;
            }
        }
    }

    /// Adds literals that nothing follows.
    fn add_last_literals(&mut self, bytes: &[u8]) {
        for (token, byte) in self.tokens[self.count..].iter_mut().zip(bytes) {
            *token = literal(*byte);
        }
        self.count += bytes.len();
    }

    /// Adds a match of 3 to 258 bytes.
    #[inline(always)]
    pub(super) fn add_match(&mut self, length: usize, distance: u32) {
        let (length, offset) = (length - MIN_LENGTH, distance - 1);
        let symbol = offset_symbol(offset);
        let extra = offset & ((1 << offset_extra_bits(symbol)) - 1);
        self.tokens[self.count] =
            (MATCHES + length) as u32 | (symbol as u32) << OFFSET_SHIFT | extra << EXTRA_SHIFT;
        self.count += 1;
    }

    /// Counts how often each symbol occurs.
    pub(super) fn count_symbols(&mut self) {
        // Two counters of each, because equal tokens often follow each other and an addition waits for the one before.
        let mut values = [[0_u32; VALUES]; 2];
        let mut offsets = [[0_u32; OFFSET_SYMBOLS]; 2];
        for pair in self.tokens[..self.count].chunks(2) {
            for (counters, token) in values.iter_mut().zip(&mut offsets).zip(pair) {
                counters.0[value(*token)] += 1;
                counters.1[symbol_of_offset(*token)] += 1;
            }
        }
        let frequency = |value: usize| values[0][value] + values[1][value];
        self.literals.fill(0);
        for byte in 0..MATCHES {
            self.literals[byte] = frequency(byte);
        }
        for (length, (symbol, _)) in LENGTH_SYMBOLS.into_iter().enumerate() {
            self.literals[LENGTHS + usize::from(symbol)] += frequency(MATCHES + length);
        }
        self.offsets = std::array::from_fn(|symbol| offsets[0][symbol] + offsets[1][symbol]);
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
        // Bits to write, and from bit 24 on how many.
        let coded = |code: Code, extra: u8, extra_bits: u8| {
            u32::from(code.bits) | u32::from(extra) << code.length | u32::from(code.length + extra_bits) << 24
        };
        let values: [u32; VALUES] = std::array::from_fn(|value| match value.checked_sub(MATCHES) {
            None => coded(literals[value], 0, 0),
            Some(length) => {
                let (symbol, extra) = LENGTH_SYMBOLS[length];
                let symbol = usize::from(symbol);
                coded(literals[LENGTHS + symbol], extra, LENGTH_EXTRA_BITS[symbol])
            }
        });
        // A code, from bit 16 on its length, and from bit 24 on its length with the extra bits.
        let offsets: [u32; OFFSET_SYMBOLS] = std::array::from_fn(|symbol| {
            offsets.get(symbol).map_or(0, |code| {
                let length = u32::from(code.length);
                u32::from(code.bits) | length << 16 | (length + offset_extra_bits(symbol)) << 24
            })
        });
        let bits_of = |token: u32| {
            let (code, offset) = (values[value(token)], offsets[symbol_of_offset(token)]);
            let extra = u64::from(token >> EXTRA_SHIFT) << (offset >> 16 & 0x1f);
            let length = code >> 24;
            let bits = u64::from(code & 0xff_ffff) | (u64::from(offset & 0xffff) | extra) << length;
            // At most 15 + 5 + 15 + 13 bits.
            (bits, length + (offset >> 24))
        };
        let pairs = self.tokens[..self.count].chunks_exact(2);
        let last = pairs.remainder();
        for pair in pairs {
            let ((bits, count), (more_bits, more)) = (bits_of(pair[0]), bits_of(pair[1]));
            if count + more <= Burst::MAX {
                burst.put(bits | more_bits << count, count + more);
            } else {
                burst.put(bits, count);
                burst.put(more_bits, more);
            }
        }
        for &token in last {
            let (bits, count) = bits_of(token);
            burst.put(bits, count);
        }
    }
}

#[inline(always)]
fn literal(byte: u8) -> u32 {
    u32::from(byte) | NO_OFFSET << OFFSET_SHIFT
}

#[inline(always)]
fn value(token: u32) -> usize {
    token as usize % VALUES
}

#[inline(always)]
fn symbol_of_offset(token: u32) -> usize {
    (token >> OFFSET_SHIFT) as usize % OFFSET_SYMBOLS
}
